"""The statements of the specification: edges (0.5, 0.6) and examples by hand (10)."""

import numpy as np
import pytest

import outvote as ov
from calling import aggregate, inspect, update_of

X5 = np.array([[1, 2], [1.5, 1], [0.5, 1.5], [2, 2.5], [-6, 8]])
X7 = np.array(
    [
        [0.93, -1.65, 1.65],
        [0.74, -1.03, 0.94],
        [0.47, -0.32, 1.06],
        [0.43, 0.05, 3.35],
        [0.96, -0.49, 2.44],
        [0.61, -0.58, 1.35],
        [4.0, 3.0, -5.0],
    ]
)
WRAPPABLE = [
    *["mean", "median", "trimmed-mean", "meamed", "krum", "multi-krum", "bulyan", "rfa"],
    *["geometric-median", "dnc", "mda", "centered-clipping", "norm-clipping"],
]
WRAPPERS = ["gas({})", "nnm({})", "bucketing({})", "clip({})", "gas(nnm({}))", "nnm(gas({}))"]
MEAN_WITHOUT_BYZANTINE = ["multi-krum", "trimmed-mean", "meamed", "bulyan", "mda", "dnc"]


def normal(n, d, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d))


@pytest.mark.parametrize(
    "text",
    [*WRAPPABLE, "foolsgold", "signguard", *(w.format(r) for w in WRAPPERS for r in WRAPPABLE)],
)
def test_one_client_is_returned_as_it_is(text, device):
    # Shorter than every default radius: the clipping rules may shorten a longer row.
    row = np.array([[0.3, -0.4, 0.1]])
    update = aggregate(ov.make_rule(text), row, device, num_byzantine=0)
    np.testing.assert_allclose(update, row[0], rtol=0, atol=1e-12)


def test_fltrust_gives_one_client_the_length_of_the_reference(device):
    row, reference = np.array([[3.0, 4.0]]), np.array([1.0, 0.0])
    update = aggregate(ov.FLTrust(), row, device, num_byzantine=0, reference=reference)
    np.testing.assert_allclose(update, [0.6, 0.8], rtol=0, atol=1e-12)


@pytest.mark.parametrize("text", MEAN_WITHOUT_BYZANTINE)
@pytest.mark.parametrize("n", [2, 3, 4, 7, 10])
def test_without_byzantine_clients_the_rule_is_the_mean(text, n, device):
    X = normal(n, 6, seed=n)
    update = aggregate(ov.make_rule(text), X, device, num_byzantine=0)
    np.testing.assert_allclose(update, X.mean(0), rtol=0, atol=1e-14)


@pytest.mark.parametrize("text", ["krum", "median", "rfa"])
def test_without_byzantine_clients_these_rules_are_not_the_mean(text, device):
    update = aggregate(ov.make_rule(text), X7, device, num_byzantine=0)
    assert np.abs(update - X7.mean(0)).max() > 0.05


@pytest.mark.parametrize(("n", "winner"), [(2, 0), (3, 1)])
def test_krum_gives_a_tie_to_the_lowest_row(n, winner, device):
    # The nearest two rows always tie when only one neighbour counts.
    X = np.array([[9.0, 0.0], [1.0, 0.0], [2.0, 0.0]])[:n]
    assert inspect(ov.Krum(), X, device, num_byzantine=0).kept == [winner]


@pytest.mark.parametrize("text", [*WRAPPABLE, *(f"gas({r}, num_groups=2)" for r in WRAPPABLE)])
def test_a_rejected_row_is_as_if_it_had_not_come_and_takes_one_byzantine_along(text, device):
    rule = ov.make_rule(text)
    X = normal(9, 4)
    f = min(1, rule.max_byzantine(num_clients=8))
    broken = np.insert(X, 3, [0.0, np.nan, 1.0, np.inf], axis=0)
    verdict = inspect(rule, broken, device, num_byzantine=f, seed=5)
    expected = aggregate(rule, X, device, num_byzantine=max(0, f - 1), seed=5)
    assert verdict.rejected == [3]
    np.testing.assert_allclose(update_of(verdict), expected, rtol=0, atol=1e-12)


