"""No input breaks an attack: zeros, duplicates, huge and tiny numbers, clients that diverged."""

import numpy as np
import pytest
import torch
from hypothesis import given, note, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import outvote as ov

# The inputs are small: more threads only wait for each other.
pytestmark = pytest.mark.usefixtures("one_thread")

MANY = max(40, settings().max_examples * 2 // 5)
DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}
EXTREMES = {
    "float16": [65504.0, -65504.0, 6e-8],
    "bfloat16": [1e38, -3e38, 1e-40],
    "float32": [1e38, -1e38, 3.4e38, -3.4e38, 1e-45],
    "float64": [1e38, -1e38, 1e100, -9e119, 5e-324, 1e300],
}
USUAL = [0.0, -0.0, 1.0, -1.0, 0.1, 2.5, 1e4, 1e-4]
BAD = [np.nan, np.inf, -np.inf]
CHEAP = [
    "none",
    "bit-flip",
    "lie",
    "lie(z=1e38)",
    "lie(spread=variance, reference_set=all)",
    "alie(spread=sample)",
    "min-max",
    "min-max(direction=unit-mean, method=search)",
    "min-max(direction=sign)",
    "min-sum",
    "min-sum(limit=min, spread=sample, method=search)",
    "ipm(epsilon=1e38)",
    "mimic",
    "mimic(client=none)",
    "gaussian(sigma=1e38)",
    "noise",
    "zero",
    "fang",
    "fang(stretch=1e30)",
    "fang(target=krum)",
]
SEARCHES = [
    "ipm(evals=4)",
    "optimal-lie(evals=4)",
    "optimal-ipm(evals=4)",
    "gas-aware(draws=2, steps=1)",
]


@st.composite
def rounds(draw, dtype):
    """Rows drawn from few different ones, so that many are duplicates."""
    num_honest, num_byzantine = draw(st.integers(1, 7)), draw(st.integers(1, 4))
    dim = draw(st.integers(1, 9))
    bad = draw(st.sampled_from([[], BAD]))
    elements = draw(
        st.sampled_from([st.sampled_from(USUAL), st.sampled_from(USUAL + EXTREMES[dtype] + bad)])
    )
    different = draw(npst.arrays(np.float64, (3, dim), elements=elements, fill=st.just(0.0)))
    which = draw(st.lists(st.integers(0, 2), min_size=num_honest, max_size=num_honest))
    own = draw(npst.arrays(np.float64, (num_byzantine, dim), elements=elements))
    return [torch.from_numpy(rows).to(DTYPES[dtype]) for rows in (different[which], own)]


def assert_sound(text, round_, device, **info):
    honest, own = (rows.to(device) for rows in round_)
    before = honest.clone(), own.clone()
    output = ov.make_attack(text).inspect(honest, num_byzantine=len(own), own=own, seed=0, **info)
    assert output.rows.shape == own.shape
    assert output.rows.dtype == honest.dtype
    assert bool(output.rows.isfinite().all())
    for now, then in zip((honest, own), before, strict=True):
        torch.testing.assert_close(now, then, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=MANY)
@given(data=st.data())
def test_no_input_makes_an_attack_send_nonsense(dtype, device, data):
    # Drawing an input takes longer than an attack on it, so that all are tried on each.
    round_ = data.draw(rounds(dtype))
    for text in CHEAP:
        note(text)
        assert_sound(text, round_, device)


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
@pytest.mark.parametrize("text", SEARCHES)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_no_input_makes_a_search_send_nonsense(text, dtype, device, data):
    rule = data.draw(
        st.sampled_from([ov.Mean(), ov.Median(), ov.GAS(ov.MultiKrum(), num_groups=2)])
    )
    assert_sound(text, data.draw(rounds(dtype)), device, rule=rule)
