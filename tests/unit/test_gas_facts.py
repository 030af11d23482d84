"""The statements of the specification about GAS (0.7, 1 and the certificate of 8.3)."""

import math

import numpy as np
import pytest

import outvote as ov
from calling import aggregate, inspect, update_of

COORDINATE_WISE = ["median", "trimmed-mean", "meamed"]
WRAPPABLE = [
    *["mean", "median", "trimmed-mean", "meamed", "krum", "multi-krum", "bulyan", "rfa"],
    *["geometric-median", "dnc", "mda", "centered-clipping", "norm-clipping"],
]


def normal(n, d, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d))


def test_gas_lowers_its_base_rule_but_drops_the_full_number(device):
    verdict = inspect(ov.GAS(ov.MultiKrum(), num_groups=2), normal(5, 4), device, num_byzantine=3)
    assert (verdict.num_byzantine, verdict.base_num_byzantine) == (3, 1)
    assert (len(verdict.kept), len(verdict.dropped)) == (2, 3)


def test_bulyan_of_five_clients_is_the_mean_inside_gas(device):
    groups = [[0, 3], [1, 2]]
    one = inspect(ov.GAS(ov.Bulyan()), normal(5, 4), device, num_byzantine=1, groups=groups)
    two = inspect(ov.GAS(ov.Mean()), normal(5, 4), device, num_byzantine=1, groups=groups)
    np.testing.assert_allclose(one.scores, two.scores, rtol=1e-12)
    assert one.kept == two.kept


@pytest.mark.parametrize("text", WRAPPABLE)
def test_gas_with_one_group_keeps_the_clients_nearest_to_the_rule(text, device):
    rule, X = ov.make_rule(text), normal(9, 12, seed=3)
    f = 2
    base = aggregate(rule, X, device, num_byzantine=min(f, rule.max_byzantine(num_clients=9)))
    verdict = inspect(ov.GAS(rule, num_groups=1), X, device, num_byzantine=f)
    distances = np.linalg.norm(X - base, axis=1)
    np.testing.assert_allclose(verdict.scores, distances, rtol=0, atol=1e-9)
    assert verdict.kept == sorted(np.argsort(distances, kind="stable")[: 9 - f])


@pytest.mark.parametrize("text", COORDINATE_WISE)
@pytest.mark.parametrize("groups", [[[4, 1], [0, 3, 5], [2]], [[0, 1, 2], [3, 4, 5]]])
def test_a_coordinate_wise_rule_answers_the_same_under_every_split(text, groups, device):
    rule, X = ov.make_rule(text), normal(8, 6, seed=4)
    away = X - aggregate(rule, X, device, num_byzantine=2)
    expected = sum(np.linalg.norm(away[:, group], axis=1) for group in groups)
    verdict = inspect(ov.GAS(rule), X, device, num_byzantine=2, groups=groups)
    np.testing.assert_allclose(verdict.scores, expected, rtol=1e-12)


@pytest.mark.parametrize("text", COORDINATE_WISE)
def test_one_group_per_coordinate_scores_by_the_l1_distance_whatever_the_seed(text, device):
    rule, X = ov.make_rule(text), normal(8, 6, seed=5)
    expected = np.abs(X - aggregate(rule, X, device, num_byzantine=2)).sum(1)
    for seed in range(3):
        verdict = inspect(ov.GAS(rule, num_groups=6), X, device, num_byzantine=2, seed=seed)
        np.testing.assert_allclose(verdict.scores, expected, rtol=1e-12)


@pytest.mark.parametrize("text", COORDINATE_WISE)
def test_scores_grow_when_groups_are_refined_and_stay_between_l2_and_root_p_l2(text, device):
    rule, X = ov.make_rule(text), normal(8, 6, seed=6)
    refinements = [
        [[0, 1, 2, 3, 4, 5]],
        [[0, 1, 2], [3, 4, 5]],
        [[0], [1, 2], [3, 4, 5]],
        [[0], [1], [2], [3], [4], [5]],
    ]
    scores = [
        inspect(ov.GAS(rule), X, device, num_byzantine=2, groups=groups).scores
        for groups in refinements
    ]
    for groups, coarse, fine in zip(refinements[1:], scores[:-1], scores[1:], strict=True):
        assert (fine >= coarse - 1e-12).all()
        assert (fine >= scores[0] - 1e-12).all()
        assert (fine <= math.sqrt(len(groups)) * scores[0] + 1e-12).all()


@pytest.mark.parametrize("text", WRAPPABLE)
def test_zero_columns_in_a_group_change_nothing(text, device):
    X = normal(9, 6, seed=7)
    padded = np.hstack([X, np.zeros((9, 3))])
    rule = ov.GAS(ov.make_rule(text))
    one = inspect(rule, X, device, num_byzantine=2, groups=[[0, 2, 5], [1, 3], [4]])
    two = inspect(rule, padded, device, num_byzantine=2, groups=[[0, 2, 5], [6, 1, 3], [4, 7, 8]])
    np.testing.assert_allclose(two.scores, one.scores, rtol=0, atol=1e-9)
    assert two.kept == one.kept


