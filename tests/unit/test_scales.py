"""GAS where Byzantine clients have very different scales: what breaks, and the remedies."""

import numpy as np
import pytest
import torch

import outvote as ov
from outvote.rules.aggregate import Batch, aggregate

# Rule inside, clients, and the rows of the Byzantine ones, every entry alike.
BREAKS = [
    ("rfa", 15, (1e38, 1e35, 1e32), 1e30),
    ("dnc", 11, (1e38, 1e35, 1e32), 1e30),
    ("bulyan", 5, (100.0, 30.0), 10.0),
]
REMEDIES = [
    "norm-filter(gas({}))",
    "norm-filter(gas({}), factor=1)",
    "clip(gas({}), max_norm=honest)",
    "clip(gas({}), max_norm=adaptive)",
]


def rows_of(num_clients, scales, dim=1000, seed=0):
    honest = np.random.default_rng(seed).normal(size=(num_clients - len(scales), dim)) + 1
    return np.concatenate([np.outer(scales, np.ones(dim)), honest]), honest


@pytest.mark.parametrize(("inside", "num_clients", "scales", "moved"), BREAKS)
def test_gas_is_misled_by_clients_of_many_scales(inside, num_clients, scales, moved):
    """The definition of GAS, which stays; if this fails, the remedies are not needed any more."""
    rows, _ = rows_of(num_clients, scales)
    update = ov.make_rule(f"gas({inside})").inspect(rows, num_byzantine=len(scales), seed=1).update
    assert np.abs(update).max() > moved


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("remedy", REMEDIES)
@pytest.mark.parametrize(("inside", "num_clients", "scales", "moved"), BREAKS)
def test_remedies_keep_the_update_near_the_honest(
    inside, num_clients, scales, moved, remedy, dtype
):
    rows, honest = rows_of(num_clients, scales)
    rule = ov.make_rule(remedy.format(inside))
    update = rule.inspect(rows.astype(dtype), num_byzantine=len(scales), seed=1).update
    far = np.linalg.norm(update - honest.mean(axis=0))
    assert far < np.linalg.norm(honest, axis=1).max()
    if "norm-filter" in remedy and "factor" not in remedy:
        np.testing.assert_allclose(update, honest.mean(axis=0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("inside", ["rfa", "dnc"])
def test_clipping_inside_gas_helps_within_the_limit_of_the_rule_inside(inside):
    rows, honest = rows_of(15, (1e38, 1e35, 1e32))
    rule = ov.make_rule(f"gas(clip({inside}, max_norm=honest))")
    update = rule.inspect(rows, num_byzantine=3, seed=1).update
    np.testing.assert_allclose(update, honest.mean(axis=0), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("text", ["gas(multi-krum)", "gas(dnc)", "trimmed-mean", "krum"])
def test_a_filter_that_drops_nobody_is_the_rule_inside_to_the_last_bit(text):
    rows = np.random.default_rng(1).normal(size=(11, 2000)) + 0.1
    info = {"num_byzantine": 3, "seed": 5}
    plain = ov.make_rule(text).inspect(rows, **info)
    found = ov.make_rule(f"norm-filter({text})").inspect(rows, **info)
    assert np.array_equal(found.update, plain.update)
    assert np.array_equal(found.scores, plain.scores)
    assert np.array_equal(found.weights, plain.weights)


def test_a_filter_drops_at_most_f_and_counts_each_as_one():
    rows, honest = rows_of(12, (1e6, 1e5, 1e4), dim=30)
    found = ov.make_rule("norm-filter(trimmed-mean)").inspect(rows, num_byzantine=4, seed=0)
    assert found.dropped == [0, 1, 2]
    wanted = ov.TrimmedMean()(honest, num_byzantine=1)
    np.testing.assert_allclose(found.update, wanted, rtol=1e-12)
    # With f = 2 the third is the longest that is left to be usual.
    found = ov.make_rule("norm-filter(trimmed-mean)").inspect(rows, num_byzantine=2, seed=0)
    assert set(found.dropped) == {0, 1}
    assert found.scores[:2].min() > found.scores[2:].max()


def test_runs_are_filtered_each_by_itself():
    many, _ = rows_of(11, (1e6, 1e3), dim=200)
    few, _ = rows_of(11, (), dim=200, seed=3)
    rule = ov.make_rule("norm-filter(gas(median, num_groups=10))")
    runs = torch.from_numpy(np.stack([many, few, many[::-1].copy()]))
    found = aggregate(rule, Batch(gradients=runs, num_byzantine=[2, 2, 2], seeds=[4, 5, 6]))
    for k in range(3):
        alone = rule.inspect(runs[k].numpy(), num_byzantine=2, seed=4 + k)
        np.testing.assert_allclose(found.vector[k].numpy(), alone.update, rtol=1e-12)
        np.testing.assert_allclose(found.weights[k].numpy(), alone.weights, rtol=1e-12)
        np.testing.assert_allclose(found.scores[k].numpy(), alone.scores, rtol=1e-9)


def test_a_filter_weighs_who_is_left_by_their_counts():
    rows, honest = rows_of(8, (1e6,), dim=5)
    counts = np.array([10**9, 3, 4, 5, 4, 3, 5, 4])
    rule = ov.make_rule("norm-filter(multi-krum)")
    found = rule.inspect(rows, num_byzantine=1, sample_counts=counts)
    np.testing.assert_allclose(found.update, counts[1:] @ honest / counts[1:].sum(), rtol=1e-12)


def test_the_verdict_notes_a_lowered_inner_number():
    rows = np.random.default_rng(0).normal(size=(5, 8))
    found = ov.GAS(ov.Bulyan(), num_groups=2).inspect(rows, num_byzantine=2, seed=0)
    note = "gas: bulyan tolerates 0 Byzantine of 5 clients; inside it assumed 0 instead of 2"
    assert note in found.notes
    assert found.base_num_byzantine == 0
    within = ov.GAS(ov.Median(), num_groups=2).inspect(rows, num_byzantine=2, seed=0)
    assert within.notes == ()


@pytest.mark.parametrize("factor", [0.5, float("nan"), float("inf")])
def test_a_factor_that_drops_usual_gradients_is_refused(factor):
    with pytest.raises(ValueError, match="norm-filter: factor must be at least 1 and finite"):
        ov.NormFilter(ov.Median(), factor=factor)


def test_scores_of_the_dropped_are_finite_where_all_others_agree():
    rows = np.array([[1e38], [1e38], [1e38], [0.0]])
    verdict = ov.make_rule("norm-filter(gas(rfa, num_groups=3))").inspect(
        rows, num_byzantine=3, seed=0, when_too_many="lower"
    )
    assert np.isfinite(verdict.scores).all()
    assert verdict.scores[:3].min() > verdict.scores[3]
