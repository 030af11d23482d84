"""All kinds of replies of the soak (tools/soak_flower.py), each in one round in memory."""

import io
import sys
import time

import numpy as np
import pytest
from flwr.app import Message

import soak_flower
from bad_replies import HandMadeGrid, arrays_of, content_of, record_of, run_round
from outvote.flower import RobustStrategy
from outvote.results.audit_log import read_audit
from soak_flower import HARMLESS, KINDS, new_model

NODES = range(100, 108)
HOSTILE = (100, 101)
ENDS = ("exception", "exit", "process ends", "process is killed")
"""Kinds that end a process; Flower makes an error reply of them."""
USABLE = (
    *("1e20", "largest float", "smallest float", "zeros", "model as sent", "reversed"),
    *("reversed, ten times", "a million times", "noise", "much noise"),
    *("noise of the step's size", "all ones", "shuffled", "one huge value", "half huge"),
    *("Fortran order", "no metrics", "other key", "5 MB of settings", "no examples"),
    *("-99 examples", "10**15 examples", "nan examples", "inf examples", "5e-324 examples"),
    *("a list of examples", "nan loss", "10,000 metrics", "metric of a million", "odd metric"),
    *("5 MB of output", "late", "stall"),
)
"""A rule without counts gets the arrays of these, and outvotes those that are far."""


def honest(node, model):
    draw = np.random.default_rng(node)
    return {name: draw.normal(1, 0.1, a.shape).astype("f4") for name, a in model.items()}


def one_round(kind, folder):
    """Run a round in which two nodes send one kind; return the model and the clients' records."""

    def respond(message):
        node, sent = message.metadata.dst_node_id, arrays_of(message.content["arrays"])
        trained = honest(node, sent)
        content = KINDS[kind](trained, sent) if node in HOSTILE else content_of(trained)
        return Message(content, reply_to=message)

    strategy = RobustStrategy("gas(median)", num_byzantine=2, audit_dir=folder, seed=0)
    model, _ = run_round(strategy, HandMadeGrid(NODES, respond), record_of(new_model(20)))
    strategy.close()
    (line,) = read_audit(folder)
    return arrays_of(model), {int(each.client): each for each in line.clients}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ENDS])
def test_no_kind_of_reply_of_two_nodes_spoils_a_round(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda _: None)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    model, clients = one_round(kind, tmp_path / "audit")
    assert all(np.abs(array - 1).max() < 0.5 for array in model.values())
    for node in NODES:
        is_used = node not in HOSTILE or kind in USABLE
        assert clients[node].standing == ("aggregated" if is_used else "malformed")
        assert len(clients[node].reason) < 500
    assert all(clients[node].reason for node in HOSTILE if kind not in USABLE)


@pytest.mark.parametrize(
    ("kind", "note"),
    [
        ("10,000 metrics", "it sent 10,002 metrics"),
        ("metric of a million", "its 'many' has 1,000,000 values"),
        ("odd metric", "a metric has a name of 50,000 characters"),
        ("5 MB of settings", "it sent 5,000,000 bytes of settings"),
    ],
)
def test_far_too_much_is_noted(kind, note, tmp_path):
    _, clients = one_round(kind, tmp_path / "audit")
    assert note in clients[HOSTILE[0]].reason
    assert not clients[NODES[-1]].reason.endswith(note)


def test_the_kinds_are_many_and_the_lists_are_of_them():
    assert len(KINDS) >= 69
    assert set(KINDS) >= {*USABLE, *HARMLESS, *ENDS}


def test_the_soak_finds_memory_that_grows():
    flat = [{"run": 0, "superlink": 100 + k % 2, "server": 300.0} for k in range(30)]
    assert soak_flower._growth(flat) == {"superlink": 0.0, "server": 0.0}
    grown = [row | {"server": 300.0 + 10 * k} for k, row in enumerate(flat)]
    assert soak_flower._growth(grown)["server"] >= 90


def test_the_soak_finds_replies_that_are_not_named():
    reply = {"kind": "zeros", "kept": True, "reason": "", "distance": 1.0}
    assert not soak_flower._is_named(reply)
    for change in ({"kept": False}, {"reason": "x"}, {"distance": 9.0}, {"kind": "late"}):
        assert soak_flower._is_named(reply | change)
