"""Sample counts weigh the clients of every rule, and a claim cannot be abused."""

import numpy as np
import pytest
import torch

import calling
import outvote as ov
from every_rule import EVERY_RULE, cases
from outvote.ops.order import select_one_by_one
from outvote.rules.aggregate import Batch, aggregate
from outvote.rules.sample_counts import COUNT_CAP, bounded, capped_counts

NUM_CLIENTS, DIM = 11, 12
HONEST_COUNTS = [30, 50, 20, 40, 60, 50, 40, 30, 50, 40, 45]
MEDIAN_COUNT = 40
LARGE = [1e9, 1e300, np.finfo(float).max]


def rows_of(seed=0, num_clients=NUM_CLIENTS, dim=DIM):
    random = np.random.default_rng(seed)
    scales = random.uniform(0.5, 2.0, size=(num_clients, 1))
    return 1.5 + scales * random.normal(size=(num_clients, dim))


def info_of(rule, num_clients=NUM_CLIENTS, dim=DIM):
    num_byzantine = min(rule.max_byzantine(num_clients), (num_clients - 1) // 2)
    info = {"num_byzantine": num_byzantine, "seed": 3}
    return info | ({"reference": np.ones(dim)} if rule.traits.needs_reference else {})


def inspect(text, rows, counts=None, **changes):
    rule = ov.make_rule(text)
    info = info_of(rule, *rows.shape) | changes
    return rule.inspect(rows, sample_counts=counts, **info)


@pytest.mark.parametrize("text", cases(EVERY_RULE))
def test_equal_counts_give_the_unweighted_rule_to_the_last_bit(text):
    for dtype in (np.float64, np.float32):
        rows = rows_of().astype(dtype)
        plain = inspect(text, rows)
        for count in (7.3, 1e308):
            weighed = inspect(text, rows, [count] * NUM_CLIENTS)
            assert np.array_equal(plain.update, weighed.update)
            assert np.array_equal(plain.scores, weighed.scores)
            assert np.array_equal(plain.weights, weighed.weights)


@pytest.mark.parametrize("text", cases(EVERY_RULE))
def test_a_client_that_claims_too_much_counts_as_its_cap(text):
    rows = rows_of()
    rows[4] += 0.5
    capped = [*HONEST_COUNTS[:4], COUNT_CAP * MEDIAN_COUNT, *HONEST_COUNTS[5:]]
    wanted = inspect(text, rows, capped)
    for claim in LARGE:
        found = inspect(text, rows, [*capped[:4], claim, *capped[5:]])
        assert np.array_equal(found.update, wanted.update)
        assert np.array_equal(found.weights, wanted.weights)


@pytest.mark.parametrize("text", cases(EVERY_RULE))
@pytest.mark.parametrize(
    "counts",
    [
        [1e308, 5e-324, 0, 1, 1e-300, 1e308, 0, 2, 3, 1e100, 1e308],
        [5e-324] * 6 + [1e308] * 5,
    ],
)
def test_no_counts_make_an_update_that_is_not_finite(text, counts):
    for rows in (rows_of(1), 1e38 * np.sign(rows_of(2))):
        found = inspect(text, rows, counts)
        assert np.isfinite(found.update).all()
        assert np.isfinite(found.weights).all()
        assert np.isfinite(found.scores).all()


# A single selected client counts as much whatever it claims.
SELECT_ONE = [text for text in EVERY_RULE if "krum" in text and "multi-krum" not in text]


@pytest.mark.parametrize("text", cases(text for text in EVERY_RULE if text not in SELECT_ONE))
def test_unequal_counts_matter(text):
    rows = rows_of(5)
    limit = info_of(ov.make_rule(text))["num_byzantine"]
    counts = [1, 1, 2, 2, 1, 1, 2, 2, 1, 2, 1]
    pairs = [
        [inspect(text, rows, each, num_byzantine=f).update for each in (None, counts)]
        for f in (0, limit)
    ]
    assert not all(np.array_equal(*pair) for pair in pairs)


AS_COPIES = [
    *["mean", "rfa", "rfa(start=zero, num_iterations=5)", "geometric-median", "median"],
    *["median(even=lower)", "centered-clipping(radius=2)", "norm-clipping", "fltrust"],
    *["clip(median)", "clip(rfa)", "clip(mean, max_norm=2)"],
]


@pytest.mark.parametrize("text", AS_COPIES)
def test_a_client_counts_as_so_many_clients(text, device):
    rows, counts = rows_of(7), np.array([1, 2, 3, 1, 1, 2, 2, 3, 1, 2, 1])
    copies = np.repeat(rows, counts, axis=0)
    wanted = inspect(text, copies, num_byzantine=0).update
    rule = ov.make_rule(text)
    info = {**info_of(rule), "num_byzantine": 0, "sample_counts": counts}
    found = calling.aggregate(rule, rows, device, **info)
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("text", ["trimmed-mean", "meamed"])
@pytest.mark.parametrize("f", [0, 1, 2])
def test_the_weight_of_the_heaviest_clients_is_trimmed(text, f, device):
    rows, counts = rows_of(8), np.array([1, 2, 3, 1, 2, 2, 2, 3, 2, 2, 1])
    weight = int(np.sort(counts)[len(counts) - f :].sum())
    wanted = inspect(text, np.repeat(rows, counts, axis=0), num_byzantine=weight)
    info = {"num_byzantine": f, "sample_counts": counts}
    found = calling.aggregate(ov.make_rule(text), rows, device, **info)
    np.testing.assert_allclose(found, wanted.update, rtol=1e-12)


def mean_nearest(values, weights, num_left_out):
    """Weighted median, then the nearest values up to a cumulative weight, in plain Python."""
    order = np.argsort(values, kind="stable")
    upto = np.cumsum(weights[order])
    low = values[order][np.argmax(upto >= 0.5 * upto[-1])]
    high = values[order][np.argmax(upto > 0.5 * upto[-1])]
    left = weights.sum() - np.sort(weights)[len(weights) - num_left_out :].sum()
    total, wanted = 0.0, left
    for k in np.argsort(np.abs((values - low) + (values - high)), kind="stable"):
        part = min(left, weights[k])
        left, total = left - part, total + part * values[k]
    return total / wanted


def test_bulyan_selects_unweighted_and_averages_weighted():
    rows, counts = rows_of(9), np.array([1, 2, 3, 1, 2, 2, 2, 3, 2, 2, 1])
    squared = torch.from_numpy(((rows[:, None] - rows[None]) ** 2).sum(axis=-1)[None])
    chosen = select_one_by_one(squared, NUM_CLIENTS - 4, 2)[0].numpy()
    found = inspect("bulyan", rows, counts, num_byzantine=2)
    wanted = [mean_nearest(column, counts[chosen], 4) for column in rows[chosen].T]
    np.testing.assert_allclose(found.update, wanted, rtol=1e-12)
    assert set(np.flatnonzero(found.weights)) <= set(np.flatnonzero(chosen))


def test_an_honest_client_with_few_samples_counts_its_share():
    rows = np.zeros((10, 1))
    rows[0] = 1.0
    counts = [6, *[994 / 9] * 9]
    assert ov.Mean()(rows, sample_counts=counts)[0] == pytest.approx(0.006, rel=1e-12)
    assert ov.Mean().inspect(rows, sample_counts=counts).weights[0] == pytest.approx(0.006)


def test_a_claim_moves_the_mean_by_its_cap_alone():
    rows = np.zeros((20, 3))
    rows[0] = 1.0
    claims = [1e9, *[50] * 19]
    np.testing.assert_allclose(ov.Mean()(rows, sample_counts=claims), 3 / 22)
    np.testing.assert_allclose(ov.Mean()(rows, sample_counts=claims, count_cap=1), 1 / 20)
    np.testing.assert_allclose(
        ov.Mean()(rows, sample_counts=claims, count_cap=float("inf")), 1, atol=1e-5
    )


@pytest.mark.parametrize("text", ["median", "trimmed-mean", "meamed", "geometric-median"])
def test_byzantine_clients_never_have_half_of_the_weight(text):
    """Five of eleven claim 1e9; with the cap alone they would have 15 of 21."""
    rows = rows_of(10)
    rows[:5] = 1e30
    counts = [*[1e9] * 5, 10, 10, 10, 10, 10, 10]
    update = inspect(text, rows, counts, num_byzantine=5).update
    assert (update >= rows[5:].min(axis=0)).all()
    assert (update <= rows[5:].max(axis=0)).all()


def test_counts_are_bounded_for_the_number_of_byzantine_clients():
    random = np.random.default_rng(0)
    for _ in range(200):
        num_clients = int(random.integers(3, 30))
        f = int(random.integers(1, (num_clients - 1) // 2 + 1))
        counts = random.lognormal(sigma=2, size=num_clients)
        found = bounded(counts, f)
        most = (f / num_clients + 0.5) / 2
        assert np.sort(found)[-f:].sum() <= most * found.sum() * (1 + 1e-12)
        if not np.array_equal(found, counts):  # No more than needed.
            assert np.sort(found)[-f:].sum() >= most * found.sum() * (1 - 1e-9)


def test_the_cap_is_relative_to_the_lower_median_of_positive_counts():
    assert capped_counts([0, 0, 0, 1, 2, 100, 200]).tolist() == [0, 0, 0, 0.5, 1, 3, 3]
    assert capped_counts([4, 4, 4]) is None
    assert capped_counts([5, 6, 7, 8], cap=1).tolist() == [5 / 6, 1, 1, 1]


@pytest.mark.parametrize("cap", [0.5, -1, float("nan"), True, "3"])
def test_a_cap_below_the_median_is_refused(cap):
    with pytest.raises(ValueError, match="count_cap must be a number from 1 on"):
        ov.Mean()([[1.0], [2.0]], sample_counts=[1, 2], count_cap=cap)


@pytest.mark.parametrize("text", ["nnm(mean)", "nnm(median)", "bucketing(mean, size=1)"])
def test_mixings_weigh_their_members(text):
    rows, counts = rows_of(11), np.array(HONEST_COUNTS)
    found = inspect(text, rows, counts, num_byzantine=0).update
    np.testing.assert_allclose(found, counts @ rows / counts.sum(), rtol=1e-12)


def test_buckets_of_one_size_count_as_their_members():
    rows, counts = rows_of(12, num_clients=12), np.arange(10, 22)
    found = inspect("bucketing(mean, size=3)", rows, counts, num_byzantine=0).update
    np.testing.assert_allclose(found, counts @ rows / counts.sum(), rtol=1e-12)


def test_selected_clients_that_claim_nothing_count_alike():
    """Two covered attackers are the only ones kept, and claim the smallest number there is."""
    rows = rows_of(13)
    rows[0] = rows[1] = rows.mean(axis=0)
    counts = [5e-324, 5e-324, *HONEST_COUNTS[2:]]
    found = inspect("multi-krum(num_selected=2)", rows, counts, num_byzantine=2)
    np.testing.assert_allclose(found.update, rows[0])
    assert any("count alike" in note for note in found.notes)


def test_runs_with_counts_are_computed_as_each_alone():
    rule = ov.make_rule("gas(trimmed-mean, num_groups=3)")
    runs = np.stack([rows_of(seed) for seed in range(4)])
    counts = [HONEST_COUNTS, None, [5] * NUM_CLIENTS, list(range(1, NUM_CLIENTS + 1))]
    given = {"num_byzantine": [2] * 4, "seeds": [7, 8, 9, 10]}
    together = aggregate(
        rule, Batch(gradients=torch.from_numpy(runs), **given, sample_counts=counts)
    )
    for k, own in enumerate(counts):
        alone = rule(runs[k], num_byzantine=2, seed=7 + k, sample_counts=own)
        np.testing.assert_allclose(together.vector[k].numpy(), alone, rtol=1e-12)


class Middle(ov.VectorRule):
    """The unweighted median as a user would write it."""

    def max_byzantine(self, num_clients):
        return (num_clients - 1) // 2

    def aggregate(self, rows, num_byzantine):
        return rows.median(dim=0).values


class FirstHalf(ov.AffineRule):
    """Weights of a user's own."""

    def max_byzantine(self, num_clients):
        return 0

    def weigh(self, matrix, info):
        weights = torch.zeros(*matrix.batch, matrix.num_clients, dtype=torch.float64)
        weights[..., : matrix.num_clients // 2] = 1 / (matrix.num_clients // 2)
        return ov.Aggregation(weights=weights)


def test_rules_of_users_are_weighed_where_they_average():
    rows, counts = rows_of(14), np.array(HONEST_COUNTS)
    found = FirstHalf()(rows, num_byzantine=0, sample_counts=counts)
    np.testing.assert_allclose(found, counts[:5] @ rows[:5] / counts[:5].sum(), rtol=1e-12)
    with pytest.raises(ValueError, match=r"cannot weigh by sample_counts.*uses_sample_counts"):
        Middle()(rows, num_byzantine=0, sample_counts=counts)
    # Inside GAS it scores unweighted.
    assert np.isfinite(
        ov.GAS(Middle(), num_groups=3)(rows, num_byzantine=1, sample_counts=counts)
    ).all()


def test_a_count_that_is_capped_is_noted_with_its_client():
    rows = np.arange(10.0).reshape(5, 2)
    rule = ov.make_rule("mean")

    def notes(counts, **more):
        return rule.inspect(rows, sample_counts=counts, clients="abcde", **more).notes

    assert notes([10, 20, 30, 20, 10**9]) == ("sample_counts: capped for e",)
    assert notes([10, 20, 30, 20, 10**9], count_cap=float("inf")) == ()
    assert notes([10, 20, 30, 20, 20]) == ()
    assert notes([7] * 5) == ()
    assert notes([1, 1, 1, 0, 0]) == ()
    median = ov.make_rule("median").inspect(rows, sample_counts=[1, 1, 1, 3, 3], num_byzantine=2)
    # Within the cap, but two clients would have two thirds of the weight.
    assert median.notes == ("sample_counts: capped for 3, 4",)