@pytest.mark.parametrize("text", WRAPPABLE)
@pytest.mark.parametrize("f", [0, 1, 4, 8])
def test_the_output_of_gas_is_the_plain_mean_of_the_kept_rows(text, f, device):
    X = normal(9, 6, seed=8)
    verdict = inspect(ov.GAS(ov.make_rule(text), num_groups=4), X, device, num_byzantine=f)
    assert len(verdict.kept) == 9 - f
    np.testing.assert_allclose(update_of(verdict), X[verdict.kept].mean(0), rtol=0, atol=1e-14)
    assert sorted(verdict.kept + verdict.dropped) == list(range(9))
    lowest = sorted(np.argsort(verdict.scores, kind="stable")[: 9 - f])
    assert verdict.kept == lowest


def test_more_groups_than_coordinates_means_one_group_per_coordinate(device):
    verdict = inspect(ov.GAS(ov.Median(), num_groups=1000), normal(5, 7), device, num_byzantine=1)
    assert verdict.num_groups == 7


def test_the_ceil_split_makes_fewer_groups_than_asked_for(device):
    # Blocks of ceil(10/6) = 2 coordinates: five of them.
    for split, num_groups in [("balanced", 6), ("ceil", 5)]:
        rule = ov.GAS(ov.Median(), num_groups=6, split=split)
        assert inspect(rule, normal(5, 10), device, num_byzantine=1).num_groups == num_groups


@pytest.mark.parametrize("text", ["multi-krum", "median", "rfa"])
def test_the_split_depends_on_the_seed_alone(text, device):
    rule, X = ov.GAS(ov.make_rule(text), num_groups=4), normal(7, 40, seed=9)
    scores = [inspect(rule, X, device, num_byzantine=2, seed=seed).scores for seed in (1, 1, 2)]
    np.testing.assert_array_equal(scores[0], scores[1])
    assert np.abs(scores[0] - scores[2]).max() > 1e-6


@pytest.mark.parametrize(
    ("n", "fraction", "expected"),
    [
        (5, 0.1, 1),
        (5, 0.3, 2),
        (100, 0.07, 7),
        (50, 0.1, 5),
        (5, 0, 0),
        (5, np.float32(0.2), 1),
        (10, np.float16(0.3), 3),
        (5, 0.4999, 2),
        (4, 0.4999, 1),
        (2, 0.1, 0),
    ],
)
def test_a_fraction_is_rounded_up_but_not_by_floating_error(n, fraction, expected, device):
    rule = ov.GAS(ov.Median(), num_groups=2)
    verdict = inspect(rule, normal(n, 3), device, byzantine_fraction=fraction)
    assert verdict.num_byzantine == expected


def diameter(rows):
    return max(float(np.linalg.norm(a - b)) for a in rows for b in rows)


def attacked_round(rng):
    """Honest rows first, then Byzantine rows anywhere from inside the honest cloud to far away."""
    f = int(rng.integers(1, 4))
    n = 2 * f + 3 + int(rng.integers(0, 5))
    d = int(rng.integers(1, 9))
    honest = rng.normal(size=(n - f, d)) * rng.uniform(0.2, 3, size=d)
    centre = honest.mean(0) + rng.normal(size=d) * rng.choice([0.1, 1.0, 3.0, 30.0])
    byzantine = centre + rng.normal(size=(f, d)) * rng.choice([0.0, 0.3, 1.0])
    return honest, byzantine


def certificate(honest, f, groups, num_kept_byzantine):
    num_honest, n = len(honest), len(honest) + f
    resilience = f / (n - f) * (2 + math.sqrt((n - f - 2) / (n - 2 * f - 1)))
    spans = sum(diameter(honest[:, group]) for group in groups)
    return num_kept_byzantine / num_honest * (diameter(honest) + (1 + 2 * resilience) * spans)


@pytest.mark.parametrize("seed", range(5))
def test_gas_over_multi_krum_stays_within_its_certificate(seed, device):
    rng = np.random.default_rng(seed)
    num_with_byzantine = 0
    for _ in range(60):
        honest, byzantine = attacked_round(rng)
        f, d = len(byzantine), honest.shape[1]
        groups = [
            list(map(int, g)) for g in np.array_split(rng.permutation(d), rng.integers(1, d + 1))
        ]
        X = np.vstack([honest, byzantine])
        verdict = inspect(ov.GAS(ov.MultiKrum()), X, device, num_byzantine=f, groups=groups)
        num_kept_byzantine = sum(row >= len(honest) for row in verdict.kept)
        error = np.linalg.norm(update_of(verdict) - honest.mean(0))
        assert error <= certificate(honest, f, groups, num_kept_byzantine) + 1e-12
        num_with_byzantine += num_kept_byzantine > 0
    assert 0 < num_with_byzantine < 60, "both sides of the certificate must occur"
