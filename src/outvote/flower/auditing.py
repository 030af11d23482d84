"""The audit log of a federation: a manifest, and a line per round."""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, final

import msgspec

import outvote
from outvote.flower.answers import Answers
from outvote.flower.late import PATIENCE
from outvote.flower.settings import Settings
from outvote.results.audit_log import (
    LINES,
    MANIFEST,
    AuditRound,
    ClientRecord,
    Manifest,
    Standing,
    read_manifest,
)
from outvote.results.disk import (
    StoreError,
    append_line,
    cut_unfinished,
    lock,
    not_written,
    remove_temporaries,
    sync_lines,
    write_whole,
)

TOO_LATE = "its reply came when the round was over"


@final
class AuditLog:
    """Writes the log; only one process at a time can."""

    def __init__(self, folder: Path, settings: Settings, *, is_resumed: bool) -> None:
        """Begin a log, or go on with one."""
        self.folder, self.lines = folder, folder / LINES
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock: BinaryIO = lock(folder / ".lock")
        except OSError as error:
            raise StoreError(not_written(folder, error)) from error
        self._waiting: dict[int, AuditRound] = {}
        try:
            self._begin(settings, is_resumed=is_resumed)
        except BaseException:
            self.close()
            raise

    def add(self, told: AuditRound) -> None:
        """Add a round."""
        append_line(self.lines, told)
        sync_lines(self.lines)
        if any(each.standing == "missing" for each in told.clients):
            self._waiting[told.round] = told
        self._waiting.pop(told.round - PATIENCE, None)

    def add_late(self, round_: int, nodes: Collection[int]) -> None:
        """Tell a round again: nodes that were missing did answer, but too late."""
        told = self._waiting.get(round_)
        if told is None:
            return
        late = {str(node) for node in nodes}
        clients = tuple(
            ClientRecord(client=each.client, standing="late", reason=TOO_LATE)
            if each.client in late and each.standing == "missing"
            else each
            for each in told.clients
        )
        self.add(msgspec.structs.replace(told, clients=clients))

    def close(self) -> None:
        """Let go of the folder."""
        self._lock.close()

    def _begin(self, settings: Settings, *, is_resumed: bool) -> None:
        before = read_manifest(self.folder)
        if before is not None and not is_resumed:
            raise ValueError(
                f"audit_dir {self.folder} holds the log of a run that started {before.started}; "
                f"choose another folder, or go on with RobustStrategy.resume({str(self.folder)!r})."
            )
        remove_temporaries(self.folder)
        cut_unfinished(self.lines)
        started = before.started if before is not None else now()
        _write_manifest(self.folder, settings, started)


def not_judged(
    answers: Answers, malformed: Mapping[int, str], excluded: Mapping[int, str]
) -> list[ClientRecord]:
    """Tell why nodes were not judged."""
    kinds: Sequence[tuple[Standing, Mapping[int, str]]] = (
        ("malformed", malformed),
        ("error", answers.errors),
        ("late", answers.late),
        ("missing", dict.fromkeys(answers.missing, "it did not answer in time")),
        ("excluded", excluded),
    )
    return [
        ClientRecord(client=str(node), standing=standing, reason=reason)
        for standing, by_node in kinds
        for node, reason in by_node.items()
    ]


def in_order(clients: Sequence[ClientRecord]) -> tuple[ClientRecord, ...]:
    """Sort by node."""
    return tuple(sorted(clients, key=lambda each: int(each.client)))


def now() -> str:
    """Return the time as ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _write_manifest(folder: Path, settings: Settings, started: str) -> None:
    manifest = Manifest(
        rule=str(settings.rule),
        num_byzantine=settings.num_byzantine,
        byzantine_fraction=settings.byzantine_fraction,
        outvote=outvote.__version__,
        started=started,
        settings=settings.to_notes(),
    )
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
    write_whole(folder / MANIFEST, text + b"\n")
