"""Figures over rounds: accuracy, and the deviation of the update (Figure 2 of the paper)."""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from outvote.report.curves import Curve, curve_of, rounds_per_point
from outvote.report.figures_style import (
    BLUE,
    COLOURS,
    RED,
    LineStyle,
    legend_below,
    line_styles,
    panels,
)
from outvote.report.grid import Grid
from outvote.report.naming import family
from outvote.results.run import Result

Column = Literal["accuracy", "deviation"]


class Panel(NamedTuple):
    """The curves of one panel: the runs of each rule."""

    title: str
    results: dict[str, Sequence[Result]]


def draw_accuracy(grids: Sequence[Grid]) -> Figure:
    """Draw accuracy by round, mean and deviation over seeds: a panel for each column."""
    found = [panel for grid in grids for panel in _by_column(grid, len(grids) > 1)]
    styles = line_styles([row for panel in found for row in panel.results])
    return _draw(found, styles, "accuracy", "accuracy in percent")


def draw_deviation(grids: Sequence[Grid]) -> Figure:
    """Draw how far the update is from the honest mean: a panel for each rule and its forms."""
    found = [
        panel for grid in grids for k in range(len(grid.columns)) for panel in _by_rule(grid, k)
    ]
    forms = list(dict.fromkeys(row for panel in found for row in panel.results))
    colours = dict(zip(forms, (RED, BLUE, *COLOURS[2:]), strict=False))
    if len(colours) < len(forms):
        raise ValueError(
            f"deviation shows at most {len(COLOURS)} forms of a rule, got {len(forms)}; choose "
            "a part (--part), or fewer runs."
        )
    styles = {form: LineStyle(colour, "-", 1.2) for form, colour in colours.items()}
    return _draw(found, styles, "deviation", "distance to honest mean")


def _by_column(grid: Grid, is_one_of_many: bool) -> list[Panel]:
    result = []
    for k, title in enumerate(grid.titles):
        runs = {row: grid.cells[n][k].results for n, row in enumerate(grid.rows)}
        whole = f"{grid.title}\n{title}" if is_one_of_many and grid.title else title
        result.append(Panel(whole, {row: each for row, each in runs.items() if each}))
    return [panel for panel in result if panel.results]


def _by_rule(grid: Grid, column: int) -> list[Panel]:
    groups: dict[str, dict[str, Sequence[Result]]] = {}
    for number, row in enumerate(grid.rows):
        if grid.cells[number][column].results:
            name = family(row)
            form = "the rule alone" if row == name else row.replace(name, "rule", 1)
            groups.setdefault(name, {})[form] = grid.cells[number][column].results
    more = f", {grid.titles[column]}" if len(grid.columns) > 1 else ""
    return [Panel(f"{name}{more}", runs) for name, runs in groups.items()]


def _draw(
    found: Sequence[Panel], styles: Mapping[str, LineStyle], column: Column, title: str
) -> Figure:
    made = panels(len(found), sharex=True, sharey=column == "accuracy")
    window = rounds_per_point([each for p in found for runs in p.results.values() for each in runs])
    for axes, panel in zip(made.axes, found, strict=True):
        axes.set_title(panel.title)
        axes.margins(x=0.02)
        for row, results in panel.results.items():
            scale = 100.0 if column == "accuracy" else 1.0
            _draw_curve(axes, curve_of(results, column, window), styles[row], scale)
        if column == "deviation":
            axes.set_ylim(bottom=0)
    for axes in made.lowest:
        axes.set_xlabel("round" if window == 1 else f"round (means of {window})")
    for axes in made.leftmost:
        axes.set_ylabel(title)
    lines = [
        Line2D([], [], color=style.colour, linestyle=style.dashes, linewidth=style.width + 0.3)
        for style in styles.values()
    ]
    legend_below(made.figure, lines, list(styles))
    return made.figure


def _draw_curve(axes: Axes, curve: Curve, style: LineStyle, scale: float) -> None:
    """Draw a mean and its band; a cross where a run diverged."""
    if not len(curve.rounds):
        return
    mean, std = scale * curve.mean, scale * curve.std
    axes.plot(curve.rounds, mean, color=style.colour, linestyle=style.dashes, linewidth=style.width)
    if std.any():
        low, high = mean - std, mean + std
        axes.fill_between(curve.rounds, low, high, color=style.colour, alpha=0.13, linewidth=0)
    for end in curve.ends:
        place = min(int(np.searchsorted(curve.rounds, end)), len(mean) - 1)
        axes.plot(curve.rounds[place], mean[place], marker="x", color=style.colour, markersize=5)
