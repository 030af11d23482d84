"""Every rule, and GAS over every rule, against the plain-loop oracles.

Inputs where rounding would decide (near ties, equal eigenvalues) are left out by `is_clear`;
exact ties that belong to a rule's definition stay in.
"""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import oracles as slow
import outvote as ov
from calling import inspect, update_of
from inputs import FAMILIES, is_clear, make_rows, scale_of, tolerance
from pairs import EVERY_PAIR, PAIRS, assert_agrees, partitions, rounds

FEW = max(20, settings().max_examples // 4)


@EVERY_PAIR
@given(data=st.data())
@settings(max_examples=FEW)
def test_rule_agrees_with_its_oracle(name, data, device):
    pair = PAIRS[name]
    X, f, seed = data.draw(rounds(pair))
    assume(is_clear(lambda X: pair.oracle(X, f), X, seed))
    verdict = inspect(pair.rule, X, device, num_byzantine=f, seed=seed)
    assert_agrees(verdict, pair.oracle(X, f), X, pair.relative)


@pytest.mark.parametrize(
    "name",
    [
        *["median", "median-lower", "trimmed-mean", "meamed", "krum", "multi-krum", "mda"],
        *["bulyan", "bulyan-lower", "bulyan-one-shot"],
    ],
)
@given(n=st.integers(3, 9), d=st.integers(1, 20), seed=st.integers(0, 2**32 - 1), data=st.data())
@settings(max_examples=FEW)
def test_exact_ties_go_to_the_lowest_row(name, n, d, seed, data, device):
    # Sums and squares of small integers are exact however they are computed, so ties are real.
    X = np.random.default_rng(seed).integers(-2, 3, size=(n, d)).astype(np.float64)
    pair = PAIRS[name]
    f = data.draw(st.integers(0, pair.rule.max_byzantine(num_clients=n)))
    verdict = inspect(pair.rule, X, device, num_byzantine=f)
    np.testing.assert_allclose(update_of(verdict), pair.oracle(X, f), rtol=0, atol=1e-12)


def test_the_geometric_median_near_a_client_is_found_despite_a_client_at_1e8(device):
    X = make_rows("one_huge_row", 4, 13, 13)
    expected = slow.geometric_median(X)
    near, there = (
        np.abs(update_of(inspect(rule, X, device, num_byzantine=0)) - expected).max()
        for rule in (ov.GeometricMedian(), ov.GeometricMedian(max_iterations=10_000))
    )
    assert there < 1e-9 < near < 1e-3


@pytest.mark.parametrize("tolerance", [1e-13, 1e-3, 0.1])
@pytest.mark.parametrize("other", ["one_huge_row", "nearly_duplicated", "heterogeneous"])
def test_the_geometric_median_of_a_group_does_not_depend_on_the_other_groups(
    tolerance, other, device
):
    rule = ov.GeometricMedian(tolerance=tolerance)
    for seed in range(8):
        parts = make_rows("normal", 9, 24, seed), make_rows(other, 9, 24, seed)
        alone = [inspect(rule, part, device).scores for part in parts]
        found = inspect(
            ov.GAS(rule, num_groups=2),
            np.concatenate(parts, axis=1),
            device,
            num_byzantine=1,
            groups=[range(24), range(24, 48)],
        )
        np.testing.assert_allclose(found.scores, sum(alone), rtol=1e-9)


# The same inputs in every run: a slow test checks that they are clear.
SIZES = ((5, 40), (8, 100), (9, 7))
NUM_GROUPS = (1, 7, 20)
# The hardest in float32; the others are slow tests.
IN_GROUPS = ("nearly_duplicated", "offset")


@EVERY_PAIR
@pytest.mark.parametrize("family", FAMILIES)
def test_rule_agrees_with_its_oracle_on_float32(name, family, device):
    pair = PAIRS[name]
    for seed, (n, d) in enumerate(SIZES):
        X = make_rows(family, n, d, seed).astype(np.float32)
        f = pair.rule.max_byzantine(num_clients=n)
        exact = X.astype(np.float64)
        verdict = inspect(pair.rule, X, device, num_byzantine=f, seed=seed)
        expected = np.asarray(pair.oracle(exact, f))
        atol = 1e-6 * (np.abs(expected).max() + scale_of(exact))
        np.testing.assert_allclose(update_of(verdict), expected, rtol=0, atol=atol)


def assert_gas_agrees(verdict, pair, X, f, groups, oracle=None):
    f_base = min(f, pair.rule.max_byzantine(num_clients=len(X)))
    update, scores, kept = slow.gas(oracle or pair.oracle, X, groups, f, f_base)
    np.testing.assert_allclose(
        verdict.scores,
        scores,
        rtol=pair.relative,
        atol=tolerance(X, np.median(scores), pair.relative),
    )
    assert verdict.num_groups == len(groups)
    assert verdict.base_num_byzantine == f_base
    assert len(verdict.kept) == max(1, len(X) - f)
    np.testing.assert_allclose(
        update_of(verdict), X[verdict.kept].mean(0), rtol=1e-9, atol=1e-9 * scale_of(X)
    )
    ordered = np.sort(scores)
    if len(kept) < len(X) and ordered[len(kept)] - ordered[len(kept) - 1] > 1e-7 * ordered[-1]:
        assert_agrees(verdict, update, X, pair.relative)


@EVERY_PAIR
@given(data=st.data())
@settings(max_examples=FEW)
def test_gas_agrees_with_its_oracle(name, data, device):
    pair = PAIRS[name]
    rule = ov.GAS(pair.rule, num_groups=3)
    X, f, seed = data.draw(rounds(pair, rule, dims=(1, 10)))
    groups = data.draw(partitions(X.shape[1]))
    f_base = min(f, pair.rule.max_byzantine(num_clients=len(X)))
    assume(all(pair.is_defined(len(X), len(group), f_base) for group in groups))
    assume(is_clear(lambda X: slow.gas(pair.oracle, X, groups, f, f_base)[1], X, seed))
    verdict = inspect(rule, X, device, num_byzantine=f, seed=seed, groups=groups)
    assert_gas_agrees(verdict, pair, X, f, groups)


def gas_inputs(pair, family):
    """The rows of seven clients, two of them Byzantine, their groups, and the result of GAS."""
    f = 2
    f_base = min(f, pair.rule.max_byzantine(num_clients=7))
    for seed, p in enumerate(NUM_GROUPS):
        X = make_rows(family, 7, 60, seed).astype(np.float32)
        groups = np.array_split(np.random.default_rng(seed).permutation(60), p)
        yield X, groups, lambda X, groups=groups: slow.gas(pair.oracle, X, groups, f, f_base)[0]


@EVERY_PAIR
@pytest.mark.parametrize(
    "family",
    [
        pytest.param(family, marks=[pytest.mark.slow] * (family not in IN_GROUPS))
        for family in FAMILIES
    ],
)
def test_gas_agrees_with_its_oracle_on_float32(name, family, device):
    pair = PAIRS[name]
    for X, groups, output in gas_inputs(pair, family):
        named = [list(map(int, group)) for group in groups]
        verdict = inspect(ov.GAS(pair.rule), X, device, num_byzantine=2, groups=named)
        exact = X.astype(np.float64)
        expected = np.asarray(output(exact))
        atol = 1e-6 * (np.abs(expected).max() + scale_of(exact))
        np.testing.assert_allclose(update_of(verdict), expected, rtol=0, atol=atol)


@pytest.mark.slow
@EVERY_PAIR
@pytest.mark.parametrize("family", FAMILIES)
def test_rounding_to_float32_decides_nothing_on_these_inputs(name, family):
    pair, much = PAIRS[name], {"noise": 3e-6, "jump": 1e-3}
    for seed, (n, d) in enumerate(SIZES):
        exact = make_rows(family, n, d, seed).astype(np.float32).astype(np.float64)
        f = pair.rule.max_byzantine(num_clients=n)
        assert is_clear(lambda X, f=f: pair.oracle(X, f), exact, seed, **much)
    for seed, (X, _, output) in enumerate(gas_inputs(pair, family)):
        assert is_clear(output, X.astype(np.float64), seed, **much)
