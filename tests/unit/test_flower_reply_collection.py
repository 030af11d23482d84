"""Whose reply is whose, who is missing, and who is late."""

from threading import Event
from time import monotonic

import numpy as np
import pytest
from flwr.app import Array, ConfigRecord, Message, RecordDict
from flwr.serverapp.strategy import FedMedian

from bad_replies import (
    HandMadeGrid,
    arrays_of,
    content_of,
    error_reply,
    honest,
    record_of,
    respond_with,
    run_round,
)
from outvote.flower import RobustStrategy
from outvote.flower.reply_collection import send_and_receive, sort_replies
from outvote.results.audit_log import read_audit

MODEL = {"w": np.zeros((3, 4), np.float32), "b": np.zeros(2, np.float32)}
NODES = range(100, 107)


def asked(num_nodes=3):
    grid = HandMadeGrid(range(num_nodes), lambda message: None)
    content = RecordDict({"arrays": record_of(MODEL)})
    messages = [Message(content, node, "train") for node in range(100, 100 + num_nodes)]
    grid.push_messages(messages)
    return messages


def test_an_error_is_laid_at_the_door_of_the_node_that_was_asked():
    messages = asked()
    answers = sort_replies(messages, [error_reply(messages[1], "it\nis\ngone" * 100)])
    assert list(answers.errors) == [101]
    assert answers.errors[101].startswith("error 3: 'it\\nis")
    assert len(answers.errors[101]) < 100
    assert answers.missing == [100, 102]


def test_an_error_about_an_unknown_message_is_nobodys():
    messages, unknown = asked(), asked()
    unknown[0].metadata.__dict__["_message_id"] = "unknown"
    answers = sort_replies(messages, [error_reply(unknown[0])])
    assert answers.missing == [100, 101, 102]
    assert not answers.errors
    assert not answers.malformed


def test_second_replies_do_not_count():
    messages = asked()
    twice = Message(content_of(MODEL), reply_to=messages[1])
    fine = Message(content_of(MODEL), reply_to=messages[2])
    answers = sort_replies(messages, [twice, twice, fine])
    assert answers.malformed == {101: "it answered more than once"}
    assert list(answers.contents) == [102]
    assert answers.missing == [100]


def test_an_error_and_a_reply_are_more_than_one_reply():
    messages = asked()
    fine = Message(content_of(MODEL), reply_to=messages[1])
    for replies in ([error_reply(messages[1]), fine], [fine, error_reply(messages[1])]):
        answers = sort_replies(messages, replies)
        assert (list(answers.malformed), answers.contents, answers.errors) == ([101], {}, {})


def labelled(reply, source):
    """The label on what a node sends is written by that node; the SuperLink checks a copy."""
    reply.metadata.__dict__["_src_node_id"] = source
    return reply


def test_a_label_blames_nobody_where_it_is_not_known_who_wrote_it():
    messages = asked()
    own = Message(content_of(MODEL), reply_to=messages[0])
    forged = labelled(Message(content_of(MODEL), reply_to=messages[1]), 100)
    stranger = labelled(Message(content_of(MODEL), reply_to=messages[2]), 999)
    for replies in ([own, forged, stranger], [stranger, forged, own]):
        answers = sort_replies(messages, replies)
        assert list(answers.contents) == [100]
        assert answers.malformed == {}
        assert answers.missing == [101, 102]


@pytest.mark.parametrize("what", ["sender", "question"])
def test_nobody_can_be_made_to_look_bad_by_a_label(what, tmp_path):
    seen = {}

    def respond(message):
        node = message.metadata.dst_node_id
        seen[node] = message.metadata.message_id
        reply = Message(content_of(honest(node, MODEL)), reply_to=message)
        if node == 104:
            labelled(reply, 103)
            if what == "question":
                reply.metadata.__dict__["_reply_to_message_id"] = seen[103]
        return reply

    strategy = RobustStrategy("median", num_byzantine=1, audit_dir=tmp_path)
    strategy.start(HandMadeGrid(NODES, respond), record_of(MODEL), num_rounds=1)
    (entry,) = read_audit(tmp_path)
    (bad,) = [each for each in entry.clients if each.standing != "aggregated"]
    assert (bad.client, bad.standing) == ("104", "malformed")
    assert bad.reason == "it is labelled as another node's reply"


