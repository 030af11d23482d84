"""Each rule beside its oracle, and rounds to compare the two on."""

import itertools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import assume
from hypothesis import strategies as st

import oracles as slow
import outvote as ov
from calling import update_of
from inputs import FAMILIES, make_rows, tolerance


class Pair(NamedTuple):
    rule: ov.Rule
    oracle: slow.Oracle
    most_clients: int = 12
    relative: float = 1e-9
    # The specification leaves the answer open, or to rounding, where this does not hold.
    is_defined: Callable[[int, int, int], bool] = lambda n, d, f: True


def with_options(oracle, **options):
    return lambda X, f: oracle(X, f, **options)


PAIRS = {
    "mean": Pair(ov.Mean(), slow.mean),
    "median": Pair(ov.Median(), slow.median),
    "median-lower": Pair(ov.Median(even="lower"), with_options(slow.median, even="lower")),
    "trimmed-mean": Pair(ov.TrimmedMean(), slow.trimmed_mean),
    "meamed": Pair(ov.MeaMed(), slow.meamed),
    "krum": Pair(ov.Krum(), slow.krum),
    "krum-other": Pair(
        ov.Krum(num_neighbours=2, power=1),
        with_options(slow.krum, num_neighbours=2, power=1),
        is_defined=lambda n, d, f: n > 2,
    ),
    "multi-krum": Pair(ov.MultiKrum(), slow.multi_krum),
    "multi-krum-other": Pair(
        ov.MultiKrum(num_selected=2, num_neighbours=3, power=4),
        with_options(slow.multi_krum, num_selected=2, num_neighbours=3, power=4),
        is_defined=lambda n, d, f: n > 3,
    ),
    "bulyan": Pair(ov.Bulyan(), slow.bulyan),
    "bulyan-lower": Pair(ov.Bulyan(even="lower"), with_options(slow.bulyan, even="lower")),
    "bulyan-one-shot": Pair(
        ov.Bulyan(selection="one-shot"), with_options(slow.bulyan, selection="one-shot")
    ),
    "rfa": Pair(ov.RFA(), slow.rfa),
    "rfa-other": Pair(
        ov.RFA(num_iterations=8, smoothing=0.1, start="zero"),
        with_options(slow.rfa, num_iterations=8, smoothing=0.1, start="zero"),
    ),
    # Between the two middle points of a line every point is a geometric median.
    "geometric-median": Pair(
        # With a client at 1e8 it takes small steps, and a thousand may be too few.
        ov.GeometricMedian(max_iterations=10_000),
        slow.geometric_median,
        # A minimum is flat: half of the digits of its position are lost.
        relative=1e-7,
        is_defined=lambda n, d, f: n % 2 == 1 or (n > 2 and d > 1),
    ),
    # Two rows are equally far from their mean.
    "dnc": Pair(ov.DnC(), slow.dnc, is_defined=lambda n, d, f: n != 2),
    "dnc-other": Pair(
        ov.DnC(removal_factor=1.5, num_iterations=2),
        with_options(slow.dnc, removal_factor=1.5),
        is_defined=lambda n, d, f: n != 2,
    ),
    "mda": Pair(ov.MDA(), slow.mda, most_clients=9),
    "centered-clipping": Pair(ov.CenteredClipping(), slow.centered_clipping),
    "centered-clipping-other": Pair(
        ov.CenteredClipping(radius=0.7, num_iterations=1),
        with_options(slow.centered_clipping, radius=0.7, num_iterations=1),
    ),
    "norm-clipping": Pair(ov.NormClipping(), slow.norm_clipping),
}
EVERY_PAIR = pytest.mark.parametrize("name", PAIRS)


class Round(NamedTuple):
    X: np.ndarray
    f: int
    seed: int


@st.composite
def rounds(draw, pair, rule=None, dims=(1, 16)):
    """Rows, a number of Byzantine clients that `rule` (or the pair's) tolerates, and a seed."""
    family = draw(st.sampled_from(sorted(FAMILIES)))
    n = draw(st.integers(1 if family == "normal" else 2, pair.most_clients))
    d = draw(st.integers(*dims))
    f = draw(st.integers(0, (rule or pair.rule).max_byzantine(num_clients=n)))
    seed = draw(st.integers(0, 2**32 - 1))
    assume(pair.is_defined(n, d, f))
    return Round(make_rows(family, n, d, seed), f, seed)


@st.composite
def partitions(draw, d):
    """One group, one coordinate per group, or a random number of groups of random sizes."""
    order = draw(st.permutations(range(d)))
    p = draw(st.sampled_from([1, d]) | st.integers(1, d))
    cuts = sorted(draw(st.permutations(range(1, d)))[: p - 1]) if d > 1 else []
    return [list(order[a:b]) for a, b in itertools.pairwise([0, *cuts, d])]


def assert_agrees(verdict, expected, X, relative=1e-9):
    atol = tolerance(X, expected, relative)
    np.testing.assert_allclose(update_of(verdict), expected, rtol=0, atol=atol)
