"""The constants of (f, lambda)-resilience: values, truth, and the search beside them."""

from itertools import combinations
from math import inf, sqrt

import numpy as np
import pytest

import outvote as ov
from command_line import run
from outvote.testing import worst_case

KNOWN = [
    *("mda", "trimmed-mean", "meamed", "median", "geometric-median", "krum", "multi-krum"),
    *("bulyan", "gas(multi-krum, num_groups=1)", "gas(median, num_groups=1)"),
]


@pytest.mark.parametrize(
    ("text", "n", "f", "dim", "expected"),
    [
        ("mda", 10, 2, 5, 0.5),
        ("trimmed-mean", 10, 2, 4, 0.5),
        ("trimmed-mean", 10, 2, 10**6, 0.25 * 2 * sqrt(8)),
        ("trimmed-mean", 10, 2, None, 0.25 * 2 * sqrt(8)),
        ("meamed", 10, 2, 4, 1.0),
        ("median", 10, 2, 4, 1.25),
        ("geometric-median", 10, 2, 4, 1 + 8 / sqrt(60)),
        ("krum", 10, 2, 4, 1 + sqrt(6 / 5)),
        ("multi-krum", 10, 2, 4, 0.25 * (2 + sqrt(6 / 5))),
        ("multi-krum", 10, 0, 4, 0.0),
        ("bulyan", 11, 0, 4, 0.0),
        ("bulyan", 11, 2, 1, 5 / 3),
        ("bulyan", 11, 2, 4, 5 / 3 * 2),
        ("bulyan", 50, 2, 1, 12 / 42),
        ("bulyan", 11, 2, None, 5 / 3 * sqrt(16)),
        ("gas(multi-krum, num_groups=1)", 10, 2, 4, 0.25 * (2 + 0.5 * (2 + sqrt(6 / 5)))),
        ("gas(median)", 10, 2, 4, 0.25 * (1 + (1 + 1.25) * 4)),
        ("gas(mda, num_groups=100)", 10, 2, None, 0.25 * (1 + (1 + 2 * 0.5) * sqrt(1400))),
    ],
)
def test_the_constants_are_those_of_the_table(text, n, f, dim, expected):
    found = ov.resilience(ov.make_rule(text), n, f, dim)
    assert found.constant == pytest.approx(expected)
    published = ("mda", "trimmed-mean", "meamed", "median", "geometric-median")
    assert found.kind == ("published" if text in published else "derived")
    assert ov.resilience(text, n, f, dim) == found


@pytest.mark.parametrize(
    ("text", "n", "f"),
    [
        ("multi-krum", 2, 0),
        ("multi-krum", 10, 4),
        ("multi-krum(num_selected=3)", 10, 2),
        ("krum(power=1)", 10, 2),
        ("median(even=lower)", 10, 2),
        ("rfa", 10, 2),
        ("dnc", 10, 2),
        ("mean", 10, 0),
        ("bulyan", 10, 2),
        ("bulyan(selection=one-shot)", 11, 2),
        ("gas(rfa)", 10, 2),
        ("gas(median)", 10, 5),
        ("gas(median, split=by-layer)", 10, 2),
        ("gas(median, num_groups=2, split=by-layer-random)", 10, 2),
    ],
)
def test_what_is_not_known_is_none(text, n, f):
    assert ov.resilience(text, n, f, 4) == ov.Resilience(None, "none")


@pytest.mark.parametrize(
    ("given", "named"), [((0, 0), "num_clients"), ((5, -1), "num_byzantine"), ((5, 1, 0), "dim")]
)
def test_numbers_that_make_no_sense_are_refused(given, named):
    with pytest.raises(ValueError, match=f"{named} must be at least"):
        ov.resilience("median", *given)


@pytest.mark.parametrize("text", KNOWN)
def test_no_subset_of_clients_is_farther_from_the_answer_than_its_constant(text):
    random = np.random.default_rng(8)
    rule = ov.make_rule(text)
    largest = 0.0
    for n, f, dim in [(5, 1, 1), (5, 1, 4), (7, 2, 1), (7, 2, 4), (9, 2, 2)] * 12:
        n, f = (n + 2, 1) if text == "bulyan" else (n, f)  # noqa: PLW2901
        rows = random.normal(size=(n, dim)) * 10.0 ** random.integers(0, 2, size=(n, 1))
        rows[:f] += random.choice([0.5, 2.0, 20.0])
        answer = rule(rows, num_byzantine=f)
        constant = ov.resilience(rule, n, f, dim).constant
        for chosen in combinations(range(n), n - f):
            some = rows[list(chosen)]
            diameter = max(np.linalg.norm(a - b) for a, b in combinations(some, 2))
            error = np.linalg.norm(answer - some.mean(0))
            assert error <= constant * diameter * (1 + 1e-9)
            largest = max(largest, error / (constant * diameter))
    assert largest > (0.05 if text.startswith("gas") else 0.1)


