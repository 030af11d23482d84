"""Exclusion: which nodes are excluded, on what evidence, and when they may come back."""

import numpy as np
import pytest

from bad_replies import HandMadeGrid, content_of, record_of, respond_with, run_round
from flower_small import grid_of
from outvote.flower import RobustStrategy
from outvote.flower.exclusion import Exclusions
from outvote.flower.sequential_test import SequentialTest, relative_distances
from outvote.results.audit_log import read_audit

MODEL = {"w": np.zeros((3, 4), np.float32)}
NODES = tuple(range(100, 112))


def out(exclusions, round_, online=NODES, wanted=12, num_byzantine=2, tolerates=None):
    return exclusions.excluded(
        round_, online, wanted, num_byzantine, tolerates or (lambda num_nodes: num_nodes)
    )


def unusual(unlike, factor, forge=None, dim=400):
    """Nodes with data of their own; some deviate `factor` times as much, some forge their reply.

    Half of a node's deviation stays the same in all rounds.
    """
    draw = np.random.default_rng(0)
    own = {node: draw.normal(size=dim) for node in range(100, 111)}

    def send(node, model):
        scale = factor if node in unlike else 1.0
        deviation = (own[node] + draw.normal(size=dim)) / np.sqrt(2 * dim)
        update = 1 / np.sqrt(dim) + scale * deviation
        if forge is not None and node >= 109:
            update = forge(update)
        return content_of({"w": model["w"] + update.astype(np.float32)})

    return grid_of(send, range(100, 111))


def excluded_in(folder):
    return {
        int(each.client)
        for entry in read_audit(folder)
        for each in entry.clients
        if each.standing == "excluded"
    }


def run_rounds(folder, grid, num_rounds, rule="multi-krum", **settings):
    strategy = RobustStrategy(
        rule, num_byzantine=2, audit_dir=folder, fraction_evaluate=0.0, **settings
    )
    model = {"w": np.zeros(400, np.float32)}
    strategy.start(grid, record_of(model), num_rounds=num_rounds)


@pytest.mark.parametrize("rule", ["multi-krum", "gas(multi-krum)"])
def test_outvoted_honest_nodes_are_not_excluded_by_exclude_after(rule, tmp_path):
    grid = unusual((100, 101, 102), 1.5)
    run_rounds(tmp_path, grid, 12, rule, exclude_after=3)
    dropped = [e.client for entry in read_audit(tmp_path) for e in entry.clients if not e.kept]
    assert set(dropped) == {"100", "101", "102"}  # The same honest ones in every round.
    assert excluded_in(tmp_path) == set()


@pytest.mark.parametrize("rule", ["multi-krum", "gas(multi-krum)", "bulyan"])
def test_the_sequential_test_excludes_no_honest_node_that_is_one_and_a_half_times_as_unlike(
    rule, tmp_path
):
    run_rounds(tmp_path, unusual((100, 101, 102), 1.5), 40, rule, exclude_outvoted=0.01)
    assert excluded_in(tmp_path) == set()


def test_the_sequential_test_excludes_gross_attackers_and_lets_them_come_back(tmp_path):
    grid = unusual((100, 101, 102), 1.5, forge=lambda update: -10 * update)
    run_rounds(tmp_path, grid, 32, exclude_outvoted=0.01)
    assert excluded_in(tmp_path) == {109, 110}
    is_asked = [109 in asked for asked in grid.asked]
    # Ten rounds of evidence, twenty of exclusion, and another chance.
    assert is_asked == [True] * 10 + [False] * 20 + [True] * 2
    reasons = {e.reason for e in read_audit(tmp_path)[12].clients if e.standing == "excluded"}
    assert reasons == {
        "excluded after round 10: outvoted and far from the others in 10 of 10 rounds"
    }


def test_being_outvoted_excludes_nobody_by_default(tmp_path):
    grid = unusual((), 1.0, forge=lambda update: -10 * update)
    run_rounds(tmp_path, grid, 30, exclude_after=1)
    assert excluded_in(tmp_path) == set()


def test_the_log_has_the_distance_of_each_update_over_the_median(tmp_path):
    run_rounds(tmp_path, unusual((100,), 3.0), 1)
    by_node = {int(each.client): each.distance for each in read_audit(tmp_path)[0].clients}
    assert np.median(list(by_node.values())) == pytest.approx(1)
    assert by_node[100] == pytest.approx(3, rel=0.1)
    assert max(value for node, value in by_node.items() if node != 100) < 1.3


def test_distances_are_to_the_average_of_the_others():
    rows = np.random.default_rng(0).normal(size=(5, 7)) + 2
    weights = np.array([0.25, 0.25, 0.25, 0.25, 0])
    update = weights @ rows
    norms, length = np.linalg.norm(rows, axis=1), np.linalg.norm(update)
    cosines = (rows @ update / norms / length).tolist()
    others = [np.delete(rows[:4], k, axis=0).mean(axis=0) for k in range(4)]
    expected = [np.linalg.norm(row - o) for row, o in zip(rows, [*others, update], strict=True)]
    found = relative_distances(norms.tolist(), cosines, weights.tolist(), float(length))
    np.testing.assert_allclose(found, np.array(expected) / np.median(expected), rtol=1e-9)


