"""The numbers of `outvote plan`."""

from fractions import Fraction
from math import comb, isclose

import click
import pytest

from outvote.cli.plan import Sampling, at_least_once


def by_the_formula(num_clients, num_byzantine, num_sampled, k):
    honest = comb(num_clients - num_byzantine, num_sampled - k)
    return Fraction(comb(num_byzantine, k) * honest, comb(num_clients, num_sampled))


def test_fifty_clients_of_which_ten_are_byzantine_give_the_figures_of_the_specification():
    sampling = Sampling(50, 10, 5)
    found = [sampling.probability(lambda k, wanted=wanted: k == wanted) for wanted in range(6)]
    # The specification prints them rounded to their last digit.
    wanted = [(0.311, 3), (0.431, 3), (0.210, 3), (0.044, 3), (0.0040, 4), (0.00012, 5)]
    assert [round(p, digits) for p, (_, digits) in zip(found, wanted, strict=True)] == [
        value for value, _ in wanted
    ]


@pytest.mark.parametrize(("num_byzantine", "share"), [(10, 0.048), (15, 0.152)])
def test_the_share_of_rounds_with_a_byzantine_majority_is_that_of_the_specification(
    num_byzantine, share
):
    majority = Sampling(50, num_byzantine, 5).probability(lambda k: 2 * k > 5)
    assert round(majority, 3) == share


def test_an_all_byzantine_round_in_two_hundred_has_the_probability_of_the_specification():
    everyone = Sampling(50, 10, 5).probability(lambda k: k == 5)
    assert round(at_least_once(everyone, 200), 3) == 0.024


@pytest.mark.parametrize(
    ("num_clients", "num_byzantine", "num_sampled"),
    [(50, 10, 5), (3597, 720, 18), (10, 10, 4), (10, 0, 4), (7, 5, 6), (1, 1, 1), (9, 4, 9)],
)
def test_every_probability_is_the_exact_fraction_rounded_once(
    num_clients, num_byzantine, num_sampled
):
    sampling = Sampling(num_clients, num_byzantine, num_sampled)
    stream = sampling.num_draws()
    assert sum(stream.values()) == comb(num_clients, num_sampled)
    for k in range(num_sampled + 1):
        exact = by_the_formula(num_clients, num_byzantine, num_sampled, k)
        assert Fraction(stream.get(k, 0), comb(num_clients, num_sampled)) == exact
        assert sampling.probability(lambda found, k=k: found == k) == float(exact)


def test_half_of_an_even_sample_is_no_majority():
    sampling = Sampling(4, 2, 4)
    assert sampling.probability(lambda k: 2 * k > 4) == 0


@pytest.mark.parametrize(("probability", "rounds"), [(0.3, 1), (0.3, 7), (1.0, 3), (0.0, 5)])
def test_at_least_once_is_one_minus_never(probability, rounds):
    assert isclose(at_least_once(probability, rounds), 1 - (1 - probability) ** rounds)


def test_a_tiny_probability_is_not_lost_in_rounding():
    assert isclose(at_least_once(1e-18, 100), 1e-16, rel_tol=1e-9)


@pytest.mark.parametrize(("arguments", "option"), [((5, 6, 2), "byzantine"), ((5, 1, 6), "sample")])
def test_more_than_all_clients_is_refused_by_the_name_of_the_option(arguments, option):
    with pytest.raises(click.UsageError, match=f"--{option} must be at most the 5"):
        Sampling(*arguments)
