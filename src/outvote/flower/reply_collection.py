"""Sending messages and collecting replies: which node each reply is from, and which are missing.

Flower decodes all replies at once before a strategy sees them: one that cannot be decoded ends the
run. Here replies are pulled one by one. So the sender of each is known whatever its label claims
(the SuperLink checks another copy of the label). A node that announces a reply and does not upload
it would block for ever, so each pull is a thread, left behind when the time is over. Error replies
come from the SuperLink's id, not from the node that failed, and late replies are silently absent;
the id of the message that a reply answers identifies both.
"""

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from logging import getLogger
from threading import Thread
from typing import final

from flwr.app import Error, Message, Metadata, RecordDict
from flwr.serverapp import Grid
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from outvote.server.replies import ANSWERED_TWICE, OTHER_ROUND, quote

LOG = getLogger("flwr")
UNREADABLE, MISLABELLED = 9001, 9002
"""Codes of the errors that replace a reply which cannot be decoded, or names another sender."""
SECONDS_BETWEEN_PULLS = 3.0
SECONDS_FOR_A_PULL = 5.0
"""After this time the other nodes need not wait for a reply that is still being uploaded."""
SECONDS_BETWEEN_REPORTS = 30.0
MOST_LISTED = 20
NUM_ROUNDS_AWAITED = 10
"""For how many rounds a missing reply is looked for."""

FORMER_CLIENT = (
    "its ClientApp is made of a NumPyClient or Client (client_fn), which RobustStrategy cannot "
    "ask: write functions with @app.train() and @app.evaluate()"
)

# What decoding raises. Faults of the network are others, and are not the node's.
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
    waiting = {
        Pull(partial(_pull, grid, message)): message.metadata.dst_node_id
        for message in sent
        if message.metadata.message_id in pushed
    }
    pause = getattr(grid, "pull_interval", SECONDS_BETWEEN_PULLS)
    start = reported = time.monotonic()
    replies: list[Message] = []
    while True:
        found = {pull: pull.poll() for pull in waiting}
        replies += [reply for each in found.values() for reply in each]
        waiting = {pull: waiting[pull] for pull, each in found.items() if not each}
        now = time.monotonic()
        left = pause if timeout is None else min(pause, start + timeout - now)
        if not waiting or left <= 0:
            return replies
        if now - reported >= SECONDS_BETWEEN_REPORTS:
            _report_missing(sorted(waiting.values()), len(sent), now - start, timeout)
            reported = now
        time.sleep(left)


def listed(nodes: Sequence[int]) -> str:
    """Return the names of some nodes, not too many."""
    more = f" and {len(nodes) - MOST_LISTED} more" if len(nodes) > MOST_LISTED else ""
    return (", ".join(str(node) for node in nodes[:MOST_LISTED]) or "none") + more


def _report_missing(
    nodes: Sequence[int], num_asked: int, seconds: float, timeout: float | None
) -> None:
    limit = "without limit" if timeout is None else f"of {timeout:.0f} s"
    LOG.info(
        "Waiting for replies for %.0f s %s: %d of %d are missing: nodes %s",
        seconds,
        limit,
        len(nodes),
        num_asked,
        listed(nodes),
    )


@final
class Pull:
    """A request for replies that may take long, in a thread of its own."""

    def __init__(self, request: Callable[[], list[Message]]) -> None:
        self._request = request
        self._thread: Thread | None = None
        self._outcome: list[Message] | Exception = []

    def poll(self) -> list[Message]:
        """Send the request, or check the one under way; return replies or raise its exception."""
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
            self._outcome = self._request()
        except Exception as error:  # noqa: BLE001  (`poll` raises it)
            self._outcome = error


def _pull(grid: Grid, message: Message) -> list[Message]:
    """Return the reply to a message if it has arrived."""
    try:
        wrong = Error(MISLABELLED, "")
        return [
            reply if _is_labelled_right(reply, message) else Message(wrong, reply_to=message)
            for reply in list(grid.pull_messages([message.metadata.message_id]))
        ]
    except UNDECODABLE as error:
        reason = f"{type(error).__name__}: {error}"
        return [Message(Error(UNREADABLE, reason), reply_to=message)]


