"""Replies that come when their round is over: looked for once more before the next one."""

from collections.abc import Collection, Sequence
from functools import partial
from typing import final

from flwr.app import Message, Metadata
from flwr.serverapp import Grid

from outvote.flower.collecting import UNDECODABLE, Pull

PATIENCE = 10
"""For how many rounds a reply is looked for."""


@final
class LateReplies:
    """Who has not answered yet."""

    def __init__(self) -> None:
        """Wait for nobody."""
        self._waiting: list[tuple[int, Metadata]] = []

    def expect(self, round_: int, asked: Sequence[Message], missing: Collection[int]) -> None:
        """Take note of who did not answer in a round."""
        kept = [each for each in self._waiting if each[0] > round_ - PATIENCE]
        # Their metadata alone: the messages hold the whole model.
        new = [each.metadata for each in asked if each.metadata.dst_node_id in missing]
        self._waiting = [*kept, *((round_, about) for about in new if about.message_id)]

    def arrived(self, grid: Grid) -> dict[int, list[int]]:
        """Return whose replies have come by now, by round."""
        late: dict[int, list[int]] = {}
        still = []
        for round_, about in self._waiting:
            ask = Pull(partial(_pull, grid, about.message_id))
            try:
                replies = ask.look()
            except UNDECODABLE:
                continue
            if not replies:
                still.append((round_, about))
            elif replies[0].has_content():
                late.setdefault(round_, []).append(about.dst_node_id)
        self._waiting = still
        return late


def _pull(grid: Grid, message_id: str) -> list[Message]:
    return list(grid.pull_messages([message_id]))
