"""One bad reply of every kind: the round ends, the model is finite, the node is named."""

import numpy as np
import pytest

from bad_replies import (
    BAD,
    HARMLESS,
    USABLE,
    HandMadeGrid,
    arrays_of,
    record_of,
    respond_with,
    run_round,
)
from outvote.flower import RobustStrategy
from outvote.results.audit_log import read_audit

PAPER = ("multi-krum", "bulyan", "median", "rfa", "dnc", "trimmed-mean")
RULES = ("krum", *PAPER, *(f"gas({rule}, num_groups=8)" for rule in ("krum", *PAPER)))
# Every kind with two rules, and every rule with three kinds; the others are slow tests.
TWO_RULES = ("multi-krum", "gas(median, num_groups=8)")
SOME = ("nan", "big", "error")
BAD_NODE = 104
MODEL = {"w": np.zeros((5, 7), np.float32), "b": np.zeros(3, np.float32)}
# Between 1 and what honest nodes send at most, n = 11.
HONEST = 0.35
# Three steps from the mean do not get away from an update of 1e20; GAS around them does.
MISLED = {("rfa", "big")}


def run(rule, kind, folder, num_nodes):
    grid = HandMadeGrid(range(100, 100 + num_nodes), respond_with(kind, [BAD_NODE]))
    strategy = RobustStrategy(rule, num_byzantine=2, audit_dir=folder, seed=0)
    model, _ = run_round(strategy, grid, record_of(MODEL))
    strategy.close()
    (entry,) = read_audit(folder)
    return model, entry, {each.client: each for each in entry.clients}


@pytest.mark.parametrize(
    ("rule", "kind"),
    [
        pytest.param(
            rule, kind, marks=[pytest.mark.slow] * (rule not in TWO_RULES and kind not in SOME)
        )
        for rule in RULES
        for kind in BAD
    ],
)
def test_one_bad_reply_is_named_and_the_model_is_near_what_honest_nodes_sent(rule, kind, tmp_path):
    model, entry, clients = run(rule, kind, tmp_path, num_nodes=12)
    assert entry.is_updated
    bad = clients.pop(str(BAD_NODE))
    assert all(each.standing == "aggregated" for each in clients.values())
    for name, array in arrays_of(model).items():
        assert array.dtype == MODEL[name].dtype
        assert np.isfinite(array).all()
        if (rule, kind) not in MISLED:
            assert np.abs(array - 1).max() < HONEST
    if kind in USABLE:
        assert bad.standing == "aggregated"
        assert bad.score is not None
    else:
        assert bad.standing == ("error" if kind == "error" else "malformed")
        assert bad.reason
    if kind == "big":
        assert bad.norm == pytest.approx(1e20 * np.sqrt(38), rel=1e-5)
        assert bad.score > max(each.score for each in clients.values())
    elif kind not in HARMLESS:
        assert bad.reason.removeprefix("outvoted").removeprefix("not chosen")


@pytest.mark.parametrize("kind", [kind for kind in BAD if kind not in USABLE])
def test_with_too_few_good_replies_the_model_is_kept_and_the_reason_logged(kind, tmp_path):
    model, entry, clients = run("bulyan", kind, tmp_path, num_nodes=11)
    assert model is None
    assert not entry.is_updated
    assert "10 usable updates are too few" in entry.reason
    assert "at most 1 Byzantine nodes, not 2" in entry.reason
    assert clients[str(BAD_NODE)].standing in ("malformed", "error")


@pytest.mark.parametrize("kind", ["nan", "inf", "shape"])
def test_more_bad_replies_than_assumed_do_not_spoil_the_model(kind, tmp_path):
    nodes = range(100, 111)
    grid = HandMadeGrid(nodes, respond_with(kind, [101, 103, 105, 107]))
    strategy = RobustStrategy("gas(multi-krum)", num_byzantine=2, audit_dir=tmp_path)
    model, _ = run_round(strategy, grid, record_of(MODEL))
    strategy.close()
    assert all(np.abs(array - 1).max() < HONEST for array in arrays_of(model).values())
    (entry,) = read_audit(tmp_path)
    malformed = [each.client for each in entry.clients if each.standing == "malformed"]
    assert malformed == ["101", "103", "105", "107"]
    # A malformed reply may be of a broken honest node: Byzantine ones may be among the others.
    assert entry.num_byzantine == 2
