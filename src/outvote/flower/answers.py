"""Whose message is whose: asked nodes, their replies, and who never answered.

An error reply comes from the SuperLink's own id, not from the node that failed, and replies that
are too late are silently absent. The id of the message that a reply answers tells both.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import final

from flwr.app import Message, RecordDict

from outvote.flower.collecting import MISLABELLED, UNREADABLE
from outvote.flower.npy import short


@final
@dataclass(slots=True, kw_only=True)
class Answers:
    """What came back of a round, by node."""

    contents: dict[int, RecordDict] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)
    malformed: dict[int, str] = field(default_factory=dict)
    late: dict[int, str] = field(default_factory=dict)
    missing: list[int] = field(default_factory=list)


def sort_answers(asked: Sequence[Message], replies: Iterable[Message]) -> Answers:
    """Find the node that each reply belongs to."""
    nodes = {message.metadata.dst_node_id for message in asked}
    # A message has an id once it was sent.
    by_id = {message.metadata.message_id: message.metadata.dst_node_id for message in asked}
    by_id.pop("", None)
    answers = Answers()
    for reply in replies:
        key, source = reply.metadata.reply_to_message_id, reply.metadata.src_node_id
        node = by_id.get(key, source)
        if node not in nodes or (source != node and not reply.has_error()):
            continue  # Nobody knows whose it is: a label that anybody can write blames nobody.
        if by_id and key not in by_id:
            answers.late[node] = "it answered what it was asked in another round"
        else:
            _add(answers, node, reply)
    seen = {*answers.contents, *answers.errors, *answers.malformed}
    answers.late = {node: why for node, why in answers.late.items() if node not in seen}
    answers.missing = sorted(nodes - seen - set(answers.late))
    return answers


def _add(answers: Answers, node: int, reply: Message) -> None:
    if any(node in each for each in (answers.contents, answers.malformed, answers.errors)):
        answers.contents.pop(node, None)
        answers.errors.pop(node, None)
        answers.malformed[node] = "it answered more than once"
    elif reply.has_error() and reply.error.code == UNREADABLE:
        answers.malformed[node] = f"Flower cannot decode it: {short(reply.error.reason or '')}"
    elif reply.has_error() and reply.error.code == MISLABELLED:
        answers.malformed[node] = "it is labelled as another node's answer"
    elif reply.has_error():
        answers.errors[node] = f"error {reply.error.code}: {short(reply.error.reason or '')}"
    elif not reply.has_content() or not isinstance(reply.content, RecordDict):
        answers.malformed[node] = "it sent no records"
    else:
        answers.contents[node] = reply.content
