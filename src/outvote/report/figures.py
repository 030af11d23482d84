"""Figures of runs: the door to all kinds, and curves, deviations and selection bars.

Needs matplotlib.
"""

from collections.abc import Callable, Mapping, Sequence
from math import isnan
from textwrap import fill
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from outvote.report import figure_style as style
from outvote.report.audit import Audit, audit_run, choose_run
from outvote.report.cells import Cell, Grid, Metric, Spread, family, spread_of
from outvote.report.figure_maps import draw_byzantine_and_beta, draw_heatmap, draw_identification
from outvote.report.figure_style import COLOURS, LineStyle, legend_below
from outvote.report.layout import grids_of
from outvote.report.rendered_table import UNKNOWN
from outvote.results.labels import outline
from outvote.results.run import Result

FigureKind = Literal[
    "curves", "heatmap", "selection", "deviation", "identification", "f-beta", "bound"
]
KINDS: tuple[str, ...] = get_args(FigureKind)
FORMATS = tuple(style.NO_DATES)
MAX_POINTS = 50
"""Of a curve: more cannot be distinguished, so several rounds are one point."""
MOST_CONDITIONS = 6
MOST_ROWS = 8
"""Of panels that show shares by round."""
LONGEST_LABEL = 24
"""In characters, of a line beside a panel."""


def figure_file(
    kind: FigureKind,
    results: Sequence[Result],
    format_: str,
    *,
    metric: Metric = "best",
    part: str | Sequence[str] | None = None,
    suites: Sequence[str] = (),
    run: str | None = None,
) -> bytes:
    """Return the file of a figure; a ValueError if the runs are not enough for it."""
    drawn = figure_of(kind, results, metric=metric, part=part, suites=suites, run=run)
    return style.to_bytes(drawn, format_)


def figure_of(
    kind: FigureKind,
    results: Sequence[Result],
    *,
    metric: Metric = "best",
    part: str | Sequence[str] | None = None,
    suites: Sequence[str] = (),
    run: str | None = None,
) -> Figure:
    """Draw a figure; a ValueError if the runs are not enough for it.

    `suites` are files of suites that do not come with outvote.
    """
    if kind == "identification":
        return _audit_figure(_audit(results, run))
    grids = [grid for grid in grids_of(results, part, suites) if grid.results]
    if not grids:
        raise ValueError("none of these runs is finished; run them to the end.")
    # Parts that a suite has for this figure go before all others.
    own = [grid for grid in grids if grid.kind == kind] or grids
    draw: dict[str, Callable[[], Figure]] = {
        "curves": lambda: draw_accuracy(grids),
        "heatmap": lambda: draw_heatmap(grids, metric),
        "f-beta": lambda: draw_byzantine_and_beta([r for g in grids for r in g.results], metric),
        "selection": lambda: draw_selection(own),
        "deviation": lambda: draw_deviation(own),
        "bound": lambda: draw_bound(grids),
    }
    return _fitted(draw[kind])


def audit_figure_file(audit: Audit, format_: str) -> bytes:
    """Return the file of the figure of one audit, of a simulation or of production."""
    return style.to_bytes(_audit_figure(audit), format_)


def _audit_figure(audit: Audit) -> Figure:
    return _fitted(lambda: draw_identification(audit))


def _fitted(draw: Callable[[], Figure]) -> Figure:
    """Draw a figure in the style of all, with titles that fit."""
    with rc_context(fname=style.SETTINGS):
        figure = draw()
        style.fit_titles(figure)
    return figure


def _audit(results: Sequence[Result], run: str | None) -> Audit:
    if run is None and len(results) != 1:
        raise ValueError(
            f"identification shows one run, got {len(results)}; name one by run (--run), such as "
            f"{results[0].name}."
        )
    audit = audit_run(results[0] if run is None else choose_run(results, run))
    if audit is None:
        raise ValueError("an export has no verdicts of single clients; give the folder of the run.")
    return audit


class Curve(NamedTuple):
    """A mean over seeds, at the rounds where anything was measured."""

    rounds: NDArray[np.int64]
    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    """Of the sample; 0 where one seed is left."""
    ends: list[int]
    """The last rounds of the runs that diverged."""


