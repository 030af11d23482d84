"""Some runs as plain data that any executor can send to any process, and how they are played."""

import secrets
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import local
from time import time
from typing import Any, final

import msgspec
import torch

from outvote.experiment.build import RunBuilder
from outvote.experiment.device import choose_device
from outvote.experiment.job import Ended
from outvote.experiment.listener import Played
from outvote.experiment.processes import ASKED_TO_STOP
from outvote.experiment.reading import Plan
from outvote.experiment.runner import Runner
from outvote.experiment.spec import Spec
from outvote.results.faults import StoreError

LONG_AGO = 3600.0
_HERE = local()


@final
class StopFile:
    """A file in the store that asks all processes to stop; nothing else reaches any executor's."""

    def __init__(self, store: Path) -> None:
        """Choose a name; remove what programs that were ended at once have left."""
        self.path = store.absolute() / f".stop-{secrets.token_hex(4)}"
        for path in self.path.parent.glob(".stop-*"):
            with suppress(OSError):
                if time() - path.stat().st_mtime > LONG_AGO:
                    path.unlink()

    def put(self) -> None:
        """Ask."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.touch()

    def remove(self) -> None:
        """Take it away when all have ended."""
        with suppress(OSError):
            self.path.unlink()


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Runs of a suite that are played by one process."""

    suite: str
    output: str
    """The store, which all processes must see under this path."""
    hashes: tuple[str, ...]
    tables: tuple[dict[str, Any], ...]
    """The settings of each run."""
    device: str
    checkpoint_every: float
    max_stacked: int | None
    keep_weights: bool
    num_threads: int | None
    """For torch; None: as many as it takes by itself."""
    stop_file: str
    """When it appears, rounds are finished, saved, and no more are begun."""
    attempt: int
    """Counted from 1; executors that remember answers must not remember a failure."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What became of the runs of a unit."""

    ends: tuple[tuple[str, str, str, bool], ...]
    """Hash, outcome, reason, whether it is new."""
    words: tuple[str, ...]
    """What somebody should know."""
    store_fault: str = ""
    """Why results could not be written; then there is no use in going on."""


def play_unit(unit: Unit) -> Told:
    """Play the runs of a unit in this process."""
    ASKED_TO_STOP.clear()
    stop_file, heard = Path(unit.stop_file), _Heard()
    if stop_file.exists():
        left = tuple((each, "interrupted", "not begun", True) for each in unit.hashes)
        return Told(ends=left, words=())
    if unit.num_threads is not None:
        torch.set_num_threads(unit.num_threads)
    runner = Runner(
        output=Path(unit.output),
        device=choose_device(unit.device),
        checkpoint_every=unit.checkpoint_every,
        listener=heard,
        should_stop=lambda: ASKED_TO_STOP.is_set() or stop_file.exists(),
        max_stacked=unit.max_stacked,
        keep_weights=unit.keep_weights,
    )
    runner.builder = _workshop(runner.device)
    specs = tuple(msgspec.convert(table, Spec) for table in unit.tables)
    try:
        ends = runner.play(Plan(unit.suite, specs, unit.hashes))
    except StoreError as error:
        return Told(ends=(), words=tuple(heard.words), store_fault=str(error))
    told = tuple((end.job.hash, end.outcome, end.reason, end.is_new) for end in ends)
    return Told(ends=told, words=tuple(heard.words))


def _workshop(device: torch.device) -> RunBuilder:
    """Return what the units of this thread share: pictures are loaded once."""
    found: RunBuilder | None = getattr(_HERE, "builder", None)
    if found is None or found.device != device:
        found = _HERE.builder = RunBuilder(device)
    return found


@final
class _Heard:
    """Remembers what was said; rounds are read from the store by whoever wants to see them."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def planned(self, num_rounds: int) -> None:
        del num_rounds

    def played(self, what: Played) -> None:
        del what

    def ended(self, what: Ended) -> None:
        del what

    def said(self, text: str) -> None:
        self.words.append(text)
