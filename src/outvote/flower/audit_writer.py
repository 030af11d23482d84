"""The folder of a run: audit log, metrics and checkpoint, locked and private."""

import os
import socket
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from logging import getLogger
from pathlib import Path
from typing import BinaryIO, Literal, final

import msgspec

from outvote.flower.reply_collection import NUM_ROUNDS_AWAITED
from outvote.flower.server_state import ServerState, load_state, save_state
from outvote.flower.settings import Settings
from outvote.results import disk
from outvote.results.audit_folder import make_private, new_folder, now, write_manifest
from outvote.results.audit_log import (
    LINES,
    AuditRound,
    ClientRecord,
    read_manifest,
)

LOG = getLogger("flwr")
TOO_LATE = "its reply came when the round was over"
METRICS = "metrics.jsonl"
LOCK, HOLDER = ".lock", ".holder"
PATIENCE_SECONDS = 60.0
"""After its SuperLink is killed, a server keeps its folder for about 15 seconds."""
SECONDS_BETWEEN_TRIES = 1.0
SECONDS_BETWEEN_REPORTS = 10.0

MetricKind = Literal["train", "evaluate", "server"]
Number = int | float | None


class MetricLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line of metrics.jsonl."""

    round: int
    kind: MetricKind
    """Of training, of evaluation by nodes, of evaluation by the server."""
    metrics: dict[str, Number | list[Number]]
    """None: NaN or infinity."""


@final
class AuditWriter:
    """Writes log and checkpoint of a run; without an `audit_dir` it writes nothing.

    The folder is opened when the first round begins, and locked against other processes. A new run
    gets a new folder in `audit_dir`.
    """

    def __init__(
        self, settings: Settings, state: ServerState, *, continued: Path | None = None
    ) -> None:
        """Write for a run; `continued` is the folder of a run that goes on."""
        self.settings, self.state = settings, state
        self.folder = continued
        self._saved_round = self._logged_round = state.round
        self._lock: BinaryIO | None = None
        self._incomplete: dict[int, AuditRound] = {}

    def open(self) -> None:
        """Start or continue the log, if it is not open.

        If another process worked on it until now, the state is loaded anew.
        """
        parent = self.settings.audit_dir
        if parent is None or self._lock is not None:
            return
        is_new = self.folder is None
        try:
            folder = self.folder = self.folder or new_folder(parent)
            self._lock, has_waited = _lock(folder)
        except OSError as error:
            raise disk.StoreError(disk.not_written(parent, error)) from error
        try:
            if has_waited and not is_new:
                log_faults(load_state(folder, self.state, self.settings.rule))
                self._saved_round = self._logged_round = self.state.round
            _start_log(folder, self.settings)
            make_private(folder)
        except BaseException:
            self._release()
            raise
        self._incomplete = {}

    def add(self, entry: AuditRound) -> None:
        """Add a round, and save the state if it is time."""
        if self._lock is not None:
            self._append(entry)
        self._logged_round = entry.round
        if entry.round % self.settings.checkpoint_every == 0:
            self._save()

    def add_late(self, round_: int, nodes: Collection[int]) -> None:
        """Write a round again: missing nodes did answer, but too late."""
        entry = self._incomplete.get(round_)
        if entry is None:
            return
        late = {str(node) for node in nodes}
        clients = tuple(
            ClientRecord(client=each.client, standing="late", reason=TOO_LATE)
            if each.client in late and each.standing == "missing"
            else each
            for each in entry.clients
        )
        self._append(msgspec.structs.replace(entry, clients=clients))

    def add_metrics(
        self,
        round_: int,
        kind: MetricKind,
        metrics: Mapping[str, int | float | list[int] | list[float]],
    ) -> None:
        """Keep the metrics of a round, for the result after a resume."""
        if self._lock is not None and self.folder is not None:
            line = MetricLine(round=round_, kind=kind, metrics=dict(metrics))  # type: ignore[arg-type]
            disk.append_line(self.folder / METRICS, line)

    def past_metrics(self) -> Iterator[MetricLine]:
        """Yield the metrics of the rounds before this one; of a round run twice the last count."""
        if self.folder is None:
            return
        lines, _, _ = disk.read_readable(self.folder / METRICS, MetricLine)
        by_round = {(each.round, each.kind): each for each in lines}
        for place in sorted(by_round):
            if place[0] <= self.state.round:
                yield by_round[place]

    def close(self) -> None:
        """Save the state, and release the folder."""
        try:
            self._save()
        finally:
            self._release()

    def _append(self, entry: AuditRound) -> None:
        assert self.folder is not None
        path = self.folder / LINES
        disk.append_line(path, entry)
        disk.sync_lines(path)
        if any(each.standing == "missing" for each in entry.clients):
            self._incomplete[entry.round] = entry
        self._incomplete.pop(entry.round - NUM_ROUNDS_AWAITED, None)

    def _save(self) -> None:
        if self._logged_round < self.state.round:
            return  # A round that is not in the log is run again, and logged then.
        if self._lock is not None and self.state.round > self._saved_round:
            assert self.folder is not None
            save_state(self.folder, self.state, self.settings.rule)
            make_private(self.folder)
            self._saved_round = self.state.round

    def _release(self) -> None:
        if self._lock is not None:
            assert self.folder is not None
            make_private(self.folder)
            self._lock.close()
            self._lock = None


def log_faults(faults: Collection[str]) -> None:
    """Report what was wrong with newer checkpoints than the one that is used."""
    for fault in faults:
        LOG.warning("An older checkpoint is used: %s", fault)


def _lock(folder: Path) -> tuple[BinaryIO, bool]:
    """Lock the folder, and leave a note who has it; return also whether another process had it."""
    start, reported = time.monotonic(), -SECONDS_BETWEEN_REPORTS
    has_waited = False
    while True:
        try:
            lock = disk.lock(folder / LOCK)
        except disk.BusyError as error:
            has_waited, waited = True, time.monotonic() - start
            busy = f"{folder} is in use by {_holder(folder)}"
            if waited >= PATIENCE_SECONDS:
                remedy = "stop it, or start a run of its own in another audit_dir"
                raise disk.BusyError(f"{busy}; {remedy}") from error
            if waited - reported >= SECONDS_BETWEEN_REPORTS:
                LOG.warning("%s; waiting up to %.0f s for it.", busy, PATIENCE_SECONDS - waited)
                reported = waited
            time.sleep(SECONDS_BETWEEN_TRIES)
        else:
            note = f"process {os.getpid()} on {socket.gethostname()} since {now()}\n"
            (folder / HOLDER).write_text(note)
            return lock, has_waited


def _holder(folder: Path) -> str:
    with suppress(OSError, UnicodeDecodeError):
        return (folder / HOLDER).read_text()[:200].strip()
    return "another process"


def _start_log(folder: Path, settings: Settings) -> None:
    before = read_manifest(folder)
    disk.remove_temporaries(folder)
    for name in (LINES, METRICS):
        disk.cut_unfinished(folder / name)
        (folder / name).touch(mode=0o600)
    write_manifest(
        folder,
        rule=str(settings.rule),
        num_byzantine=settings.num_byzantine,
        byzantine_fraction=settings.byzantine_fraction,
        started=before.started if before is not None else now(),
        settings=settings.to_notes(),
    )
