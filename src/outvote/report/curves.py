"""Curves over rounds: the mean of several runs, and how far they are apart."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from outvote.results.run import Result


class Curve(NamedTuple):
    """A mean over seeds, at the rounds where anything was measured."""

    rounds: NDArray[np.int64]
    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    """Of the sample; 0 where one seed is left."""
    ends: list[int]
    """The last rounds of the runs that diverged."""


def curve_of(
    results: Sequence[Result], column: Literal["accuracy", "deviation", "honest_norm"]
) -> Curve:
    """Average a column of all runs, round by round; a run that diverged counts until then."""
    rounds = np.unique(np.concatenate([each.series.round for each in results]))
    table = np.full((len(results), len(rounds)), np.nan)
    for row, each in zip(table, results, strict=True):
        row[np.searchsorted(rounds, each.series.round)] = getattr(each.series, column)
    known = ~np.isnan(table)
    counts = known.sum(axis=0)
    mean = np.where(known, table, 0.0).sum(axis=0) / np.maximum(counts, 1)
    squares = np.where(known, (table - mean) ** 2, 0.0).sum(axis=0)
    std = np.sqrt(squares / np.maximum(counts - 1, 1))
    some = counts > 0
    ends = [each.status.round for each in results if each.status.outcome == "diverged"]
    return Curve(rounds[some], mean[some], std[some], ends)
