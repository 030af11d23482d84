"""Partitions: every sample has exactly one owner, and the draw is a function of the seed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import outvote as ov

LABELS = st.lists(st.integers(-2, 6), min_size=1, max_size=200)
SEEDS = st.integers(0, 2**32)


def owned_once(parts, num_samples):
    assert all(part.dtype == np.int64 for part in parts)
    assert all((np.diff(part) > 0).all() for part in parts), "in increasing order"
    return sorted(np.concatenate(parts).tolist()) == list(range(num_samples))


def same(first, second):
    return all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def spread(parts):
    sizes = [len(part) for part in parts]
    return max(sizes) - min(sizes)


@given(labels=LABELS, data=st.data(), seed=SEEDS)
def test_iid_gives_every_sample_to_one_client_in_equal_parts(labels, data, seed):
    num_clients = data.draw(st.integers(1, len(labels)))
    parts = ov.partition_iid(labels, num_clients=num_clients, seed=seed)
    assert owned_once(parts, len(labels))
    assert len(parts) == num_clients
    assert spread(parts) <= 1
    assert same(parts, ov.partition_iid(labels, num_clients=num_clients, seed=seed))


@given(
    labels=LABELS,
    data=st.data(),
    beta=st.sampled_from([1e-300, 1e-3, 0.1, 0.5, 1, 100.0, 1e9]),
    balance=st.booleans(),
    seed=SEEDS,
)
def test_dirichlet_gives_every_sample_to_one_client(labels, data, beta, balance, seed):
    num_clients = data.draw(st.integers(1, min(8, len(labels))))
    facts = {"num_clients": num_clients, "beta": beta, "balance": balance, "min_size": 0}
    parts = ov.partition_dirichlet(labels, seed=seed, **facts)
    assert owned_once(parts, len(labels))
    assert len(parts) == num_clients
    assert same(parts, ov.partition_dirichlet(np.array(labels), seed=seed, **facts))


@given(seed=SEEDS, balance=st.booleans())
@settings(max_examples=20)
def test_dirichlet_redraws_until_every_client_has_enough(seed, balance):
    labels = np.arange(400) % 10
    parts = ov.partition_dirichlet(
        labels, num_clients=10, beta=0.5, seed=seed, balance=balance, min_size=15
    )
    assert min(len(part) for part in parts) >= 15
    assert owned_once(parts, 400)


@given(seed=SEEDS)
@settings(max_examples=20)
def test_balance_stops_a_client_that_has_its_share(seed):
    """What a client held before its last class is below the equal share."""
    labels = np.repeat(np.arange(10), 100)
    parts = ov.partition_dirichlet(labels, num_clients=5, beta=0.2, seed=seed, min_size=1)
    for part in parts:
        owned = labels[part]
        assert (owned < owned.max()).sum() < 200


@given(labels=LABELS, data=st.data(), seed=SEEDS)
def test_shards_give_every_sample_to_one_client(labels, data, seed):
    num_clients = data.draw(st.integers(1, len(labels)))
    each = data.draw(st.integers(1, len(labels) // num_clients))
    parts = ov.partition_shards(labels, num_clients=num_clients, shards_per_client=each, seed=seed)
    assert owned_once(parts, len(labels))
    assert len(parts) == num_clients
    assert spread(parts) <= each
    again = ov.partition_shards(labels, num_clients=num_clients, shards_per_client=each, seed=seed)
    assert same(parts, again)


def test_a_client_with_two_shards_sees_few_classes():
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 100))
    parts = ov.partition_shards(labels, num_clients=10, shards_per_client=2, seed=1)
    assert max(len(np.unique(labels[part])) for part in parts) <= 2


@given(groups=st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=60), data=st.data())
def test_groups_stay_whole(groups, data):
    names = np.array(groups)
    alone = ov.partition_by_group(groups)
    assert owned_once(alone, len(groups))
    assert [set(names[part]) for part in alone] == [{name} for name in sorted(set(groups))]
    num_clients = data.draw(st.integers(1, len(set(groups))))
    parts = ov.partition_by_group(groups, num_clients=num_clients, seed=3)
    assert owned_once(parts, len(groups))
    owners = [set(names[part]) for part in parts]
    assert sum(len(owner) for owner in owners) == len(set(groups)), "no group is cut"
    assert max(map(len, owners)) - min(map(len, owners)) <= 1


def skew(labels, beta, seed, balance):
    """Mean distance between a client's shares of the classes and those of the whole."""
    parts = ov.partition_dirichlet(
        labels, num_clients=10, beta=beta, seed=seed, balance=balance, min_size=1
    )
    shares = np.array([np.bincount(labels[part], minlength=10) / len(part) for part in parts])
    return np.abs(shares - 0.1).sum(axis=1).mean()


@pytest.mark.parametrize("balance", [True, False])
def test_clients_differ_less_with_a_larger_beta(balance):
    labels = np.arange(5000) % 10
    skews = [
        np.mean([skew(labels, beta, seed, balance) for seed in range(5)])
        for beta in (0.1, 0.5, 5.0, 500.0)
    ]
    assert skews == sorted(skews, reverse=True)
    assert skews[-1] < 0.1