def _is_labelled_right(reply: Message, message: Message) -> bool:
    """Return whether the label names the node; the SuperLink replies for nodes that failed."""
    label, node = reply.metadata, message.metadata.dst_node_id
    is_from = reply.has_error() or label.src_node_id == node
    return is_from and label.reply_to_message_id == message.metadata.message_id


@final
@dataclass(slots=True, kw_only=True)
class SortedReplies:
    """The replies of a round by node, and why the others have none."""

    contents: dict[int, RecordDict] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)
    malformed: dict[int, str] = field(default_factory=dict)
    late: dict[int, str] = field(default_factory=dict)
    missing: list[int] = field(default_factory=list)


def sort_replies(messages: Sequence[Message], replies: Iterable[Message]) -> SortedReplies:
    """Find the node that each reply is from."""
    nodes = {message.metadata.dst_node_id for message in messages}
    # A message has an id once it was sent.
    by_id = {message.metadata.message_id: message.metadata.dst_node_id for message in messages}
    by_id.pop("", None)
    found = SortedReplies()
    for reply in replies:
        key, source = reply.metadata.reply_to_message_id, reply.metadata.src_node_id
        node = by_id.get(key, source)
        if node not in nodes or (source != node and not reply.has_error()):
            continue  # The sender is unknown: a label that anybody can write blames no node.
        if by_id and key not in by_id:
            found.late[node] = OTHER_ROUND
        else:
            _add(found, node, reply)
    seen = {*found.contents, *found.errors, *found.malformed}
    found.late = {node: why for node, why in found.late.items() if node not in seen}
    found.missing = sorted(nodes - seen - set(found.late))
    return found


def _add(found: SortedReplies, node: int, reply: Message) -> None:
    if any(node in each for each in (found.contents, found.malformed, found.errors)):
        found.contents.pop(node, None)
        found.errors.pop(node, None)
        found.malformed[node] = ANSWERED_TWICE
    elif reply.has_error() and reply.error.code == UNREADABLE:
        found.malformed[node] = f"Flower cannot decode it: {quote(reply.error.reason or '')}"
    elif reply.has_error() and reply.error.code == MISLABELLED:
        found.malformed[node] = "it is labelled as another node's reply"
    elif reply.has_error():
        found.errors[node] = _reason(reply.error)
    elif not reply.has_content() or not isinstance(reply.content, RecordDict):
        found.malformed[node] = "it sent no records"
    else:
        found.contents[node] = reply.content


def _reason(error: Error) -> str:
    text = f"error {error.code}: {quote(error.reason or '')}"
    # What a ClientApp with a client_fn looks for in a message; it fails with a KeyError.
    if any(name in (error.reason or "") for name in ("fitins.", "evaluateins.")):
        return f"{text}; {FORMER_CLIENT}"
    return text


@final
class LateReplies:
    """Replies that were missing when their round ended; looked for before each later round."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, Metadata]] = []

    def expect(self, round_: int, messages: Sequence[Message], missing: Collection[int]) -> None:
        """Add the nodes that did not answer in a round."""
        kept = [each for each in self._waiting if each[0] > round_ - NUM_ROUNDS_AWAITED]
        # Their metadata alone: the messages hold the whole model.
        new = [each.metadata for each in messages if each.metadata.dst_node_id in missing]
        self._waiting = [*kept, *((round_, each) for each in new if each.message_id)]

    def arrived(self, grid: Grid) -> dict[int, list[int]]:
        """Return the nodes whose replies have arrived since, by round."""
        late: dict[int, list[int]] = {}
        still = []
        for round_, sent in self._waiting:
            pull = Pull(partial(lambda key: list(grid.pull_messages([key])), sent.message_id))
            try:
                replies = pull.poll()
            except UNDECODABLE:
                continue
            if not replies:
                still.append((round_, sent))
            elif replies[0].has_content():
                late.setdefault(round_, []).append(sent.dst_node_id)
        self._waiting = still
        return late
