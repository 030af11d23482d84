"""A run in a few numbers."""

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from outvote.results.series import Series, to_digits

NUM_LAST = 10


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What tables print of a run; None: it cannot be told."""

    best: float | None
    """The largest accuracy of all rounds."""
    final: float | None
    """The last accuracy that was measured."""
    last_ten: float | None
    """The mean of the last ten accuracies."""
    kept_byzantine: float | None
    """The share of the liars sampled that had a share in the update; None if nobody lied."""
    byzantine_weight: float | None
    """The liars' share of all weights, on average over the rounds in which somebody lied."""
    deviation: float | None
    """How far the update was from the honest mean, on average over the rounds in which somebody
    lied; over all rounds if nobody did."""


def summary_of(series: Series, *, attack: str) -> Summary:
    """Sum a run up; under the attack "none" those who could lie do not."""
    known = series.accuracy[~np.isnan(series.accuracy)]
    num_lies = np.zeros_like(series.num_byzantine) if attack == "none" else series.num_byzantine
    lied = num_lies > 0
    total = int(num_lies.sum())
    return Summary(
        best=float(known.max()) if len(known) else None,
        final=float(known[-1]) if len(known) else None,
        last_ten=_mean(known[-NUM_LAST:]),
        kept_byzantine=float(series.num_kept_byzantine.sum() / total) if total else None,
        byzantine_weight=_mean(_as_exported(series.byzantine_weight[lied])),
        deviation=_mean(_as_exported(series.deviation[lied] if lied.any() else series.deviation)),
    )


def _as_exported(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return so many digits as an export has: a table is the same from folders and from it."""
    return np.array([float(to_digits(value)) for value in values.tolist()])


def _mean(values: NDArray[np.float64]) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None
