"""No input breaks a rule: any mix of NaN, infinities, huge and tiny numbers, and duplicates."""

import numpy as np
import pytest
import torch
from hypothesis import given, note, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import outvote as ov
from every_rule import EVERY_RULE, FAST_RULES, SLOW_RULES, WRAPPABLE_NAMES
from outvote.flat import LARGEST
from outvote.testing.trial import as_array

# The inputs are small: more threads only wait for each other.
pytestmark = pytest.mark.usefixtures("one_thread")

MANY = max(20, settings().max_examples // 5)
# Drawing an input takes longer than a rule on it, so that ten rules in a row are tried on each.
TENS = [
    pytest.param(texts[k : k + 10], marks=marks)
    for texts, marks in [
        (FAST_RULES, []),
        ([text for text in EVERY_RULE if text in SLOW_RULES], [pytest.mark.slow]),
    ]
    for k in range(0, len(texts), 10)
]
EVERY_TEN = pytest.mark.parametrize("texts", TENS, ids=lambda some: f"{some[0]} to {some[-1]}")
DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}
NOT_FINITE = [np.nan, np.inf, -np.inf]
# The largest numbers that must work, the smallest normal one and a denormal one.
EXTREMES = {
    "float16": [65504.0, -65504.0, 300.0, 6.1e-5, 6e-8],
    "bfloat16": [1e38, -1e38, 3e38, -3e38, 1.2e-38, 1e-40],
    "float32": [1e38, -1e38, 3e38, -3e38, 1.2e-38, 1e-45],
    "float64": [1e38, -1e38, 1e100, -9e119, 2.3e-308, 5e-324],
}
# Rejected like infinity: the square of such a number is not finite.
TOO_LARGE = {"float64": [1e300, -1.7e308]}
USUAL = [0.0, -0.0, 1.0, -1.0, 0.1, 2.5, -7.0, 1e4, 1e-4]

COUNTS = st.sampled_from([0.0, 5e-324, 1e-300, 1.0, 2.5, 300.0, 1e9, 1e308])


@st.composite
def matrices(draw, dtype, *, with_rejected=True, most_clients=9, most_coordinates=14):
    """Rows drawn from few different ones, so that many are duplicates, in a float dtype."""
    num_clients = draw(st.integers(1, most_clients))
    dim = draw(st.integers(1, most_coordinates))
    num_different = draw(st.integers(1, num_clients))
    bad = [*NOT_FINITE, *TOO_LARGE.get(dtype, [])] if with_rejected else []
    values = st.sampled_from(USUAL + EXTREMES[dtype])
    rare = st.sampled_from(USUAL + EXTREMES[dtype] + bad)
    elements = draw(st.sampled_from([values, rare, st.sampled_from(EXTREMES[dtype])]))
    fill = draw(st.sampled_from([st.just(0.0), values]))
    different = draw(npst.arrays(np.float64, (num_different, dim), elements=elements, fill=fill))
    which = draw(
        st.lists(st.integers(0, num_different - 1), min_size=num_clients, max_size=num_clients)
    )
    return torch.from_numpy(different[which]).to(DTYPES[dtype])


def as_given(rows, as_numpy, device):
    """Numpy where it has the dtype and the device."""
    if as_numpy and device.type == "cpu" and rows.dtype != torch.bfloat16:
        return rows.numpy()
    return rows.to(device)


def rejected_rows(rows):
    exact = rows.double().numpy()
    return np.flatnonzero(~(np.abs(exact) <= LARGEST).all(axis=1)).tolist()


def reference_for(rule, rows):
    return {"reference": np.ones(rows.shape[1])} if rule.traits.needs_reference else {}


def assert_sound(verdict, rows):
    """Everything is finite but the scores of the rejected rows, and these are named."""
    rejected = rejected_rows(rows)
    assert verdict.rejected == rejected
    assert np.isfinite(as_array(verdict.update)).all()
    assert np.isfinite(verdict.weights).all()
    assert (verdict.weights >= 0).all()
    assert not verdict.weights[rejected].any()
    assert np.flatnonzero(np.isposinf(verdict.scores)).tolist() == rejected
    assert not np.isnan(verdict.scores).any()
    assert not np.isneginf(verdict.scores).any()
    assert sorted(verdict.kept + verdict.dropped + verdict.rejected) == list(range(len(rows)))
    assert verdict.update.shape == rows.shape[1:]
    assert str(verdict.update.dtype).removeprefix("torch.") == str(rows.dtype).split(".")[1]


def within_limit(rule, drawn, num_clients):
    """From 0 to the limit of the rule, by a number that was drawn for all rules."""
    return drawn % (rule.max_byzantine(num_clients=num_clients) + 1)


