"""The tables of docs/concepts/theory.md: how loose each bound is, and both sides of convergence."""

from collections.abc import Sequence
from math import sqrt
from pathlib import Path

import numpy as np

import outvote as ov
from marks import put_between
from outvote.results.collect import collect
from outvote.results.run import Result
from outvote.suites.suite import read_suite

PAGE = Path(__file__).parents[1] / "docs" / "concepts" / "theory.md"
BEGIN, END = "<!-- bounds, made by study/results_pages.py -->", "<!-- end of bounds -->"
NAME = "theory-small"
LONGEST_STEP = 4 / 3
"""In units of 1 / L: the inequality is for steps up to it."""


def theory_bounds(folder: Path) -> str:
    """Return the three tables."""
    runs = collect([folder / f"{NAME}.csv.gz"])
    rules = read_suite(str(folder / f"{NAME}.toml")).parts[0].settings["rule"]
    by_rule = {str(ov.make_rule(rule)): rule for rule in rules}
    groups = [
        (rule, [run for run in runs if run.config["rule"] == text])
        for text, rule in by_rule.items()
    ]
    parts = "What the radius for whole vectors consists of, in percent, with the means of κ̂ and σ̂:"
    sides = "Both sides of the convergence inequality, summed over the rounds of a run:"
    tables = [_looseness(groups), parts, _parts(groups), sides, _sides(groups)]
    return "\n\n".join(tables)


def with_theory_bounds(page: str, folder: Path) -> str:
    """Return the page with the tables put between its marks."""
    return put_between(page, BEGIN, END, theory_bounds(folder))


def _looseness(groups: Sequence[tuple[str, list[Result]]]) -> str:
    rows = []
    for rule, runs in groups:
        away = [_root_mean_square(run.series.gradient_deviation) for run in runs]
        cells = [_range(away, 2), _range([_mean(run.series.gradient_norm) for run in runs], 2)]
        # Both are distances to the mean of what the honest clients sent, in the unit of an update.
        own = [_root_mean_square(run.series.deviation) for run in runs]
        cells.append(_ratios([run.series.certificate for run in runs], own, 1))
        for name in ("printed_deviation", "deviation", "deviation_of_any_attack"):
            cells.append(_ratios([_bounds(rule, run, name) for run in runs], away, 0))
        rows.append([rule, *cells])
    titles = ["deviation", "‖∇L‖", "certificate / its deviation", "as printed / deviation"]
    titles += ["all constants / deviation", "any attack / deviation"]
    return _table(["rule", *titles], rows)


def _ratios(bounds: Sequence[np.ndarray], away: Sequence[float], decimals: int) -> str:
    found = [_root_mean_square(bound) / own for bound, own in zip(bounds, away, strict=True)]
    return _range(found, decimals)


def _bounds(rule: str, run: Result, name: str) -> np.ndarray:
    """Return a bound in every round, from its constants; a rule without GAS has one, recorded."""
    series = run.series
    if not rule.startswith("gas"):
        none = np.full(len(series.kappa), np.nan)
        return series.deviation_bound if name == "deviation" else none
    num_groups = ov.make_rule(rule).num_groups  # type: ignore[attr-defined]
    bounds = [
        ov.GASBound(
            num_clients=int(series.num_sampled[k]),
            num_byzantine=int(series.num_byzantine[k]),
            num_groups=num_groups,
            resilience=float(series.resilience[k]),
            kappa=float(series.kappa[k]),
            sigma=float(series.sigma[k]),
        )
        for k in range(len(series.kappa))
    ]
    return np.sqrt([getattr(bound, f"squared_{name}") for bound in bounds])


def _parts(groups: Sequence[tuple[str, list[Result]]]) -> str:
    rows = []
    for rule, runs in groups:
        if not rule.startswith("gas"):
            continue
        bound = _bound(rule, runs)
        radius = bound.filter_radius()
        error = 2 * bound.rule_error
        own = (bound.honest_mean + bound.byzantine_loss) / bound.num_groups - error
        shares = [100 * each / radius for each in (own, error, radius - own - error)]
        constants = [f"{bound.resilience:.2f}", f"{bound.lemma1_factor:.1f}"]
        cells = [*constants, f"{radius:.0f}", f"{bound.vector_radius():.0f}"]
        rows.append([rule, *cells, *(f"{share:.0f}" for share in shares)])
    titles = ["λ", "c²", "R(1)", "√p R(1)", "noise and heterogeneity", "error of the rule"]
    return _table(["rule", *titles, "Chebyshev"], rows)


def _bound(rule: str, runs: Sequence[Result]) -> ov.GASBound:
    """Return the bound for the mean constants of the runs."""
    constants = {
        name: float(np.mean([_mean(getattr(run.series, name)) for run in runs]))
        for name in ("kappa", "sigma", "resilience")
    }
    gas = ov.make_rule(rule)
    series = runs[0].series
    return ov.GASBound(
        num_clients=int(series.num_sampled[0]),
        num_byzantine=int(series.num_byzantine[0]),
        num_groups=gas.num_groups,  # type: ignore[attr-defined]
        **constants,
    )


def _sides(groups: Sequence[tuple[str, list[Result]]]) -> str:
    rows = []
    for rule, runs in groups:
        left = [float(run.series.descent.sum()) for run in runs]
        right = [float(run.series.descent_bound.sum()) for run in runs]
        holds = np.concatenate([run.series.descent >= run.series.descent_bound for run in runs])
        steps = np.concatenate([_rate(run) * run.series.lipschitz for run in runs])
        is_short = steps <= LONGEST_STEP
        counts = [
            f"{int(holds[some].sum())} of {int(some.sum())}" for some in (is_short, ~is_short)
        ]
        rows.append([rule, _range(left, 2), _range(right, 2), *counts])
    titles = ["L(w₀) − L(w_T)", "right side", "holds, η L̂ ≤ 4/3", "holds, η L̂ > 4/3"]
    return _table(["rule", *titles], rows)


def _rate(run: Result) -> float:
    return float(run.config["training"]["learning_rate"])


def _root_mean_square(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return sqrt(float(np.square(known).mean())) if len(known) else float("nan")


def _mean(values: np.ndarray) -> float:
    return float(np.nanmean(values))


def _range(values: Sequence[float], decimals: int) -> str:
    """Return the least and the largest of the runs."""
    if np.isnan(values).all():
        return "–"
    text = f"{min(values):.{decimals}f} to {max(values):.{decimals}f}"
    return text.replace("-", "−")


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(titles)} |", f"|---|{'---:|' * (len(titles) - 1)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])
