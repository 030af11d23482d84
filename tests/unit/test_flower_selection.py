"""The strategy samples nodes by their scores in earlier rounds, and never excludes them for it."""

from collections import Counter

import numpy as np
import pytest
from flwr.app import Message

from bad_replies import HandMadeGrid, arrays_of, content_of, error_reply, honest, record_of
from outvote.flower import RobustStrategy
from outvote.results.audit_log import read_audit, read_manifest

MODEL = {"w": np.zeros((3, 4), np.float32)}
NODES = range(100, 120)
FAR = (104, 111)
SETTINGS = {
    "rule": "multi-krum",
    "num_byzantine": 2,
    "seed": 5,
    "fraction_train": 0.5,
    "fraction_evaluate": 0.0,
    "selection": "by-score(floor=0.1, memory=0.5)",
}


def grid_of(change=lambda arrays: {"w": arrays["w"] + 50}):
    """Nodes that are honest but for `FAR`, which send what `change` makes of it."""

    def respond(message):
        node = message.metadata.dst_node_id
        arrays = honest(node, arrays_of(message.content["arrays"]))
        if node in FAR:
            arrays = change(arrays)
        if arrays is None:
            return error_reply(message)
        return Message(content_of(arrays), reply_to=message)

    return HandMadeGrid(NODES, respond)


def asked(grid):
    return Counter(node for nodes in grid.asked for node in nodes)


def run(num_rounds, grid=None, **settings):
    strategy = RobustStrategy(**{"audit_dir": None, **SETTINGS, **settings})
    grid = grid or grid_of()
    strategy.start(grid, record_of(MODEL), num_rounds=num_rounds)
    return strategy, grid


@pytest.mark.parametrize("kind", ["far", pytest.param("nan", marks=pytest.mark.slow)])
def test_nodes_with_high_scores_or_malformed_replies_are_asked_less_often(kind):
    change = {"far": lambda a: {"w": a["w"] + 50}, "nan": lambda a: {"w": a["w"] * np.nan}}[kind]
    _, uniform = run(80, grid_of(change), selection="uniform")
    strategy, grid = run(80, grid_of(change))
    assert all(len(nodes) == 10 for nodes in grid.asked)
    for node in FAR:
        # At least 0.1 of the half of all rounds, which is 4 of 80; usually 40.
        assert 1 <= asked(grid)[node] < 0.5 * asked(uniform)[node]
        assert strategy.state.suspicions[node] > 0.9
    others = [asked(grid)[node] for node in NODES if node not in FAR]
    assert min(others) > 2 * max(asked(grid)[node] for node in FAR)


def test_a_node_that_fails_is_not_suspicious():
    strategy, grid = run(30, grid_of(lambda arrays: None))
    assert not set(FAR) & set(strategy.state.suspicions)
    assert min(asked(grid)[node] for node in FAR) > 5


def test_a_round_that_the_rule_could_not_decide_counts_against_nobody():
    strategy, _ = run(3, num_byzantine=9)
    assert strategy.state.suspicions == {}


def test_without_a_seed_the_draw_is_secret_and_fair():
    _, first = run(10, seed=None)
    _, second = run(10, seed=None)
    assert first.asked != second.asked


def test_the_suspicions_are_kept_across_a_restart(tmp_path):
    whole, expected = run(12, audit_dir=tmp_path / "whole")
    run(5, audit_dir=tmp_path / "parts")
    second = RobustStrategy.resume(tmp_path / "parts")
    assert str(second.settings.selection) == SETTINGS["selection"]
    assert any(each > 0 for each in second.state.suspicions.values())
    grid = grid_of()
    second.start(grid, record_of(MODEL), num_rounds=12)
    assert grid.asked == expected.asked[5:]
    assert second.state.suspicions == whole.state.suspicions
    assert read_manifest(tmp_path / "parts").settings["selection"] == SETTINGS["selection"]
    logs = [read_audit(tmp_path / name) for name in ("whole", "parts")]
    clients = [[(entry.round, entry.clients) for entry in log] for log in logs]
    assert clients[0] == clients[1]


def test_nobody_is_remembered_where_the_choice_is_uniform():
    strategy, _ = run(4, selection="uniform")
    assert strategy.state.suspicions == {}
