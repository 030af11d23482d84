"""Curves over rounds: the mean of several runs, and how far they are apart."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from outvote.results.run import Result

MAX_POINTS = 50
"""Of a curve: more are too many to be told apart, so several rounds are one point."""


class Curve(NamedTuple):
    """A mean over seeds, at the rounds where anything was measured."""

    rounds: NDArray[np.int64]
    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    """Of the sample; 0 where one seed is left."""
    ends: list[int]
    """The last rounds of the runs that diverged."""


def rounds_per_point(results: Sequence[Result]) -> int:
    """Return how many rounds are to be one point of a curve."""
    last = max((int(each.series.round[-1]) for each in results if len(each.series)), default=1)
    return -(-last // MAX_POINTS)


def curve_of(
    results: Sequence[Result],
    column: Literal["accuracy", "deviation", "honest_norm"],
    window: int = 1,
) -> Curve:
    """Average a column of all runs, round by round; a run that diverged counts until then.

    With a window, every so many rounds of a run are averaged first, and stand at the last of them.
    """
    rounds = np.unique(np.concatenate([_places(each, window) for each in results]))
    table = np.full((len(results), len(rounds)), np.nan)
    for row, each in zip(table, results, strict=True):
        row[:] = _averaged(rounds, _places(each, window), getattr(each.series, column))
    known = ~np.isnan(table)
    counts = known.sum(axis=0)
    mean = np.where(known, table, 0.0).sum(axis=0) / np.maximum(counts, 1)
    squares = np.where(known, (table - mean) ** 2, 0.0).sum(axis=0)
    std = np.sqrt(squares / np.maximum(counts - 1, 1))
    some = counts > 0
    ends = [each.status.round for each in results if each.status.outcome == "diverged"]
    return Curve(rounds[some], mean[some], std[some], ends)


def _places(result: Result, window: int) -> NDArray[np.int64]:
    """Return the rounds at which the rounds of a run stand."""
    places: NDArray[np.int64] = -(-result.series.round // window) * window
    last = result.series.round[-1] if len(result.series) else 0
    return np.minimum(places, last)


def _averaged(
    rounds: NDArray[np.int64], places: NDArray[np.int64], values: NDArray[np.float64]
) -> NDArray[np.float64]:
    known = ~np.isnan(values)
    index = np.searchsorted(rounds, places[known])
    counts = np.bincount(index, minlength=len(rounds))
    sums = np.bincount(index, weights=values[known], minlength=len(rounds))
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