def test_a_reply_that_is_something_else_than_records_is_malformed():
    messages = asked()
    replies = [Message(content_of(MODEL), reply_to=message) for message in messages]
    replies[1].__dict__["_content"] = Array(np.zeros(3))
    answers = sort_replies(messages, replies)
    assert answers.malformed == {101: "it sent no records"}


def test_a_reply_to_an_earlier_round_is_late():
    before, messages = asked(), asked()
    before[0].metadata.__dict__["_message_id"] = "of-an-earlier-round"
    answers = sort_replies(messages, [Message(content_of(MODEL), reply_to=before[0])])
    assert list(answers.late) == [100]
    assert answers.missing == [101, 102]


def test_replies_that_come_after_their_round_are_logged_as_late_of_that_round(tmp_path):
    slow = {}

    def respond(message):
        node = message.metadata.dst_node_id
        reply = Message(content_of(honest(node, MODEL)), reply_to=message)
        if node in (101, 102) and not slow.get("over"):
            if node == 101:
                slow[message.metadata.message_id] = reply
            return None
        return reply

    grid = HandMadeGrid(NODES, respond)
    strategy = RobustStrategy("median", num_byzantine=1, audit_dir=tmp_path)
    model, _ = run_round(strategy, grid, record_of(MODEL), 1)
    (entry,) = read_audit(tmp_path)
    assert [each.client for each in entry.clients if each.standing == "missing"] == ["101", "102"]
    grid.mail.update(slow)
    slow["over"] = True
    run_round(strategy, grid, model, 2)
    strategy.close()
    first, second = read_audit(tmp_path)
    standings = {each.client: each.standing for each in first.clients}
    assert (standings["101"], standings["102"], standings["103"]) == (
        "late",
        "missing",
        "aggregated",
    )
    assert {each.standing for each in second.clients} == {"aggregated"}


@pytest.mark.parametrize(("num_rounds", "standing"), [(3, "late"), (13, "missing")])
def test_a_late_reply_is_looked_for_over_several_rounds(num_rounds, standing, tmp_path):
    slow = {}

    def respond(message):
        reply = Message(content_of(honest(message.metadata.dst_node_id, MODEL)), reply_to=message)
        if message.metadata.dst_node_id == 101 and len(slow) < num_rounds - 1:
            slow[message.metadata.message_id] = reply
            return None
        return reply

    grid = HandMadeGrid(NODES, respond)
    strategy = RobustStrategy("median", num_byzantine=1, audit_dir=tmp_path)
    for number in range(1, num_rounds + 1):
        if number == num_rounds:
            first = next(iter(slow))
            grid.mail[first] = slow[first]
        run_round(strategy, grid, record_of(MODEL), number)
    strategy.close()
    assert [each.standing for each in read_audit(tmp_path)[0].clients][1] == standing


def test_a_round_with_many_late_replies_is_logged_again_once(tmp_path):
    slow = {}

    def respond(message):
        node = message.metadata.dst_node_id
        reply = Message(content_of(honest(node, MODEL)), reply_to=message)
        if node < 104 and not slow.get("over"):
            slow[message.metadata.message_id] = reply
            return None
        return reply

    grid = HandMadeGrid(NODES, respond)
    strategy = RobustStrategy("median", num_byzantine=1, audit_dir=tmp_path)
    model, _ = run_round(strategy, grid, record_of(MODEL), 1)
    grid.mail.update(slow)
    slow["over"] = True
    run_round(strategy, grid, model, 2)
    strategy.close()
    assert len((strategy.run_dir / "audit.jsonl").read_text().splitlines()) == 3
    assert [each.standing for each in read_audit(tmp_path)[0].clients][:4] == ["late"] * 4


class StrictGrid(HandMadeGrid):
    """Takes messages apart and puts them together again, as the way over the network does."""

    def pull_messages(self, message_ids):
        return [self.sent_over(reply) for reply in super().pull_messages(message_ids)]

    def sent_over(self, reply):
        if reply.has_content():
            for array in reply.content["arrays"].values():
                Array.inflate(array.deflate(), array.children)
        return reply


