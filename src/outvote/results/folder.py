"""The folder of one run: what is in it, and how it is written."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, final

import msgspec

from outvote.results import checkpoint as checkpoints
from outvote.results.atomic import not_written, remove_drafts, write_whole
from outvote.results.checkpoint import Checkpoint
from outvote.results.faults import DamagedFileError, StoreError
from outvote.results.lines import (
    append_line,
    count_from_one,
    cut_back,
    cut_unfinished,
    read_lines,
    read_readable,
    sync_lines,
)
from outvote.results.lock import lock
from outvote.results.schema import OLDEST, VERSION, Environment, Layout, Round, Status, Timing

Kind = TypeVar("Kind")


@final
class RunFolder:
    """Reads the results of a run; `Writer` adds to them."""

    def __init__(self, path: Path) -> None:
        """Take the place; nothing is read or made."""
        self.path = path

    def status(self) -> Status | None:
        """Return what became of the run; None if it was never begun."""
        # The version first: what a newer layout holds may look like damage.
        layout = self._read("status.json", Layout)
        if layout is None:
            return None
        self._check_version(layout.version)
        return self._read("status.json", Status)

    def known_status(self) -> tuple[Status | None, str]:
        """Return what became of the run, as far as that can be read, and what is wrong."""
        try:
            return self.status(), ""
        except DamagedFileError as error:
            return None, str(error)

    def environment(self) -> Environment | None:
        """Return where it was played."""
        return self._read("env.json", Environment)

    def rounds(self) -> list[Round]:
        """Return what is recorded of each round."""
        return read_lines(self.path / "metrics.jsonl", Round)

    def timings(self) -> list[Timing]:
        """Return how long the rounds took; rounds that were played again are told again."""
        return read_readable(self.path / "timings.jsonl", Timing)[0]

    def _check_version(self, version: int) -> None:
        if version > VERSION:
            raise StoreError(
                f"{self.path} was written by a newer outvote (layout {version}, known up to "
                f"{VERSION}); upgrade outvote or choose another --output"
            )
        if version < OLDEST:
            raise StoreError(
                f"{self.path} was written by an older outvote (layout {version}, known from "
                f"{OLDEST}); read it with that outvote, or choose another --output and play it "
                "again"
            )

    def _read(self, name: str, kind: type[Kind]) -> Kind | None:
        path = self.path / name
        try:
            return msgspec.json.decode(path.read_bytes(), type=kind)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, msgspec.DecodeError) as error:
            raise DamagedFileError(f"{path} cannot be read: {error}") from error


@final
class Writer:
    """Adds to the results of a run; nobody else can while it is open."""

    def __init__(self, folder: RunFolder, config: bytes, checksum: str) -> None:
        """Make the folder, and take hold of it."""
        self.folder, self.path, self.checksum = folder, folder.path, checksum
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock: BinaryIO = lock(self.path / ".lock")
        except OSError as error:
            raise StoreError(not_written(self.path, error)) from error
        remove_drafts(self.path)
        self._config = config
        self._metrics, self._timings = self.path / "metrics.jsonl", self.path / "timings.jsonl"

    def resume(self) -> tuple[Checkpoint | None, list[str]]:
        """Find where to go on (None: from the start), and what was wrong with newer checkpoints."""
        found, faults = checkpoints.load_newest(self.path, self.checksum)
        played = [each.round for each in self.folder.rounds()]
        if found is not None and not (
            len(played) >= found.round and count_from_one(played[: found.round])
        ):
            faults.append(f"{self.path / 'metrics.jsonl'} lacks rounds before the checkpoint")
            found = None
        if found is not None and faults:
            # Else the damaged one would take the place of the sound one when the next is saved.
            checkpoints.drop_newest(self.path)
        return found, faults

    def begin(self, round_: int, environment: Environment) -> None:
        """Remove what was recorded after a round; of the times only a half line."""
        try:
            cut_back(self._metrics, round_, Round)
            cut_unfinished(self._timings)
        except OSError as error:
            raise StoreError(not_written(self._metrics, error)) from error
        if round_ == 0:
            checkpoints.drop_all(self.path)
        write_whole(self.path / "config.toml", self._config)
        self._write("env.json", environment)

    def add(self, round_: Round, timing: Timing) -> None:
        """Record a round."""
        append_line(self._metrics, round_)
        append_line(self._timings, timing)

    def save(self, checkpoint: Checkpoint, status: Status) -> None:
        """Keep where the run stands, so that it can go on from here."""
        sync_lines(self._metrics)
        checkpoints.save(self.path, checkpoint)
        self.tell(status)

    def end(self, status: Status, audit: bytes) -> None:
        """Say that the run is over: the last thing that is written."""
        write_whole(self.path / "audit.npz", audit)
        checkpoints.drop_previous(self.path)
        self.tell(status)

    def tell(self, status: Status) -> None:
        """Write what became of the run."""
        self._write("status.json", status)

    def close(self) -> None:
        """Let go of the folder."""
        self._lock.close()

    def _write(self, name: str, content: Any) -> None:
        text = msgspec.json.format(msgspec.json.encode(content), indent=2)
        write_whole(self.path / name, text + b"\n")


def find_runs(root: Path) -> Sequence[RunFolder]:
    """Return all runs below a folder, in the order of their paths.

    Folders with a dot in front are passed over: what is being copied there is no run yet.
    """
    found = []
    for path, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        if "status.json" in files:
            found.append(Path(path))
            folders.clear()
    return [RunFolder(path) for path in sorted(found)]
