"""Whose reply is whose, who is missing, and who is late."""

from threading import Event
from time import monotonic

import numpy as np
import pytest
from flwr.app import Array, ConfigRecord, Message
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
from outvote.results.audit_log import read_audit

MODEL = {"w": np.zeros((3, 4), np.float32), "b": np.zeros(2, np.float32)}
NODES = range(100, 107)


def test_each_reply_is_that_of_the_node_that_was_asked(tmp_path):
    """Second replies, errors, labels and answers to other rounds are laid at the right door."""
    strategy = RobustStrategy("median", num_byzantine=0, audit_dir=tmp_path)
    grid = HandMadeGrid(NODES, lambda message: None)
    old = strategy.configure_train(1, record_of(MODEL), ConfigRecord(), grid)
    grid.push_messages(old)
    strategy.aggregate_train(1, [])
    messages = strategy.configure_train(2, record_of(MODEL), ConfigRecord(), grid)
    grid.push_messages(messages)
    fine = [Message(content_of(honest(100, MODEL)), reply_to=each) for each in messages]
    no_records = Message(content_of(MODEL), reply_to=messages[4])
    no_records.__dict__["_content"] = Array(np.zeros(3))
    replies = [
        fine[0],
        *(fine[1], fine[1]),
        *(error_reply(messages[2], "gone\n" * 100), fine[2]),
        error_reply(messages[3]),
        no_records,
        Message(content_of(MODEL), reply_to=old[5]),
        labelled(fine[6], 999),  # By whom is not known: nobody is blamed.
        labelled(Message(content_of(MODEL), reply_to=messages[6]), 100),
    ]
    strategy.aggregate_train(2, replies)
    strategy.close()
    standings = [each.standing for each in read_audit(tmp_path)[1].clients]
    assert standings == [
        *("aggregated", "malformed", "malformed", "error", "malformed", "late", "missing")
    ]


def labelled(reply, source):
    """The label on what a node sends is written by that node; the SuperLink checks a copy."""
    reply.metadata.__dict__["_src_node_id"] = source
    return reply


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
    def pull_messages(keys):
        raise ConnectionError("the network is down")

    grid = HandMadeGrid(NODES, respond_with("none", []))
    grid.pull_messages = pull_messages
    strategy = RobustStrategy("median", num_byzantine=1, audit_dir=None)
    with pytest.raises(ConnectionError):
        strategy.start(grid, record_of(MODEL), num_rounds=1)


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
