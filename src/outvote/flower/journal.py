"""The folder of a federation: its log and its checkpoint; without a folder nothing is written."""

from collections.abc import Collection
from typing import final

from outvote.flower.auditing import AuditLog
from outvote.flower.checkpointing import save_state
from outvote.flower.settings import Settings
from outvote.flower.state import ServerState
from outvote.results.audit_log import AuditRound


@final
class Journal:
    """Opens the folder when the first round begins, and keeps others away from it."""

    def __init__(self, settings: Settings, state: ServerState, *, is_resumed: bool) -> None:
        """Take note of what to write; nothing is opened yet."""
        self.settings, self.state = settings, state
        self._is_resumed, self._saved_round = is_resumed, state.round
        self._told_round = state.round
        self._log: AuditLog | None = None

    def open(self) -> None:
        """Begin or go on with the log, if it is not open."""
        folder = self.settings.audit_dir
        if folder is not None and self._log is None:
            self._log = AuditLog(folder, self.settings, is_resumed=self._is_resumed)
            self._is_resumed = True

    def add(self, told: AuditRound) -> None:
        """Add a round, and save where the federation stands if it is time."""
        if self._log is not None:
            self._log.add(told)
        self._told_round = told.round
        if told.round % self.settings.checkpoint_every == 0:
            self._save()

    def add_late(self, round_: int, nodes: Collection[int]) -> None:
        """Tell a round again: nodes that were missing did answer, but too late."""
        if self._log is not None:
            self._log.add_late(round_, nodes)

    def close(self) -> None:
        """Save where the federation stands, and let go of the folder."""
        try:
            self._save()
        finally:
            if self._log is not None:
                self._log.close()
                self._log = None

    def _save(self) -> None:
        if self._told_round < self.state.round:
            return  # What is not in the log was not done: it is played again, and told.
        if self._log is not None and self.state.round > self._saved_round:
            save_state(self._log.folder, self.state, str(self.settings.rule))
            self._saved_round = self.state.round
