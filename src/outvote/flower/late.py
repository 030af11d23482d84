"""Replies that come when their round is over: looked for once more before the next one."""

from collections.abc import Collection, Sequence
from typing import final

from flwr.app import Message
from flwr.serverapp import Grid

PATIENCE = 10
"""For how many rounds a reply is looked for."""


@final
class LateReplies:
    """Who has not answered yet."""

    def __init__(self) -> None:
        """Wait for nobody."""
        self._waiting: dict[str, tuple[int, int]] = {}

    def expect(self, round_: int, asked: Sequence[Message], missing: Collection[int]) -> None:
        """Take note of who did not answer in a round."""
        for message in asked:
            about = message.metadata
            if about.dst_node_id in missing and about.message_id:
                self._waiting[about.message_id] = (round_, about.dst_node_id)
        self._waiting = {
            key: found for key, found in self._waiting.items() if found[0] > round_ - PATIENCE
        }

    def arrived(self, grid: Grid) -> list[tuple[int, int]]:
        """Return round and node of every reply that has come by now."""
        if not self._waiting:
            return []
        late = []
        for reply in grid.pull_messages(list(self._waiting)):
            found = self._waiting.pop(reply.metadata.reply_to_message_id, None)
            if found is not None and reply.has_content():
                late.append(found)
        return sorted(late)
