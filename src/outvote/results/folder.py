"""The folder of one run: what is in it, and how it is written."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, final

import msgspec

from outvote.results import checkpoint as checkpoints
from outvote.results.checkpoint import Checkpoint
from outvote.results.disk import (
    DamagedFileError,
    StoreError,
    append_line,
    cut_back,
    cut_unfinished,
    lock,
    read_json,
    read_lines,
    read_readable,
    remove_temporaries,
    sync_lines,
    write_errors,
    write_whole,
)
from outvote.results.schema import VERSION, Environment, Layout, Round, Status, Timing


@final
class RunFolder:
    """Reads the results of a run; `Writer` adds to them."""

    def __init__(self, path: Path) -> None:
        """Take the path; nothing is read or created."""
        self.path = path
        self.metrics, self.timed = path / "metrics.jsonl", path / "timings.jsonl"

    def status(self) -> Status | None:
        """Return the status of the run; None if it was never started."""
        # The version first: a newer layout may look like damage.
        path = self.path / "status.json"
        layout = read_json(path, Layout)
        if layout is None:
            return None
        if layout.version > VERSION:
            raise StoreError(
                f"{self.path} was written by a newer outvote (layout {layout.version}, known up to "
                f"{VERSION}); upgrade outvote or choose another --output"
            )
        return read_json(path, Status)

    def known_status(self) -> tuple[Status | None, str]:
        """Return the status (None also if it cannot be read), and the fault if there is one."""
        try:
            return self.status(), ""
        except DamagedFileError as error:
            return None, str(error)

    def environment(self) -> Environment | None:
        """Return the machine and versions of the run."""
        return read_json(self.path / "env.json", Environment)

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
            self._lock: BinaryIO = lock(self.path / ".lock")
        remove_temporaries(self.path)
        self._config = config
        self._metrics, self._timings = folder.metrics, folder.timed

    def resume(self) -> tuple[Checkpoint | None, list[str]]:
        """Return the checkpoint to resume from (None: start anew), and faults of newer ones."""
        found, faults = checkpoints.load_newest(self.path, self.checksum)
        rounds = [each.round for each in self.folder.rounds()]
        if found is not None and rounds[: found.round] != list(range(1, found.round + 1)):
            faults.append(f"{self._metrics} lacks rounds before the checkpoint")
            found = None
        if found is not None and faults:
            # Else the damaged one would replace the sound one when the next is saved.
            checkpoints.drop(self.path, checkpoints.NEWEST)
        return found, faults

    def begin(self, round_: int, environment: Environment) -> None:
        """Remove the records after a round; of the timings only a half line."""
        with write_errors(self._metrics):
            cut_back(self._metrics, round_, Round)
            cut_unfinished(self._timings)
        if round_ == 0:
            checkpoints.drop(self.path, *checkpoints.BOTH)
        write_whole(self.path / "config.toml", self._config)
        self._write("env.json", environment)

    def add(self, round_: Round, timing: Timing) -> None:
        """Record a round."""
        append_line(self._metrics, round_)
        append_line(self._timings, timing)

    def save(self, checkpoint: Checkpoint, status: Status) -> None:
        """Save a checkpoint to resume from."""
        sync_lines(self._metrics)
        checkpoints.save(self.path, checkpoint)
        self.write_status(status)

    def end(self, status: Status, audit: bytes) -> None:
        """Write the audit, then that the run is over: status.json is written last."""
        write_whole(self.path / "audit.npz", audit)
        checkpoints.drop(self.path, checkpoints.PREVIOUS)
        self.write_status(status)

    def write_status(self, status: Status) -> None:
        """Write status.json."""
        self._write("status.json", status)

    def close(self) -> None:
        """Release the lock."""
        self._lock.close()

    def _write(self, name: str, content: Any) -> None:
        text = msgspec.json.format(msgspec.json.encode(content), indent=2)
        write_whole(self.path / name, text + b"\n")


def find_runs(root: Path) -> Sequence[RunFolder]:
    """Return all runs below a folder, in the order of their paths.

    Folders with a dot in front are skipped: they are copies that are not complete.
    """
    found = []
    for path, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        if "status.json" in files:
            found.append(Path(path))
            folders.clear()
    return [RunFolder(path) for path in sorted(found)]