def test_a_reply_that_flower_cannot_decode_harms_only_who_sent_it(tmp_path):
    def respond(message):
        node = message.metadata.dst_node_id
        content = content_of(honest(node, MODEL))
        if node == 104:
            content["arrays"]["w"].shape = ("seven",)
        return Message(content, reply_to=message)

    grid = StrictGrid(NODES, respond)
    with pytest.raises(TypeError, match="Invalid arguments for Array"):
        FedMedian().start(grid, record_of(MODEL), num_rounds=1)
    strategy = RobustStrategy("median", num_byzantine=1, audit_dir=tmp_path)
    strategy.start(grid, record_of(MODEL), num_rounds=2)
    for entry in read_audit(tmp_path):
        assert entry.is_updated
        (bad,) = [each for each in entry.clients if each.standing != "aggregated"]
        assert (bad.client, bad.standing) == ("104", "malformed")
        assert bad.reason.startswith("Flower cannot decode it: 'TypeError: Invalid arguments")


def test_who_does_not_answer_is_waited_for_until_the_time_is_over(monkeypatch):
    monkeypatch.setattr("outvote.flower.reply_collection.SECONDS_BETWEEN_PULLS", 0.01)
    grid = HandMadeGrid(NODES, respond_with("none", []))
    messages = asked()
    slow = []

    def pull_messages(keys):
        slow.append(keys)
        return HandMadeGrid.pull_messages(grid, keys) if len(slow) > 10 else []

    grid.pull_messages = pull_messages
    assert len(send_and_receive(grid, messages, timeout=60)) == 3
    assert len(slow) == 13
    grid.respond = lambda message: None
    assert send_and_receive(grid, asked(), timeout=0.05) == []
    assert send_and_receive(grid, [], timeout=60) == []


def test_who_announces_a_reply_and_does_not_send_it_holds_up_nobody(monkeypatch, tmp_path):
    monkeypatch.setattr("outvote.flower.reply_collection.SECONDS_BETWEEN_PULLS", 0.01)
    monkeypatch.setattr("outvote.flower.reply_collection.SECONDS_FOR_A_PULL", 0.05)
    grid = HandMadeGrid(NODES, respond_with("none", []))
    is_over, stalled = Event(), []

    def pull_messages(keys):
        found = HandMadeGrid.pull_messages(grid, keys)
        if found and found[0].metadata.src_node_id in (101, 102):
            stalled.append(found[0].metadata.src_node_id)
            is_over.wait(60)
        return found

    grid.pull_messages = pull_messages
    strategy = RobustStrategy("median", num_byzantine=1, audit_dir=tmp_path, fraction_evaluate=0)
    try:
        start = monotonic()
        strategy.start(grid, record_of(MODEL), num_rounds=1, timeout=0.5)
        assert monotonic() - start < 20
    finally:
        is_over.set()
    assert stalled == [101, 102]
    (entry,) = read_audit(tmp_path)
    standings = [each.standing for each in entry.clients]
    assert standings == ["aggregated", "missing", "missing", *["aggregated"] * 4]


def test_a_broken_network_is_not_blamed_on_a_node():
    grid = HandMadeGrid(NODES, respond_with("none", []))

    def pull_messages(keys):
        raise ConnectionError("the network is down")

    grid.pull_messages = pull_messages
    with pytest.raises(ConnectionError):
        send_and_receive(grid, asked(), timeout=60)


def test_the_order_of_arrival_does_not_matter():
    def model_after(order):
        strategy = RobustStrategy("gas(multi-krum)", num_byzantine=1, audit_dir=None, seed=3)
        grid = HandMadeGrid(NODES, respond_with("big", [103]))
        messages = strategy.configure_train(1, record_of(MODEL), ConfigRecord(), grid)
        replies = grid.send_and_receive(messages)
        return arrays_of(strategy.aggregate_train(1, [replies[k] for k in order])[0])

    first, second = model_after(range(7)), model_after([4, 1, 6, 0, 2, 5, 3])
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name])
