"""The folder of a federation (audit log and checkpoint) and the lines on the server's console."""

from collections import Counter
from collections.abc import Collection
from datetime import UTC, datetime
from logging import getLogger
from pathlib import Path
from typing import BinaryIO, final

import msgspec

import outvote
from outvote.flower.reply_collection import NUM_ROUNDS_AWAITED
from outvote.flower.server_state import ServerState, save_state
from outvote.flower.settings import Settings
from outvote.results import disk
from outvote.results.audit_log import (
    LINES,
    MANIFEST,
    AuditRound,
    ClientRecord,
    Manifest,
    read_manifest,
)

LOG = getLogger("flwr")
TOO_LATE = "its reply came when the round was over"
OUTVOTED = "outvoted"
QUIET = ("aggregated", "excluded")
"""Standings that need no line of their own on the console."""


@final
class AuditWriter:
    """Writes log and checkpoint of a federation; without an `audit_dir` it writes nothing.

    The folder is opened when the first round begins, and locked against other processes.
    """

    def __init__(self, settings: Settings, state: ServerState, *, is_resumed: bool) -> None:
        self.settings, self.state = settings, state
        self._is_resumed = is_resumed
        self._saved_round = self._logged_round = state.round
        self._lock: BinaryIO | None = None
        self._incomplete: dict[int, AuditRound] = {}

    def open(self) -> None:
        """Start or continue the log, if it is not open."""
        folder = self.settings.audit_dir
        if folder is None or self._lock is not None:
            return
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = disk.lock(folder / ".lock")
        except OSError as error:
            raise disk.StoreError(disk.not_written(folder, error)) from error
        try:
            _start_log(folder, self.settings, is_resumed=self._is_resumed)
        except BaseException:
            self._release()
            raise
        self._incomplete = {}
        self._is_resumed = True

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

    def close(self) -> None:
        """Save the state, and release the folder."""
        try:
            self._save()
        finally:
            self._release()

    def _append(self, entry: AuditRound) -> None:
        assert self.settings.audit_dir is not None
        path = self.settings.audit_dir / LINES
        disk.append_line(path, entry)
        disk.sync_lines(path)
        if any(each.standing == "missing" for each in entry.clients):
            self._incomplete[entry.round] = entry
        self._incomplete.pop(entry.round - NUM_ROUNDS_AWAITED, None)

    def _save(self) -> None:
        if self._logged_round < self.state.round:
            return  # A round that is not in the log is run again, and logged then.
        if self._lock is not None and self.state.round > self._saved_round:
            assert self.settings.audit_dir is not None
            save_state(self.settings.audit_dir, self.state, self.settings.rule)
            self._saved_round = self.state.round

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def now() -> str:
    """Return the time as ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _start_log(folder: Path, settings: Settings, *, is_resumed: bool) -> None:
    before = read_manifest(folder)
    if before is not None and not is_resumed:
        raise ValueError(
            f"audit_dir {folder} holds the log of a run that started {before.started}; choose "
            f"another folder, or continue it with RobustStrategy.resume({str(folder)!r})."
        )
    disk.remove_temporaries(folder)
    disk.cut_unfinished(folder / LINES)
    manifest = Manifest(
        rule=str(settings.rule),
        num_byzantine=settings.num_byzantine,
        byzantine_fraction=settings.byzantine_fraction,
        outvote=outvote.__version__,
        started=before.started if before is not None else now(),
        settings=settings.to_notes(),
    )
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
    disk.write_whole(folder / MANIFEST, text + b"\n")


def log_round(entry: AuditRound) -> None:
    """Print the nodes that were left out, and how many there were of each kind."""
    counts = Counter(str(each.standing) for each in entry.clients)
    for each in entry.clients:
        if each.standing not in QUIET:
            LOG.warning("\tnode %s %s: %s", each.client, each.standing, each.reason)
    outvoted = [each.client for each in entry.clients if each.reason.startswith(OUTVOTED)]
    if outvoted:
        LOG.info("\toutvoted: %s", ", ".join(outvoted))
    parts = ", ".join(f"{count} {standing}" for standing, count in sorted(counts.items()))
    LOG.info("aggregate_train: %s", parts or "no node was asked")
    if entry.reason:
        level = LOG.info if entry.is_updated else LOG.warning
        level("\t%s%s", "" if entry.is_updated else "the model is kept: ", entry.reason)


def log_settings(settings: Settings, round_: int) -> None:
    """Print the settings of the strategy."""
    fraction = settings.byzantine_fraction
    assumed = settings.num_byzantine or 0 if fraction is None else f"a share of {fraction}"
    LOG.info("\t├──> Rule: %s, assumed Byzantine nodes: %s", settings.rule, assumed)
    LOG.info("\t├──> Server optimiser: %s", settings.server_optimizer)
    LOG.info("\t├──> Log and checkpoint: %s", settings.audit_dir or "none")
    LOG.info("\t└──> Continues after round: %d", round_)
