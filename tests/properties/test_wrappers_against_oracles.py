"""NNM, clipping and bucketing over every rule, against the plain-loop oracles."""

import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import oracles as slow
import outvote as ov
from calling import inspect, update_of
from inputs import is_clear, is_on_a_line, make_rows
from pairs import EVERY_PAIR, PAIRS, assert_agrees, rounds

FEW = max(15, settings().max_examples * 3 // 20)


@EVERY_PAIR
@given(data=st.data())
@settings(max_examples=FEW)
def test_nnm_agrees_with_its_oracle(name, data, device):
    pair = PAIRS[name]
    rule = ov.NNM(pair.rule)
    X, f, seed = data.draw(rounds(pair, rule))
    oracle = slow.nnm(pair.oracle, f)
    assume(is_clear(lambda X: oracle(X, f), X, seed))
    # Clients with the same neighbours become equal, but for rounding: ties must not decide.
    mixed = np.array(slow.nnm_rows(X, f))
    assume(is_clear(lambda X: pair.oracle(X, f), mixed, seed))
    assert_agrees(
        inspect(rule, X, device, num_byzantine=f, seed=seed), oracle(X, f), X, pair.relative
    )


def test_equal_averages_tie_to_the_last_bit(device):
    # Clients 0, 7 and 8 have the same neighbours, and so have 1, 3 and 5: six scores are equal.
    X, f = make_rows("offset", 9, 6, seed=268), 2
    pair = PAIRS["multi-krum-other"]
    verdict = inspect(ov.NNM(pair.rule), X, device, num_byzantine=f)
    assert_agrees(verdict, slow.nnm(pair.oracle, f)(X, f), X)


@pytest.mark.parametrize(
    ("n", "seed", "dtype"),
    [
        *((10, seed, "float64") for seed in (37, 40, 49, 59)),
        *((16, seed, "float64") for seed in (3, 16, 28)),
        *((16, seed, "float32") for seed in (28, 31, 32)),
    ],
)
def test_equal_averages_tie_to_the_last_bit_in_groups(n, seed, dtype, device):
    """Two camps of equal size: with f = 1 all clients of a camp have the same neighbours."""
    random = np.random.default_rng(seed)
    rows, away = random.normal(size=(n, 40)), random.normal(size=40)
    X = (rows + np.where(np.arange(n) < n // 2, 1.5, -1.5)[:, None] * away).astype(dtype)
    groups = np.arange(40).reshape(2, 20).tolist()
    _, scores, kept = slow.gas(slow.nnm(slow.krum, 1), X.astype("float64"), groups, 1, 1)
    rule = ov.make_rule("gas(nnm(krum), num_groups=2, split=contiguous)")
    verdict = inspect(rule, X, device, num_byzantine=1)
    assert sorted(verdict.kept) == sorted(kept)
    np.testing.assert_allclose(verdict.scores, scores, rtol=1e-4)


@EVERY_PAIR
@pytest.mark.parametrize("max_norm", [2.0, "adaptive"])
@given(data=st.data())
@settings(max_examples=FEW)
def test_clip_agrees_with_its_oracle(name, max_norm, data, device):
    pair = PAIRS[name]
    rule = ov.Clip(pair.rule, max_norm=max_norm)
    X, f, seed = data.draw(rounds(pair, rule))
    oracle = slow.clip(pair.oracle, max_norm)
    assume(is_clear(lambda X: oracle(X, f), X, seed))
    # On a line, clipped clients become equal, but for rounding.
    clipped = np.array(slow.clip(lambda X, f: X, max_norm)(X, f))
    assume(is_clear(lambda X: pair.oracle(X, f), clipped, seed))
    assume(name != "geometric-median" or len(X) % 2 == 1 or not is_on_a_line(clipped))
    assert_agrees(
        inspect(rule, X, device, num_byzantine=f, seed=seed), oracle(X, f), X, pair.relative
    )


def bucketing_oracles(pair, n, f, size, f_rule):
    """The oracle for each way to fill the buckets: the seed decides which one a call uses."""
    f_mixed = f if f_rule == "same" else -(-f // size)
    f_base = min(f_mixed, pair.rule.max_byzantine(num_clients=-(-n // size)))
    return [
        slow.bucketing(pair.oracle, order, size, f_base)
        for order in itertools.permutations(range(n))
        if is_rising_in_buckets(order, size)
    ]


def is_rising_in_buckets(order, size):
    """Whether no bucket could be filled the same by an earlier order: sums are exact."""
    buckets = [order[k : k + size] for k in range(0, len(order), size)]
    return all(list(bucket) == sorted(bucket) for bucket in buckets)


def smallest_gap(got, candidates):
    return min(float(np.abs(np.asarray(got) - np.asarray(one)).max()) for one in candidates)


@EVERY_PAIR
@pytest.mark.parametrize("f_rule", ["same", "ceil"])
def test_bucketing_is_the_rule_on_the_buckets_of_some_order(name, f_rule, device):
    pair = PAIRS[name]
    for seed, (n, size) in enumerate([(5, 2), (4, 3), (5, 1), (4, 4), (1, 2)]):
        if not pair.is_defined(-(-n // size), 3, 0):
            continue
        X = make_rows("normal", n, 3, seed)
        rule = ov.Bucketing(pair.rule, size=size, f_rule=f_rule)
        f = rule.max_byzantine(num_clients=n)
        update = update_of(inspect(rule, X, device, num_byzantine=f, seed=seed))
        candidates = [oracle(X, f) for oracle in bucketing_oracles(pair, n, f, size, f_rule)]
        assert smallest_gap(update, candidates) < 1e-9 * (1 + np.abs(X).max())


@EVERY_PAIR
def test_gas_over_bucketing_uses_one_order_for_all_groups(name, device):
    pair = PAIRS[name]
    groups = [[0, 4], [3, 1], [2]]
    if not pair.is_defined(3, 1, 0):
        return
    for seed in range(3):
        X = make_rows("normal", 5, 5, seed)
        rule = ov.GAS(ov.Bucketing(pair.rule, size=2), num_groups=3)
        verdict = inspect(rule, X, device, num_byzantine=1, seed=seed, groups=groups)
        candidates = [
            slow.gas(oracle, X, groups, 1, 1)[1]
            for oracle in bucketing_oracles(pair, 5, 1, 2, "same")
        ]
        assert smallest_gap(verdict.scores, candidates) < 1e-8


def test_bucketing_draws_every_pairing_of_four_clients(device):
    X = np.diag([1.0, 2.0, 4.0, 8.0])
    rule = ov.Bucketing(ov.Krum(), size=2)
    updates = {
        tuple(update_of(inspect(rule, X, device, num_byzantine=0, seed=s))) for s in range(60)
    }
    pairs_seen = {tuple(np.flatnonzero(update)) for update in updates}
    assert pairs_seen == set(itertools.combinations(range(4), 2))


@pytest.mark.parametrize("seed", range(4))
def test_wrappers_nest(seed, device):
    X = make_rows("normal", 5, 4, seed)
    f = 1
    nested = ov.NNM(ov.GAS(ov.Median(), num_groups=1))
    expected = slow.gas(slow.median, slow.nnm_rows(X, f), [range(4)], f, f)[0]
    assert_agrees(inspect(nested, X, device, num_byzantine=f), expected, X)

    nested = ov.Clip(ov.GAS(ov.NNM(ov.TrimmedMean()), num_groups=4), max_norm=1.5)
    clipped = np.array([slow.scaled_to_norm(list(row), 1.5) for row in X])
    inner = slow.nnm(slow.trimmed_mean, f)
    expected = slow.gas(inner, clipped, [[0], [1], [2], [3]], f, f)[0]
    assert_agrees(inspect(nested, X, device, num_byzantine=f), expected, X)

    nested = ov.Bucketing(ov.GAS(ov.Median(), num_groups=1), size=2)
    candidates = [
        slow.gas(slow.median, slow.bucket_means(X, order, 2), [range(4)], f, f)[0]
        for order in itertools.permutations(range(5))
    ]
    update = update_of(inspect(nested, X, device, num_byzantine=f, seed=seed))
    assert smallest_gap(update, candidates) < 1e-9