def test_the_proportions_are_those_of_the_distribution():
    """Without balance, a client's share of a class has the mean and variance of Dir(beta)."""
    labels = np.zeros(10_000, dtype=int)
    sizes = [
        len(ov.partition_dirichlet(labels, num_clients=4, beta=0.5, seed=seed, min_size=0)[0])
        for seed in range(500)
    ]
    shares = np.array(sizes) / 10_000
    # Beta(0.5, 1.5): mean 1/4, variance 1/16; 4 standard errors of 500 stream.
    assert abs(shares.mean() - 1 / 4) < 4 * 0.25 / 500**0.5
    assert abs(shares.var() - 1 / 16) < 0.015


def literal_sizes(counts, num_clients, beta, random):
    """The procedure as the definition words it: draw for all, zero the full, scale, cut."""
    total, held = sum(counts), np.zeros(num_clients)
    for count in counts:
        proportions = random.dirichlet([beta] * num_clients) * (held < total / num_clients)
        cuts = np.floor(np.cumsum(proportions / proportions.sum())[:-1] * count)
        held += np.diff(cuts, prepend=0, append=count)
    return np.sort(held)


def test_the_balance_step_has_the_distribution_of_its_definition():
    """Drawing among the open clients only is the same as drawing for all and zeroing the full."""
    labels = np.repeat(np.arange(6), 300)
    random = np.random.default_rng(0)
    literal = np.array([literal_sizes([300] * 6, 6, 0.5, random) for _ in range(400)])
    drawn = [
        ov.partition_dirichlet(labels, num_clients=6, beta=0.5, seed=seed, min_size=0)
        for seed in range(400)
    ]
    ours = np.array([sorted(len(part) for part in parts) for parts in drawn])
    # 4.5 standard errors of the difference; all smallest, ..., all largest sizes.
    error = np.sqrt((literal.var(axis=0) + ours.var(axis=0)) / 400)
    assert (np.abs(literal.mean(axis=0) - ours.mean(axis=0)) < 4.5 * error).all()


def test_other_seeds_give_other_partitions():
    labels = np.arange(1000) % 10
    for partition, more in [
        (ov.partition_iid, {}),
        (ov.partition_shards, {}),
        (ov.partition_dirichlet, {"beta": 0.5}),
    ]:
        first, second = (partition(labels, num_clients=5, seed=seed, **more) for seed in (0, 1))
        assert not all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_labels_are_left_alone():
    labels = np.random.default_rng(0).integers(0, 10, 500)
    before = labels.copy()
    ov.partition_dirichlet(labels, num_clients=5, beta=0.5, seed=0)
    ov.partition_shards(labels, num_clients=5, seed=0)
    assert np.array_equal(labels, before)


MANY = [0, 1] * 50


@pytest.mark.parametrize(
    ("labels", "facts", "kind", "message"),
    [
        (MANY, {"beta": -1}, ValueError, "beta must be larger than 0 and finite, got -1"),
        (MANY, {"beta": 0}, ValueError, "larger than 0"),
        (MANY, {"beta": float("nan")}, ValueError, "got nan"),
        (MANY, {"beta": float("inf")}, ValueError, "partition_iid"),
        (MANY, {"beta": "much"}, TypeError, "beta must be a number, got 'much'"),
        (MANY, {"num_clients": 0}, ValueError, "num_clients must be 1 or larger, got 0"),
        (MANY, {"num_clients": 2.0}, TypeError, "whole number, got 2.0"),
        (MANY, {"num_clients": True}, TypeError, "whole number, got True"),
        (MANY, {"num_clients": 101}, ValueError, "fewer clients"),
        (MANY, {"num_clients": 101, "min_size": 0}, ValueError, "got 100"),
        (MANY, {"min_size": -1}, ValueError, "min_size must be 0 or larger"),
        (MANY, {"min_size": 30}, ValueError, "need 120 samples, got 100"),
        (MANY, {"beta": 1e-3, "min_size": 24, "balance": False}, ValueError, "a larger beta"),
        (MANY, {"seed": -1}, ValueError, "seed must be 0 or larger"),
        ([], {}, ValueError, "one label per sample"),
        ([[0, 1]], {}, ValueError, r"\(1, 2\)"),
        ([0.0, 1.0] * 50, {}, TypeError, "whole numbers, got float64"),
        (["a", "b"] * 50, {}, TypeError, "whole numbers"),
    ],
)
def test_dirichlet_reports_what_is_wrong(labels, facts, kind, message):
    with pytest.raises(kind, match=message):
        ov.partition_dirichlet(labels, **{"num_clients": 4, "beta": 0.5, "seed": 0, **facts})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ov.partition_iid([0, 1], num_clients=3), "at most the number of samples, 2"),
        (lambda: ov.partition_shards([0, 1], num_clients=1, shards_per_client=3), "got 3"),
        (lambda: ov.partition_shards([0, 1], num_clients=1, shards_per_client=0), "1 or larger"),
        (lambda: ov.partition_by_group([]), "one group per sample"),
        (lambda: ov.partition_by_group([1, 1, 2], num_clients=3), "number of groups, 2, got 3"),
    ],
)
def test_the_others_report_what_is_wrong(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_groups_are_numbers_or_names():
    with pytest.raises(TypeError, match="float64"):
        ov.partition_by_group([0.5, 1.5])
