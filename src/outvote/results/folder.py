"""The folder of one run: what is in it, and how it is written."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, final

import msgspec

from outvote.results import checkpoint as checkpoints
from outvote.results.audit_log import AUDIT_NAME
from outvote.results.checkpoint import Checkpoint
from outvote.results.disk import (
    LOCK,
    DamagedFileError,
    StoreError,
    append_line,
    cut_back,
    cut_unfinished,
    line_ends,
    lock,
    read_json,
    read_lines,
    read_readable,
    remove_temporaries,
    sync_lines,
    unshare,
    write_errors,
    write_whole,
)
from outvote.results.round import Round
from outvote.results.schema import VERSION, Environment, LayoutNumber, Status, Timing
from outvote.text import short_line

CONFIG_NAME, ENVIRONMENT_NAME, STATUS_NAME = "config.toml", "env.json", "status.json"
METRICS_NAME, TIMINGS_NAME = "metrics.jsonl", "timings.jsonl"
CONTENT = (CONFIG_NAME, ENVIRONMENT_NAME, METRICS_NAME, TIMINGS_NAME, AUDIT_NAME)
"""The files of a run beside its status and its checkpoints."""


@final
class RunFolder:
    """Reads the results of a run; `Writer` adds to them."""

    def __init__(self, path: Path) -> None:
        """Take the path; nothing is read or created."""
        self.path = path
        self.metrics, self.timed = path / METRICS_NAME, path / TIMINGS_NAME

    def status(self) -> Status | None:
        """Return the status of the run; None if it was never started."""
        # The version first: another layout may look like damage.
        path = self.path / STATUS_NAME
        layout = read_json(path, LayoutNumber)
        if layout is None:
            return None
        if layout.version != VERSION:
            _check_version(path)
            age = "a newer" if layout.version > VERSION else "an unreleased"
            remedy = "upgrade outvote or choose" if layout.version > VERSION else "choose"
            raise StoreError(
                f"{self.path} was written by {age} outvote (layout {short_line(layout.version)}, "
                f"known: {VERSION}); {remedy} another --output"
            )
        return read_json(path, Status)

    def is_begun(self) -> bool:
        """Return whether it holds a record of rounds: a run whose status is gone."""
        return _is_run([name for name in CONTENT if (self.path / name).exists()])

    def environment(self) -> Environment | None:
        """Return the machine and versions of the run."""
        return read_json(self.path / ENVIRONMENT_NAME, Environment)

    def rounds(self) -> list[Round]:
        """Return the record of each round."""
        return read_lines(self.metrics, Round)

    def timings(self) -> list[Timing]:
        """Return how long the rounds took; rounds that were repeated have two lines."""
        return read_readable(self.timed, Timing)[0]


@final
class Writer:
    """Adds to the results of a run; it holds the lock of the folder until it is closed."""

    def __init__(self, folder: RunFolder, config: bytes, checksum: str) -> None:
        """Create the folder, and lock it."""
        self.folder, self.path, self.checksum = folder, folder.path, checksum
        with write_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock: BinaryIO = lock(self.path / LOCK)
            for name in (STATUS_NAME, *CONTENT):
                unshare(self.path / name)
        remove_temporaries(self.path)
        self._config = config
        self._metrics, self._timings = folder.metrics, folder.timed
        self._sums: dict[Path, hashlib.blake2b] = {
            self._metrics: _new_sum(),
            self._timings: _new_sum(),
        }
        """Of what was written: a disk may return something else."""

    @property
    def metrics_sum(self) -> str:
        """The checksum of the rounds that are recorded."""
        return self._sums[self._metrics].hexdigest()

    def resume(self) -> tuple[Checkpoint | None, list[str]]:
        """Return the checkpoint to resume from (None: start anew), and faults of newer ones.

        The rounds before a checkpoint must be those that it was saved with.
        """
        with write_errors(self._metrics):
            ends = [0, *line_ends(self._metrics, Round)]
            rounds = [each.round for each in self.folder.rounds()]
            content = self._metrics.read_bytes() if self._metrics.exists() else b""

        def fault(checkpoint: Checkpoint) -> str:
            number = checkpoint.round
            if rounds[:number] != list(range(1, number + 1)):
                return f"{self._metrics} lacks rounds before the checkpoint"
            if checkpoint.notes["metrics"] != _sum_of(content[: ends[number]]):
                return f"{self._metrics} is damaged: the checkpoint has another checksum of it"
            return ""

        found, faults = checkpoints.load_newest(self.path, self.checksum, fault)
        if found is not None and faults:
            # Else the damaged one would replace the sound one when the next is saved.
            checkpoints.drop(self.path, checkpoints.NEWEST)
        return found, faults

    def begin(self, round_: int, environment: Environment) -> None:
        """Remove the records after a round; of the timings only a half line."""
        with write_errors(self._metrics):
            cut_back(self._metrics, round_, Round)
            cut_unfinished(self._timings)
            for path in self._sums:
                self._sums[path] = _new_sum(path.read_bytes() if path.exists() else b"")
        if round_ == 0:
            checkpoints.drop(self.path, *checkpoints.BOTH)
        write_whole(self.path / CONFIG_NAME, self._config)
        self._write(ENVIRONMENT_NAME, environment)

    def add(self, round_: Round, timing: Timing) -> None:
        """Record a round."""
        for path, line in ((self._metrics, round_.line()), (self._timings, timing)):
            self._sums[path].update(append_line(path, line))

    def save(self, checkpoint: Checkpoint, status: Status) -> None:
        """Save a checkpoint to resume from."""
        sync_lines(self._metrics)
        checkpoints.save(self.path, checkpoint)
        self.write_status(status)

    def end(self, status: Status, audit: bytes) -> None:
        """Write the audit, then that the run is over: status.json is written last.

        It has the checksums of all files.
        """
        write_whole(self.path / AUDIT_NAME, audit)
        checkpoints.drop(self.path, checkpoints.PREVIOUS)
        files = {path.name: each.hexdigest() for path, each in self._sums.items()}
        files |= {CONFIG_NAME: _sum_of(self._config), AUDIT_NAME: _sum_of(audit)}
        environment = self.path / ENVIRONMENT_NAME
        if environment.exists():
            files[ENVIRONMENT_NAME] = _sum_of(environment.read_bytes())
        self.write_status(status.with_sums(self.checksum, files))

    def repair(self, status: Status, audit: bytes) -> None:
        """Write all of a run that is over but its rounds and env.json, which are sound."""
        with write_errors(self._timings):
            cut_unfinished(self._timings)
            self._timings.touch()
        for path in self._sums:
            self._sums[path] = _new_sum(path.read_bytes())
        write_whole(self.path / CONFIG_NAME, self._config)
        self.end(status, audit)

    def write_status(self, status: Status) -> None:
        """Write status.json."""
        self._write(STATUS_NAME, status)

    def close(self) -> None:
        """Release the lock."""
        self._lock.close()

    def _write(self, name: str, content: Any) -> None:
        write_whole(self.path / name, status_bytes(content))


def find_runs(root: Path) -> Sequence[RunFolder]:
    """Return all runs below a folder, in the order of their paths.

    Folders with a dot in front are skipped: they are copies that are not complete.
    """
    found = []
    for path, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        if STATUS_NAME in files or _is_run(files):
            found.append(Path(path))
            folders.clear()
    return [RunFolder(path) for path in sorted(found)]


def copied_status(status: Status, config: bytes) -> Status:
    """Return the status of a copy in another suite, whose config.toml names that suite."""
    if status.sums is None:
        return status
    return status.with_sums(status.sums.run, status.sums.files | {CONFIG_NAME: _sum_of(config)})


def status_bytes(content: Any) -> bytes:
    """Return the content of status.json or env.json."""
    return msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"


def _check_version(path: Path) -> None:
    """Refuse a status of this version whose number was damaged: its checksum is that of ours."""
    try:
        found = read_json(path, Status)
    except DamagedFileError:
        return
    ours = found and msgspec.structs.replace(found, version=VERSION)
    if ours and ours.sums is not None and ours.checksum() == ours.sums.checksum:
        raise DamagedFileError(f"{path} is damaged: its checksum is wrong")


def _is_run(files: Sequence[str]) -> bool:
    """Return whether these are the files of a run that recorded rounds."""
    return METRICS_NAME in files and (CONFIG_NAME in files or ENVIRONMENT_NAME in files)


def _new_sum(content: bytes = b"") -> hashlib.blake2b:
    return hashlib.blake2b(content, digest_size=16)


def _sum_of(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