@EVERY_TEN
@given(data=st.data())
@settings(max_examples=MANY)
def test_no_input_makes_a_rule_return_what_is_not_finite(texts, data, device):
    rows = data.draw(matrices(data.draw(st.sampled_from(sorted(DTYPES)))))
    drawn = data.draw(st.integers(0, len(rows) - 1))
    given_rows = as_given(rows, data.draw(st.booleans()), device)
    for text in texts:
        note(text)
        rule = ov.make_rule(text)
        if not _has_enough_clients(text, len(rows) - len(rejected_rows(rows))):
            continue
        num_byzantine = within_limit(rule, drawn, len(rows))
        reference = reference_for(rule, rows)
        verdict = rule.inspect(given_rows, num_byzantine=num_byzantine, seed=1, **reference)
        assert_sound(verdict, rows)


def _has_enough_clients(text, num_left):
    """Two neighbours cannot be counted among two clients: an error that names it."""
    return "num_neighbours=2" not in text or num_left != 2


@EVERY_TEN
@given(data=st.data())
@settings(max_examples=MANY)
def test_nothing_but_documented_errors_is_raised(texts, data, device):
    rows = data.draw(matrices("float32", most_clients=6, most_coordinates=4))
    info = {
        "num_byzantine": data.draw(st.none() | st.integers(-1, 8)),
        "byzantine_fraction": data.draw(st.none() | st.sampled_from([-0.1, 0, 0.1, 0.3, 0.5])),
        "when_too_many": data.draw(st.sampled_from(["raise", "lower", "lower"])),
        "seed": data.draw(st.none() | st.integers(0, 2**70)),
        "clients": data.draw(st.none() | st.just([f"c{k}" for k in range(5)])),
        "sample_counts": data.draw(
            st.none() | st.lists(COUNTS, min_size=len(rows), max_size=len(rows))
        ),
    }
    for text in texts:
        note(text)
        rule = ov.make_rule(text)
        try:
            verdict = rule.inspect(rows.to(device), **info, **reference_for(rule, rows))
        except ValueError:
            continue
        assert np.isfinite(as_array(verdict.update)).all()
        assert len(verdict.rejected) == len(rejected_rows(rows))
        assert 0 <= verdict.num_byzantine <= rule.max_byzantine(num_clients=len(rows))


MEAN_WITHOUT_BYZANTINE = [
    *["multi-krum", "trimmed-mean", "meamed", "bulyan", "mda", "dnc"],
    *[f"gas({name}, num_groups=3)" for name in WRAPPABLE_NAMES],
]


@given(data=st.data())
@settings(max_examples=MANY)
def test_without_byzantine_clients_these_rules_are_the_mean(data, device):
    rows = data.draw(matrices("float64", with_rejected=False))
    wanted = (rows / len(rows)).sum(dim=0).numpy()
    # Relative to the largest number of the coordinate: sums of huge numbers cancel.
    atol = 1e-12 * rows.abs().amax(dim=0).numpy() + np.finfo(float).tiny
    for text in MEAN_WITHOUT_BYZANTINE:
        note(text)
        verdict = ov.make_rule(text).inspect(rows.to(device), num_byzantine=0, seed=0)
        assert (np.abs(as_array(verdict.update) - wanted) <= atol).all()


@EVERY_TEN
@given(data=st.data())
@settings(max_examples=MANY)
def test_bad_rows_count_as_byzantine(texts, data, device):
    """With the bad rows left out by hand and f lowered by them, the update is the same."""
    dtype = data.draw(st.sampled_from(["float32", "float64"]))
    good = data.draw(matrices(dtype, with_rejected=False, most_coordinates=10))
    num_bad = data.draw(st.integers(1, 3))
    bad = good[:1].expand(num_bad, -1).clone()
    bad[:, data.draw(st.integers(0, good.shape[1] - 1))] = data.draw(st.sampled_from(NOT_FINITE))
    position = data.draw(st.integers(0, len(good)))
    rows = torch.cat([good[:position], bad, good[position:]])
    drawn = data.draw(st.integers(0, len(rows) - 1))
    for text in texts:
        note(text)
        if _has_enough_clients(text, len(good)):
            num_byzantine = within_limit(ov.make_rule(text), drawn, len(rows))
            one, two = with_and_without(text, rows, good, num_byzantine, device)
            assert one.rejected == list(range(position, position + num_bad))
            np.testing.assert_array_equal(as_array(one.update), as_array(two.update))
            assert one.num_byzantine == num_byzantine
            assert one.base_num_byzantine == two.base_num_byzantine


def with_and_without(text, rows, good, num_byzantine, device):
    """The verdict on all rows, and on the good ones with f lowered by the others."""
    rule = ov.make_rule(text)
    info = {"seed": 3, **reference_for(rule, rows)}
    one = rule.inspect(rows.to(device), num_byzantine=num_byzantine, **info)
    # One client less can be one bucket less, and with it the limit of what is inside.
    left = max(0, num_byzantine - (len(rows) - len(good)))
    return one, rule.inspect(good.to(device), num_byzantine=left, when_too_many="lower", **info)
