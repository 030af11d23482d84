"""The theory in a report: distances of updates to the expected gradient beside their bounds."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from outvote.report.cells import grouped
from outvote.results.labels import names_of
from outvote.results.run import Result

COLUMNS = (
    "rule",
    "attack",
    "runs",
    "deviation",
    "norm of the gradient",
    "bound / deviation",
    "bound as printed / deviation",
    "rounds below the bound",
    "convergence inequality holds",
)
NUM_TEXT = 2
LONGEST_STEP = 4 / 3
"""In units of 1 / L: the convergence inequality is for steps up to it."""
Values = NDArray[np.float64]


def theory_rows(results: Sequence[Result]) -> list[list[str]]:
    """Return a row for each rule and attack of the runs that measured the theory."""
    measured = [each for each in results if not np.isnan(each.series.gradient_deviation).all()]
    rules = names_of(each.config["rule"] for each in measured)
    attacks = names_of(each.config["attack"] for each in measured)
    groups = grouped(
        measured, lambda each: (rules[each.config["rule"]], attacks[each.config["attack"]])
    )
    return [[*names, str(len(runs)), *_cells(runs)] for names, runs in groups.items()]


def _cells(runs: Sequence[Result]) -> list[str]:
    series = [each.series for each in runs]
    away = [_root_mean_square(each.gradient_deviation) for each in series]
    norms = [_root_mean_square(each.gradient_norm) for each in series]
    bounds = [[_root_mean_square(each.deviation_bound) for each in series]]
    bounds += [[_root_mean_square(each.printed_bound) for each in series]]
    ratios = [np.divide(bound, away) for bound in bounds]
    below = np.concatenate([each.deviation_bound - each.gradient_deviation for each in series])
    above = np.concatenate([_descents(each) for each in runs])
    return [_range(away), _range(norms), *map(_range, ratios), _share(below), _share(above)]


def _descents(run: Result) -> Values:
    """Return left minus right side of the inequality, in the rounds that it is for."""
    series = run.series
    step = run.setting("training.learning_rate") * series.lipschitz
    return np.where(step <= LONGEST_STEP, series.descent - series.descent_bound, np.nan)


def _root_mean_square(values: Values) -> float:
    known = values[~np.isnan(values)]
    return float(np.sqrt(np.mean(known**2))) if len(known) else np.nan


def _range(values: Sequence[float] | Values) -> str:
    if np.isnan(values).all():
        return "–"
    low, high = (_number(each) for each in (np.nanmin(values), np.nanmax(values)))
    return low if low == high else f"{low} to {high}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _share(differences: Values) -> str:
    known = differences[~np.isnan(differences)]
    return f"{(known >= 0).sum():,} of {len(known):,}" if len(known) else "–"
