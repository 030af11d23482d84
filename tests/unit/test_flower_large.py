"""Models too large for a matrix of updates: replies are aggregated some coordinates at a time."""

import tracemalloc

import numpy as np
import pytest

from bad_replies import arrays_of, content_of, record_of
from flower_small import grid_of, strategy_of
from outvote.files import streaming
from outvote.flower import reply_checks
from outvote.results.audit_log import read_audit

LARGE = {
    "w": np.zeros((40, 50), np.float32),
    "b": np.zeros(300, np.float16),
    "n": np.zeros((), np.int64),
    "e": np.zeros(0, np.float32),
}


def send(node, model):
    rng = np.random.default_rng(node)
    sent = {name: array + rng.normal(size=array.shape) for name, array in model.items()}
    sent["w"][:, 3] += 5 * (node == 109)
    if node == 104:
        sent["w"][7, 7] = np.nan
    return {name: np.asarray(sent[name]).astype(array.dtype) for name, array in model.items()}


def run(rule, folder):
    strategy = strategy_of(rule, audit_dir=folder, seed=3)
    result = strategy.start(grid_of(send), record_of(LARGE), num_rounds=2)
    return arrays_of(result.arrays), read_audit(folder)


@pytest.mark.parametrize(
    "rule",
    ["gas(multi-krum, num_groups=50)", "gas(median, split=by-layer)", "bulyan", "trimmed-mean"],
)
def test_large_models_have_the_rounds_that_small_ones_have(rule, tmp_path, monkeypatch):
    wanted, rounds = run(rule, tmp_path / "matrix")
    monkeypatch.setattr(reply_checks, "NUM_COPIES", 1e9)
    monkeypatch.setattr(reply_checks, "_subtract", None)
    monkeypatch.setattr(streaming, "LARGEST_CHUNK", 700)
    monkeypatch.setattr(streaming, "SMALLEST_CHUNK", 700)
    found, streamed = run(rule, tmp_path / "streamed")
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-3, atol=1e-5)
    assert len(rounds) == len(streamed) == 2
    for one, other in zip(rounds, streamed, strict=True):
        assert [(each.client, each.kept, each.reason) for each in one.clients] == [
            (each.client, each.kept, each.reason) for each in other.clients
        ]
        for key in ("score", "norm", "cosine", "distance"):
            numbers = [[getattr(each, key) for each in log.clients] for log in (one, other)]
            are_known = [[number is not None for number in own] for own in numbers]
            assert are_known[0] == are_known[1]
            known = [[number for number in own if number is not None] for own in numbers]
            np.testing.assert_allclose(known[1], known[0], rtol=1e-4, atol=1e-6)


def test_a_rule_with_a_state_gets_the_matrix(monkeypatch):
    monkeypatch.setattr(reply_checks, "NUM_COPIES", 1e9)
    strategy = strategy_of("centered-clipping")
    assert strategy.settings.max_bytes is None
    strategy.start(grid_of(send), record_of(LARGE), num_rounds=1)
    assert strategy.state.rule_state is not None


def test_memory_is_checked_at_once():
    with pytest.raises(ValueError, match="max_memory must be"):
        strategy_of(max_memory="much")


@pytest.mark.parametrize(("allowed", "is_matrix"), [("2GB", True), ("400MB", False)])
def test_beyond_the_memory_allowed_there_is_no_matrix_of_the_updates(allowed, is_matrix):
    dim, nodes = 3_000_000, range(100, 112)
    sent = content_of({"w": np.random.default_rng(0).random(dim, np.float32)})
    strategy = strategy_of("mean", num_byzantine=0, max_memory=allowed)
    grid = grid_of(lambda node, model: sent, nodes)
    messages = strategy.configure_train(1, record_of({"w": np.zeros(dim, np.float32)}), {}, grid)
    replies = grid.send_and_receive(messages)
    tracemalloc.start()
    try:
        found, _ = strategy.aggregate_train(1, replies)
        _, largest = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    np.testing.assert_allclose(arrays_of(found)["w"], arrays_of(sent["arrays"])["w"], rtol=1e-6)
    # The matrix has 144 MB; the model, the update and the step 12 MB each.
    assert (largest > 144_000_000) == is_matrix
