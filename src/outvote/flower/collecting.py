"""Sending and receiving, so that a reply which Flower cannot decode harms only who sent it.

Flower pulls all replies in one go and decodes them before any strategy sees them: a ClientApp that
writes a word where a number belongs ends the run. Here replies are pulled one by one, so that it
is known whose each is, whatever its label says: the SuperLink checks another copy of the label.
A node that announces a reply and does not upload it would be waited for, whatever the timeout is;
so one that takes long is pulled in a thread of its own, and left behind when the time is over.
"""

import time
from collections.abc import Callable, Iterable
from functools import partial
from threading import Thread
from typing import final

from flwr.app import Error, Message
from flwr.serverapp import Grid
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

UNREADABLE, MISLABELLED = 9001, 9002
"""Codes of errors that stand for a reply which could not be decoded, or denies whose it is."""
SECONDS_BETWEEN_PULLS = 3.0
SECONDS_FOR_A_PULL = 5.0
"""After so long the others need not wait for a reply that is still being uploaded."""

# What decoding raises; faults of the network are others, and are not the node's.
UNDECODABLE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    DecodeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)


def send_and_receive(
    grid: Grid, messages: Iterable[Message], timeout: float | None
) -> list[Message]:
    """Do as Flower's grid does, except that a reply that cannot be decoded becomes an error."""
    sent = list(messages)
    pushed = set(grid.push_messages(sent)) if sent else set()
    waiting = [
        Pull(partial(pull, grid, message))
        for message in sent
        if message.metadata.message_id in pushed
    ]
    pause = getattr(grid, "pull_interval", SECONDS_BETWEEN_PULLS)
    end = None if timeout is None else time.monotonic() + timeout
    replies: list[Message] = []
    while True:
        still: list[Pull] = []
        for each in waiting:
            found = each.look()
            replies.extend(found)
            if not found:
                still.append(each)
        waiting = still
        left = pause if end is None else min(pause, end - time.monotonic())
        if not waiting or left <= 0:
            return replies
        time.sleep(left)


@final
class Pull:
    """A question for replies that may take long to answer."""

    def __init__(self, ask: Callable[[], list[Message]]) -> None:
        """Do not ask yet."""
        self._ask = ask
        self._thread: Thread | None = None
        self._outcome: list[Message] | Exception = []

    def look(self) -> list[Message]:
        """Ask, or look whether what was asked before is answered by now; raise what it raised."""
        seconds = 0.0
        if self._thread is None:
            seconds = SECONDS_FOR_A_PULL
            self._thread = Thread(target=self._run, daemon=True)
            self._thread.start()
        self._thread.join(seconds)
        if self._thread.is_alive():
            return []
        self._thread = None
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome

    def _run(self) -> None:
        try:
            self._outcome = self._ask()
        except Exception as error:  # noqa: BLE001  (it is raised where somebody looks)
            self._outcome = error


def pull(grid: Grid, message: Message) -> list[Message]:
    """Return the reply to a message, if there is one by now."""
    try:
        replies = list(grid.pull_messages([message.metadata.message_id]))
        wrong = Error(MISLABELLED, "")
        return [
            reply if _is_answer(reply, message) else Message(wrong, reply_to=message)
            for reply in replies
        ]
    except UNDECODABLE as error:
        reason = f"{type(error).__name__}: {error}"
        return [Message(Error(UNREADABLE, reason), reply_to=message)]


def _is_answer(reply: Message, asked: Message) -> bool:
    """Tell whether the label is right; the SuperLink answers for nodes that failed."""
    about, node = reply.metadata, asked.metadata.dst_node_id
    is_from = reply.has_error() or about.src_node_id == node
    return is_from and about.reply_to_message_id == asked.metadata.message_id
