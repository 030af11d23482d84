"""Who is believed: the shares of liars and honest clients kept, and the accuracy (Figure 1)."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from outvote.report.cells import Cell, Spread, spread_of
from outvote.report.figures_style import COLOURS, GREY, legend_below
from outvote.report.grid import Grid
from outvote.results.run import Result

MOST_CONDITIONS = 6


class Condition(NamedTuple):
    """One bar for each rule: the same attack on the same data."""

    title: str
    cells: dict[str, Cell]


def draw_selection(grids: Sequence[Grid]) -> Figure:
    """Draw panels of bars, a group for each rule: the liars' share of the update, and accuracy.

    Of runs of earlier versions, who was kept is known, but not how much of them.
    """
    found = _conditions(grids)
    rows = list(dict.fromkeys(row for each in found for row in each.cells))
    size = (10.5, 0.9 + len(rows) * (0.16 * len(found) + 0.2))
    figure = Figure(figsize=size, layout="constrained")
    panels = SHARES if any(grid.knows_weights for grid in grids) else COUNTS
    all_axes = figure.subplots(1, len(panels), sharey=True)
    for axes, (title, share) in zip(all_axes, panels.items(), strict=True):
        handles = [_draw_bars(axes, rows, found, number, share) for number in range(len(found))]
        axes.set_title(title)
        axes.set_xlabel("percent")
        axes.set_xlim(0, 100)
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
    all_axes[0].set_yticks(range(len(rows)), rows)
    all_axes[0].invert_yaxis()
    legend_below(figure, handles, [each.title for each in found])
    return figure


def kept_honest(result: Result) -> float:
    """Return the share of the honest clients sampled that had a share in the update."""
    series = result.series
    sampled, kept = series.num_sampled.sum(), series.num_kept.sum()
    if result.attack != "none":  # Then those who could lie do not, and are honest, too.
        sampled -= series.num_byzantine.sum()
        kept -= series.num_kept_byzantine.sum()
    return float(kept / sampled) if sampled else float("nan")


SHARES: dict[str, Callable[[Result], float]] = {
    "liars' share of the update": lambda result: result.byzantine_weight,
    "best accuracy": lambda result: result.best,
}
COUNTS: dict[str, Callable[[Result], float]] = {
    "liars kept": lambda result: result.kept_byzantine,
    "honest clients kept": kept_honest,
    "best accuracy": lambda result: result.best,
}


def _conditions(grids: Sequence[Grid]) -> list[Condition]:
    found = []
    for grid in grids:
        for k, title in enumerate(grid.titles):
            cells = {row: grid.cells[n][k] for n, row in enumerate(grid.rows)}
            cells = {row: cell for row, cell in cells.items() if cell.results}
            if cells:
                found.append(Condition(_title(grid, title, len(grids) > 1), cells))
    if not found:
        raise ValueError("none of these runs is over; play them to the end.")
    if len(found) > MOST_CONDITIONS:
        raise ValueError(
            f"selection shows at most {MOST_CONDITIONS} columns side by side, got {len(found)}; "
            "choose a part (--part), or take --kind heatmap --metric kept."
        )
    return found


def _title(grid: Grid, column: str, is_one_of_many: bool) -> str:
    if not is_one_of_many or not grid.title:
        return column
    return grid.title if len(grid.columns) == 1 else f"{grid.title}, {column}"


def _draw_bars(
    axes: Axes,
    rows: Sequence[str],
    found: Sequence[Condition],
    number: int,
    share: Callable[[Result], float],
) -> object:
    """Draw the bars of one condition, with the deviation over seeds; a bar of nothing is said."""
    height = 0.8 / len(found)
    offset = (number - (len(found) - 1) / 2) * height
    spreads = [_spread(found[number].cells.get(row), share) for row in rows]
    places = np.arange(len(rows)) + offset
    means = [0.0 if each is None else each.mean for each in spreads]
    stds = [0.0 if each is None or each.std is None else each.std for each in spreads]
    bars = axes.barh(places, means, height=0.9 * height, color=COLOURS[number])
    lows = [min(mean, std) for mean, std in zip(means, stds, strict=True)]
    if any(stds):
        axes.errorbar(
            means, places, xerr=[lows, stds], fmt="none", ecolor="#333333", elinewidth=0.8
        )
    for row, place, each in zip(rows, places, spreads, strict=True):
        _write(axes, float(place), each, "not run" if row not in found[number].cells else "none")
    return bars


def _write(axes: Axes, place: float, spread: Spread | None, instead: str) -> None:
    """Write a number right of its bar, or inside if there is no room."""
    if spread is None:
        axes.text(1.0, place, instead, va="center", fontsize=6.5, color=GREY)
        return
    text, end = f"{spread.mean:.1f}", spread.mean + (spread.std or 0.0)
    if end < 90:
        axes.text(end + 1.0, place, text, va="center", fontsize=6.5, color="#333333")
    else:
        inside = spread.mean - (spread.std or 0.0) - 1.0
        axes.text(inside, place, text, va="center", ha="right", fontsize=6.5, color="white")


def _spread(cell: Cell | None, share: Callable[[Result], float]) -> Spread | None:
    return None if cell is None else spread_of([100 * share(each) for each in cell.results])