@pytest.mark.parametrize("rate", [0.1, 0.02])
def test_under_the_null_hypothesis_the_test_rejects_at_most_at_its_rate(rate):
    draw = np.random.default_rng(1)
    num_rejected, num_nodes = 0, 1500
    for coins in draw.random((num_nodes, 200)) < 0.5:
        test = SequentialTest()
        for coin in coins:
            test.add(is_against=bool(coin))
            if test.wealth * rate >= 1:
                num_rejected += 1
                break
    assert num_rejected / num_nodes <= rate + 3 * np.sqrt(rate / num_nodes)


def test_the_wealth_of_a_fair_coin_is_one_on_average():
    """Exactly, over all ways that ten tosses can end: the capital is neither made nor lost."""

    def mean(test, num_left):
        if num_left == 0:
            return test.wealth
        parts = []
        for is_against in (False, True):
            after = SequentialTest(test.num_rounds, test.num_against, test.capitals)
            after.add(is_against=is_against)
            parts.append(mean(after, num_left - 1))
        return sum(parts) / 2

    assert mean(SequentialTest(), 10) == pytest.approx(1, rel=1e-12)


def outvote(exclusions, node, first, num_rounds):
    """Let rounds count against a node; return the round after them."""
    for round_ in range(first, first + num_rounds):
        exclusions.record(round_, verdicts={node: True, 111: False})
    return first + num_rounds


def test_never_more_are_excluded_than_may_be_byzantine_and_the_worst_go_first():
    exclusions = Exclusions(exclude_after=1, rate=0.1)
    for node in (101, 102, 103):
        outvote(exclusions, node, 1, 20)
    exclusions.record(21, malformed=[104])
    assert out(exclusions, 22) == [101, 104]
    assert out(exclusions, 22, num_byzantine=1) == [104]
    assert out(exclusions, 22, num_byzantine=0) == []
    assert out(exclusions, 22, num_byzantine=4) == [101, 102, 103, 104]


def test_nobody_is_excluded_whom_the_rule_needs():
    exclusions = Exclusions(exclude_after=1)
    exclusions.record(1, malformed=[101, 102])

    def like_krum(num_nodes):
        return (num_nodes - 3) // 2

    assert out(exclusions, 2, NODES[:8], 8, 2, like_krum) == [101]
    assert out(exclusions, 2, NODES[:7], 7, 2, like_krum) == []
    # Enough are left for the sample.
    assert out(exclusions, 2, NODES[:9], 7, 2, like_krum) == [101, 102]


def test_the_evidence_survives_a_restart():
    exclusions = Exclusions(exclude_after=2, probation=9, rate=0.01)
    for round_ in (1, 2):
        exclusions.record(round_, malformed=[102])
    outvote(exclusions, 101, 1, 10)
    outvote(exclusions, 103, 1, 9)
    again = Exclusions(exclude_after=2, probation=9, rate=0.01)
    again.from_notes(exclusions.to_notes())
    assert out(again, 11) == out(exclusions, 11) == [101, 102]
    assert [again.evidence(node) for node in (101, 102)] == [
        exclusions.evidence(node) for node in (101, 102)
    ]
    outvote(again, 103, 10, 1)
    assert out(again, 11, num_byzantine=3) == [101, 102, 103]


def test_exclusion_does_not_lower_the_number_of_byzantine_nodes(tmp_path):
    grid = HandMadeGrid(range(100, 130), respond_with("shape", range(100, 106)))
    strategy = RobustStrategy(
        "multi-krum", byzantine_fraction=0.2, audit_dir=tmp_path, exclude_after=1
    )
    for number in (1, 2):
        run_round(strategy, grid, record_of(MODEL), number)
    strategy.close()
    assert len(grid.asked[1]) == 24
    assert [entry.num_byzantine for entry in read_audit(tmp_path)] == [6, 6]


def test_the_strategy_stops_asking_and_logs_why(tmp_path):
    grid = HandMadeGrid(NODES, respond_with("shape", [104]))
    strategy = RobustStrategy(
        "gas(multi-krum)", num_byzantine=1, audit_dir=tmp_path, exclude_after=2, probation=2
    )
    model = record_of(MODEL)
    for number in range(1, 6):
        run_round(strategy, grid, model, number)
    strategy.close()
    assert [104 in asked for asked in grid.asked] == [True, True, False, False, True]
    entry = read_audit(tmp_path)[2]
    (out_,) = [each for each in entry.clients if each.standing == "excluded"]
    assert out_.client == "104"
    assert out_.reason == "excluded after round 2: malformed replies in round 1, round 2"


def test_rounds_without_a_verdict_are_no_evidence(tmp_path):
    """Krum keeps one node of eleven: being dropped by it is no evidence."""
    grid = unusual((), 1.0, forge=lambda update: -10 * update)
    run_rounds(tmp_path, grid, 30, "krum", exclude_outvoted=0.1)
    assert excluded_in(tmp_path) == set()