def test_krum_and_multi_krum_on_five_points(device):
    krum = inspect(ov.Krum(), X5, device, num_byzantine=1)
    np.testing.assert_allclose(krum.scores, [1.75, 2.5, 1.75, 3.75, 169.5], rtol=0, atol=1e-9)
    assert krum.kept == [0]
    multi = inspect(ov.MultiKrum(), X5, device, num_byzantine=1)
    assert multi.kept == [0, 1, 2, 3]
    np.testing.assert_allclose(update_of(multi), [1.25, 1.75], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("median", [1, 2]),
        ("trimmed-mean", [1, 2]),
        ("meamed", [1.25, 1.75]),
        ("rfa", [0.98147, 1.95604]),
        ("geometric-median", [1, 2]),
    ],
)
def test_other_rules_on_five_points(text, expected, device):
    update = aggregate(ov.make_rule(text), X5, device, num_byzantine=1)
    np.testing.assert_allclose(update, expected, rtol=0, atol=5e-6)


@pytest.mark.parametrize(
    ("text", "scores"), [("multi-krum", [0.5, 1, 1, 1.5, 13.5]), ("median", [0, 1.5, 1, 1.5, 13])]
)
def test_gas_with_two_groups_on_five_points(text, scores, device):
    rule = ov.GAS(ov.make_rule(text), num_groups=2)
    verdict = inspect(rule, X5, device, num_byzantine=1)
    np.testing.assert_allclose(verdict.scores, scores, rtol=0, atol=1e-9)
    assert verdict.kept == [0, 1, 2, 3]
    np.testing.assert_allclose(update_of(verdict), [1.25, 1.75], rtol=0, atol=1e-12)


def test_bulyan_averages_values_and_not_deviations(device):
    update = aggregate(ov.Bulyan(), X7, device, num_byzantine=1)
    np.testing.assert_allclose(update, [0.76, -0.46333, 1.35333], rtol=0, atol=5e-6)
    assert np.abs(update - [0.107, 0.117, 0.197]).max() > 0.5


@pytest.mark.parametrize(
    ("f", "same", "ceil"), [(0, 0, 0), (1, 1, 1), (2, 2, 1), (3, 3, 2), (5, 5, 3)]
)
def test_byzantine_clients_spoil_a_bucket_each_or_share_buckets(f, same, ceil):
    """Of 24 clients in buckets of two, f spoil f buckets, or ceil(f / 2) if they share them."""
    X = np.random.default_rng(0).normal(size=(24, 3))
    for f_rule, expected in (("same", same), ("ceil", ceil)):
        rule = ov.Bucketing(ov.TrimmedMean(), size=2, f_rule=f_rule)
        assert rule.inside_num_byzantine(f, 24) == expected
    safe = ov.Bucketing(ov.TrimmedMean(), size=2)
    assert safe.inspect(X, num_byzantine=f, seed=0).base_num_byzantine == same


@pytest.mark.parametrize("inside", ["median", "trimmed-mean", "multi-krum", "geometric-median"])
def test_optimistic_buckets_tolerate_what_they_count(inside):
    """In the worst case every Byzantine client spoils a bucket of its own."""
    rule = ov.make_rule(f"bucketing({inside}, size=2, f_rule=ceil)")
    f = rule.max_byzantine(num_clients=24)
    assert f >= 1
    rows = np.random.default_rng(0).normal(size=(24, 3))
    rows[:f] = 1e6
    for seed in range(20):
        assert np.abs(rule(rows, num_byzantine=f, seed=seed)).max() < 10


def test_one_bucket_may_be_larger_than_any_number_of_clients():
    rows = np.arange(12.0).reshape(4, 3)
    found = ov.make_rule("bucketing(median, size=99999999999999999999)")(rows, num_byzantine=0)
    np.testing.assert_allclose(found, rows.mean(axis=0))