def curve_of(
    results: Sequence[Result],
    column: str,
    window: int = 1,
) -> Curve:
    """Average a column of all runs, round by round; a run that diverged counts until then.

    With a window, every so many rounds of a run are averaged first, and stand at the last of them.
    """
    rounds = np.unique(np.concatenate([_windows(each, window) for each in results]))
    table = np.full((len(results), len(rounds)), np.nan)
    for row, each in zip(table, results, strict=True):
        values = getattr(each.series, column)
        known = ~np.isnan(values)
        index = np.searchsorted(rounds, _windows(each, window)[known])
        counts = np.bincount(index, minlength=len(rounds))
        sums = np.bincount(index, weights=values[known], minlength=len(rounds))
        row[:] = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    known = ~np.isnan(table)
    counts = known.sum(axis=0)
    mean = np.where(known, table, 0.0).sum(axis=0) / np.maximum(counts, 1)
    squares = np.where(known, (table - mean) ** 2, 0.0).sum(axis=0)
    std = np.sqrt(squares / np.maximum(counts - 1, 1))
    some = counts > 0
    ends = [each.status.round for each in results if each.status.outcome == "diverged"]
    return Curve(rounds[some], mean[some], std[some], ends)


def _windows(result: Result, window: int) -> NDArray[np.int64]:
    """Return the last round of each round's window."""
    ends: NDArray[np.int64] = -(-result.series.round // window) * window
    return np.minimum(ends, result.series.round[-1] if len(result.series) else 0)


def _rounds_per_point(cells: Sequence[Cell]) -> int:
    series = [each.series for cell in cells for each in cell.results if len(each.series)]
    return -(-max((int(each.round[-1]) for each in series), default=1) // MAX_POINTS)


Panel = tuple[str, dict[str, Cell]]
"""The title of a panel, and the cell of each of its curves."""


def draw_accuracy(grids: Sequence[Grid]) -> Figure:
    """Draw accuracy by round, mean and deviation over seeds: a panel for each column.

    Where no run has an accuracy, the loss on the test set is drawn.
    """
    found = [
        (f"{grid.title}\n{title}" if len(grids) > 1 and grid.title else title, cells)
        for grid in grids
        for k, title in enumerate(grid.titles)
        if (cells := grid.column(k))
    ]
    styles = style.line_styles([row for _, cells in found for row in cells])
    runs = [run for _, cells in found for cell in cells.values() for run in cell.results]
    if runs and all(isnan(run.best) for run in runs):  # Targets are not classes.
        return _draw_panels(found, styles, "test_loss", "loss on the test set")
    return _draw_panels(found, styles, "accuracy", "accuracy in percent")


def draw_deviation(grids: Sequence[Grid]) -> Figure:
    """Draw how far the update is from the honest mean: a panel for each rule and its forms."""
    found = [
        panel for grid in grids for k in range(len(grid.columns)) for panel in _by_rule(grid, k)
    ]
    forms = list(dict.fromkeys(form for _, cells in found for form in cells))
    colours = dict(zip(forms, (style.RED, style.BLUE, *COLOURS[2:]), strict=False))
    if len(colours) < len(forms):
        raise ValueError(
            f"deviation shows at most {len(COLOURS)} forms of a rule, got {len(forms)}; choose "
            "a part (--part), or fewer runs."
        )
    styles = {form: LineStyle(colour, "-", 1.2) for form, colour in colours.items()}
    return _draw_panels(found, styles, "deviation", "distance to honest mean")


BOUNDS = {
    "deviation_bound": ("bound with all constants", LineStyle(style.RED, "-", 1.2)),
    "printed_bound": ("bound as printed", LineStyle(style.RED, "--", 1.2)),
    "gradient_norm": ("norm of the gradient", LineStyle(style.GREY, "-", 1.2)),
    "gradient_deviation": ("deviation from the gradient", LineStyle(style.BLUE, "-", 1.2)),
}
"""The columns of the theory that are of one unit, with their titles."""


def draw_bound(grids: Sequence[Grid]) -> Figure:
    """Draw the deviation from the expected gradient and its bounds: a panel per rule and column."""
    found = [
        (row if len(grid.columns) == 1 else f"{row}\n{title}", cell)
        for grid in grids
        for k, title in enumerate(grid.titles)
        for row, cell in grid.column(k).items()
        if any(not np.isnan(each.series.gradient_deviation).all() for each in cell.results)
    ]
    if not found:
        raise ValueError(
            "none of these runs measured the theory; run them with theory = true (the preset "
            "'theory' has the settings)."
        )
    made = style.panels(len(found), sharex=True, sharey=True)
    window = _rounds_per_point([cell for _, cell in found])
    for axes, (heading, cell) in zip(made.axes, found, strict=True):
        axes.set_title(heading)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.margins(x=0.02)
        for column, (_, line) in BOUNDS.items():
            _draw_curve(axes, curve_of(cell.results, column, window), line, 1.0)
    _label_panels(made, window, "in the unit of a gradient")
    _legend(made.figure, dict(BOUNDS.values()))
    return made.figure


def _by_rule(grid: Grid, column: int) -> list[Panel]:
    groups: dict[str, dict[str, Cell]] = {}
    for row, cell in grid.column(column).items():
        name = family(row)
        form = "the rule alone" if row == name else row.replace(name, "rule", 1)
        groups.setdefault(name, {})[form] = cell
    more = f", {grid.titles[column]}" if len(grid.columns) > 1 else ""
    return [(f"{name}{more}", cells) for name, cells in groups.items()]


def _draw_panels(
    found: Sequence[Panel],
    styles: Mapping[str, LineStyle],
    column: Literal["accuracy", "deviation", "test_loss"],
    title: str,
) -> Figure:
    made = style.panels(len(found), sharex=True, sharey=column == "accuracy")
    window = _rounds_per_point([cell for _, cells in found for cell in cells.values()])
    for axes, (heading, cells) in zip(made.axes, found, strict=True):
        axes.set_title(heading)
        axes.margins(x=0.02)
        for row, cell in cells.items():
            scale = 100.0 if column == "accuracy" else 1.0
            _draw_curve(axes, curve_of(cell.results, column, window), styles[row], scale)
        if column == "deviation":
            axes.set_ylim(bottom=0)
    _label_panels(made, window, title)
    _legend(made.figure, styles)
    return made.figure


def _label_panels(made: style.Panels, window: int, title: str) -> None:
    for axes in made.lowest:
        axes.set_xlabel("round" if window == 1 else f"round (means of {window})")
    for axes in made.leftmost:
        axes.set_ylabel(title)


def _legend(figure: Figure, styles: Mapping[str, LineStyle]) -> None:
    lines = [
        Line2D([], [], color=each.colour, linestyle=each.dashes, linewidth=each.width + 0.3)
        for each in styles.values()
    ]
    legend_below(figure, lines, list(styles))


def _draw_curve(axes: Axes, curve: Curve, line: LineStyle, scale: float) -> None:
    """Draw a mean and its band; a cross where a run diverged."""
    if not len(curve.rounds):
        return
    mean, std = scale * curve.mean, scale * curve.std
    axes.plot(curve.rounds, mean, color=line.colour, linestyle=line.dashes, linewidth=line.width)
    if std.any():
        low, high = mean - std, mean + std
        axes.fill_between(curve.rounds, low, high, color=line.colour, alpha=0.13, linewidth=0)
    for end in curve.ends:
        place = min(int(np.searchsorted(curve.rounds, end)), len(mean) - 1)
        axes.plot(curve.rounds[place], mean[place], marker="x", color=line.colour, markersize=5)


Share = Callable[[Result], float]
SHARES: dict[str, Share] = {
    "honest share of the update, mean over rounds": lambda result: result.honest_share,
    "best accuracy": lambda result: result.best,
}

INCLUDES, FEWER = "try to include all honest gradients", "aggregate fewer gradients"
"""The two groups of rules in Figure 1 of the paper."""
AGGREGATES_FEWER = ("krum", "bulyan", "median", "trimmed-mean", "geometric-median")
PANELS_PER_ROW = 3


def draw_selection(grids: Sequence[Grid]) -> Figure:
    """Draw the honest share of the update by round and as a mean, and the accuracy (Figure 1).

    A panel by round for each rule, group by group, and bars of the means below.
    """
    found = _conditions(grids)
    rows = list(dict.fromkeys(row for _, cells in found for row in cells))
    groups = by_group(rows)
    ordered = [row for own in groups.values() for row in own]
    lines = [
        (name, own[start : start + PANELS_PER_ROW])
        for name, own in groups.items()
        for start in range(0, len(own), PANELS_PER_ROW)
    ]
    if len(lines) > MOST_ROWS:
        raise ValueError(
            f"selection shows at most {MOST_ROWS} rows of {PANELS_PER_ROW} rules, got "
            f"{len(rows)} rules; choose a part (--part), or fewer runs."
        )
    heights = [*(2.2 for _ in lines), 0.9 + len(rows) * (0.16 * len(found) + 0.2)]
    figure = style.ReportFigure(figsize=(10.5, sum(heights) + 0.6), layout="constrained")
    cells = figure.add_gridspec(len(heights), 2 * PANELS_PER_ROW, height_ratios=heights)
    window = _rounds_per_point([cell for _, own in found for cell in own.values()])
    for number, (name, own) in enumerate(lines):
        for place, row in enumerate(own):
            axes = figure.add_subplot(cells[number, 2 * place : 2 * place + 2])
            _draw_share_by_round(axes, row, found, window)
            if place == 0:
                axes.set_ylabel(f"{fill(name, LONGEST_LABEL)}\nhonest share in percent")
    left = figure.add_subplot(cells[-1, :PANELS_PER_ROW])
    right = figure.add_subplot(cells[-1, PANELS_PER_ROW:], sharey=left)
    right.tick_params(labelleft=False)
    _draw_all_bars(figure, [left, right], ordered, found)
    return figure


def by_group(rows: Sequence[str]) -> dict[str, list[str]]:
    """Return the rules of both groups of the paper's Figure 1; the outer rule decides."""
    groups: dict[str, list[str]] = {}
    for name, is_wanted in ((INCLUDES, False), (FEWER, True)):
        own = [row for row in rows if (outline(row).name in AGGREGATES_FEWER) is is_wanted]
        groups |= {name: own} if own else {}
    return groups


def _draw_share_by_round(axes: Axes, row: str, found: Sequence[Panel], window: int) -> None:
    """Draw the honest share of one rule by round, a curve for each condition."""
    axes.set_title(row)
    axes.set_ylim(0, 102)
    axes.margins(x=0.02)
    axes.set_xlabel("round" if window == 1 else f"round (means of {window})")
    for colour, (_, cells) in zip(COLOURS, found, strict=False):
        if row not in cells:
            continue
        results = cells[row].results
        curve = curve_of(results, "byzantine_weight", window)
        _draw_curve(axes, curve._replace(mean=1 - curve.mean), LineStyle(colour, "-", 1.2), 100.0)
        mean = spread_of(100 * each.honest_share for each in results)
        if mean is not None:
            axes.axhline(mean.mean, color=colour, linestyle=":", linewidth=0.9)


def _draw_all_bars(
    figure: Figure,
    all_axes: Sequence[Axes],
    rows: Sequence[str],
    found: Sequence[Panel],
) -> None:
    handles: list[Any] = []
    for axes, (title, share) in zip(all_axes, SHARES.items(), strict=True):
        handles = [_draw_bars(axes, rows, found, number, share) for number in range(len(found))]
        axes.set_title(title)
        axes.set_xlabel("percent")
        axes.set_xlim(0, 100)
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
    all_axes[0].set_yticks(range(len(rows)), rows)
    all_axes[0].invert_yaxis()
    legend_below(figure, handles, [title for title, _ in found])


def _conditions(grids: Sequence[Grid]) -> list[Panel]:
    """Return a title (an attack on some data) and the cell of each rule."""
    found = []
    for grid in grids:
        own = grid.title if len(grids) > 1 else ""
        for k, column in enumerate(grid.titles):
            needed = "" if own and len(grid.columns) == 1 else column
            if cells := grid.column(k):
                found.append((", ".join(filter(None, (own, needed))), cells))
    if len(found) > MOST_CONDITIONS:
        raise ValueError(
            f"selection shows at most {MOST_CONDITIONS} columns side by side, got {len(found)}; "
            "choose a part (--part), or take --kind heatmap --metric selection-rate."
        )
    return found


def _draw_bars(
    axes: Axes, rows: Sequence[str], found: Sequence[Panel], number: int, share: Share
) -> object:
    """Draw the bars of one condition, with the deviation over seeds."""
    height = 0.8 / len(found)
    offset = (number - (len(found) - 1) / 2) * height
    cells = [found[number][1].get(row) for row in rows]
    spreads = [cell and spread_of(100 * share(each) for each in cell.results) for cell in cells]
    heights = np.arange(len(rows)) + offset
    means = [0.0 if each is None else each.mean for each in spreads]
    stds = [0.0 if each is None or each.std is None else each.std for each in spreads]
    bars = axes.barh(heights, means, height=0.9 * height, color=COLOURS[number])
    lows = [min(mean, std) for mean, std in zip(means, stds, strict=True)]
    if any(stds):
        axes.errorbar(
            means, heights, xerr=[lows, stds], fmt="none", ecolor="#333333", elinewidth=0.8
        )
    for cell, at, each in zip(cells, heights, spreads, strict=True):
        _write_beside(axes, float(at), each, "not run" if cell is None else UNKNOWN)
    return bars


def _write_beside(axes: Axes, place: float, spread: Spread | None, instead: str) -> None:
    """Write a number right of its bar, or inside if there is no space."""
    if spread is None:
        axes.text(1.0, place, instead, va="center", fontsize=6.5, color=style.GREY)
        return
    text, end = f"{spread.mean:.1f}", spread.mean + (spread.std or 0.0)
    if end < 90:
        axes.text(end + 1.0, place, text, va="center", fontsize=6.5, color="#333333")
    else:
        inside = spread.mean - (spread.std or 0.0) - 1.0
        axes.text(inside, place, text, va="center", ha="right", fontsize=6.5, color="white")