@pytest.mark.parametrize(
    ("text", "n", "f", "dim", "least"),
    [
        ("trimmed-mean", 5, 1, 1, 0.99),
        ("mda", 5, 1, 1, 0.99),
        ("meamed", 5, 1, 1, 0.99),
        ("multi-krum", 7, 2, 2, 0.5),
        ("bulyan", 7, 1, 1, 0.6),
        ("bulyan", 7, 1, 4, 0.25),
        ("bulyan", 11, 2, 1, 0.35),
        ("gas(multi-krum, num_groups=2)", 7, 2, 4, 0.2),
    ],
)
def test_an_adversarial_search_comes_near_a_constant_and_never_above(text, n, f, dim, least):
    found = worst_case(text, n, f, dim)
    constant = ov.resilience(text, n, f, dim).constant
    assert least * constant <= found.ratio <= constant * (1 + 1e-9)


def test_a_search_knows_layers():
    """Three layers, each a group, are the same as three groups in the order of the coordinates."""
    by_layer = "gas(median, split=by-layer)"
    found = worst_case(by_layer, 7, 2, 6, num_steps=2, layer_sizes=[2, 2, 2])
    cut = "gas(median, num_groups=3, split=contiguous)"
    assert found.ratio == pytest.approx(worst_case(cut, 7, 2, 6, num_steps=2).ratio)
    halves = "gas(median, num_groups=2, split=contiguous)"
    two = worst_case(by_layer, 7, 2, 6, num_steps=2).ratio
    assert two == pytest.approx(worst_case(halves, 7, 2, 6, num_steps=2).ratio)
    with pytest.raises(ValueError, match="needs the sizes of the layers, got sizes of 5"):
        worst_case(by_layer, 7, 2, 6, layer_sizes=[5])


@pytest.mark.parametrize("split", ["by-layer", "by-layer-random"])
def test_show_finds_a_lower_bound_for_rules_that_split_by_layer(capsys, split):
    shown = run(capsys, "show", f"gas(median, split={split})").out
    assert "lambda: none known. A search found that it is at least" in shown


def test_a_search_returns_the_input_that_it_found():
    found = worst_case("multi-krum", 7, 2, seed=3)
    update = ov.MultiKrum()(found.gradients, num_byzantine=2)
    some = found.gradients[list(found.honest)]
    diameter = max(np.linalg.norm(a - b) for a in some for b in some)
    assert len(found.honest) == 5
    assert np.linalg.norm(update - some.mean(axis=0)) / diameter == pytest.approx(found.ratio)
    again = worst_case(ov.MultiKrum(), 7, 2, seed=3)
    assert again.ratio == found.ratio
    assert (again.gradients == found.gradients).all()
    assert worst_case("multi-krum", 7, 2, seed=3, num_steps=0).ratio <= found.ratio


@pytest.mark.parametrize("text", ["rfa", "dnc", "norm-clipping"])
def test_rules_without_a_constant_leave_clients_that_agree_exactly(text):
    found = worst_case(text, 10, 2, 4)
    assert found.ratio == inf
    some = found.gradients[list(found.honest)]
    assert np.ptp(some, axis=0).max() <= 1e-11
    update = ov.make_rule(text)(found.gradients, num_byzantine=2, seed=0)
    assert np.linalg.norm(update - some.mean(axis=0)) > 1e-6


def test_a_search_against_more_than_a_rule_tolerates_is_refused():
    with pytest.raises(ValueError, match=r"bulyan can be resilient against at most 1 .*, got 2"):
        worst_case("bulyan", 10, 2)


def test_show_prints_the_constant_and_its_kind(capsys):
    shown = run(capsys, "show", "multi-krum").out
    assert "lambda, derived" in shown
    constant = ov.resilience("multi-krum", 10, 2).constant
    assert f"{constant:.3g} (2 of 10)" in shown
    found = run(capsys, "show", "median", "--json").json["resilience"]
    assert found["kind"] == "published"
    assert found["constants"][0]["lambda"] == ov.resilience("median", 5, 1).constant


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("rfa", "lambda: none exists."),
        ("bucketing(median)", "A search found that it is at least"),
        ("mean", "no Byzantine one is tolerated"),
    ],
)
def test_show_labels_what_a_search_found_as_a_lower_bound(text, sentence, capsys):
    assert sentence in run(capsys, "show", text).out.replace("\n", " ")
