"""Maps: heatmaps with numbers in them, and one run as clients by rounds."""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from numpy.typing import NDArray

from outvote.report.audit import Audit, Mark
from outvote.report.cells import SHORT, UNSCALED, Cell, Grid, Metric, family, title_of
from outvote.report.figure_style import FAINT, GREY, MOST_PANELS, ReportFigure, panels
from outvote.report.layout import code_mark, differing, edited_files, ordered, split
from outvote.report.rendered_table import missing
from outvote.results.labels import names_of
from outvote.results.run import Result

HEIGHT, LONGEST = 0.3, 14
"""Of a field, in inches; and of the title of a column before it is rotated."""
BYZANTINE, HETEROGENEITY = "federation.byzantine", "data.beta"


class Map(NamedTuple):
    """One heatmap."""

    title: str
    rows: list[str]
    columns: list[str]
    fields: list[list[float | str]]
    """A number, or why there is none."""


def draw_heatmap(grids: Sequence[Grid], metric: Metric) -> Figure:
    """Draw rules against the columns of a table."""
    maps = [
        Map(
            grid.title,
            list(grid.rows),
            grid.titles,
            [[_field(cell, metric) for cell in row] for row in grid.cells],
        )
        for grid in grids
    ]
    return _draw_maps(maps, metric)


def draw_byzantine_and_beta(results: Sequence[Result], metric: Metric) -> Figure:
    """Draw the number of Byzantine clients against β, a map for each combination of the rest."""
    varied = differing(results)
    lacking = [key for key in (BYZANTINE, HETEROGENEITY) if key not in varied]
    if lacking:
        raise ValueError(
            f"f-beta needs runs that differ in {BYZANTINE} and {HETEROGENEITY}; these do not "
            f"differ in {' and '.join(lacking)}: run a grid of both."
        )
    rest = [key for key in varied if key not in (BYZANTINE, HETEROGENEITY)]
    groups = split(results, rest)
    return _draw_maps(
        [each for heading, group in groups for each in _f_beta_maps(group, heading, metric)], metric
    )


def _field(cell: Cell, metric: Metric) -> float | str:
    spread = cell.spread(metric)
    return missing(cell, metric) if spread is None else spread.mean


def _f_beta_maps(results: Sequence[Result], heading: str, metric: Metric) -> list[Map]:
    """Return a map for each pair of rule and attack."""
    rules = names_of(each.config["rule"] for each in results)
    attacks = names_of(each.config["attack"] for each in results)
    edited = edited_files(results)
    numbers = ordered(each.setting(BYZANTINE) for each in results)
    betas = ordered(each.setting(HETEROGENEITY) for each in results)
    cells: dict[tuple[str, str], dict[tuple[float, float], list[Result]]] = {}
    for each in sorted(results, key=lambda each: each.name):
        pair = (
            rules[each.config["rule"]] + code_mark(each, "rule", edited),
            attacks[each.config["attack"]] + code_mark(each, "attack", edited),
        )
        place = each.setting(BYZANTINE), each.setting(HETEROGENEITY)
        cells.setdefault(pair, {}).setdefault(place, []).append(each)

    def field(found: list[Result]) -> float | str:
        return _field(Cell(results=tuple(found)), metric)

    return [
        Map(
            ", ".join(each for each in (rule, attack if len(attacks) > 1 else "", heading) if each),
            [title_of(BYZANTINE, number) for number in numbers],
            [title_of(HETEROGENEITY, beta) for beta in betas],
            [[field(found.get((number, beta), [])) for beta in betas] for number in numbers],
        )
        for (rule, attack), found in sorted(cells.items(), key=lambda item: _base_first(item[0]))
    ]


def _base_first(pair: tuple[str, str]) -> tuple[str, int, str]:
    return family(pair[0]), pair[0].count("("), pair[1]


def _draw_maps(maps: Sequence[Map], metric: Metric) -> Figure:
    unit, form = ("", ".3g") if metric in UNSCALED else (", percent", ".1f")
    fields = [field for each in maps for row in each.fields for field in row]
    known = [field for field in fields if isinstance(field, float)]
    if not known:
        raise ValueError(
            f"none of these runs has a number for {SHORT[metric]}; choose another --metric, "
            "or run them to the end."
        )
    if len(maps) > MOST_PANELS:
        raise ValueError(f"these runs would make {len(maps)} maps; choose a part (--part).")
    colours = ScalarMappable(Normalize(min(known), max(known)), colormaps["cividis"])
    figure, all_axes = _map_panels(maps)
    for axes, each in zip(all_axes, maps, strict=True):
        _draw_map(axes, each, colours, form)
    aspect = 8 * figure.get_figheight()
    bar = figure.colorbar(colours, ax=all_axes, aspect=aspect, pad=0.02)
    bar.set_label(f"{SHORT[metric]}{unit}", fontsize=8.5)
    bar.outline.set_visible(False)
    return figure


def _map_panels(maps: Sequence[Map]) -> tuple[Figure, list[Axes]]:
    """Put maps of one shape side by side, and others below each other, fields equally high."""
    longest = max(len(column) for each in maps for column in each.columns)
    cell = max(0.62, 0.072 * min(longest, LONGEST) + 0.12)
    label = 0.075 * max(len(row) for each in maps for row in each.rows)
    width = max(cell * max(len(each.columns) for each in maps) + label, 2.4)
    heights = [len(each.rows) for each in maps]
    if len({(len(each.rows), len(each.columns)) for each in maps}) == 1:
        made = panels(len(maps), width=width, height=max(HEIGHT * heights[0] + 0.3, 1.2))
        return made.figure, made.axes
    size = (width + 0.9, HEIGHT * sum(heights) + 0.55 * len(maps))
    figure = ReportFigure(figsize=size, layout="constrained")
    return figure, figure.subplots(len(maps), 1, height_ratios=heights).tolist()


def _draw_map(axes: Axes, each: Map, colours: ScalarMappable, form: str) -> None:
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    numbers = [[f if isinstance(f, float) else float("nan") for f in row] for row in each.fields]
    axes.imshow(numbers, cmap=colours.cmap, norm=colours.norm, aspect="auto")  # type: ignore[arg-type]
    axes.set_title(each.title)
    axes.set_xticks(range(len(each.columns)), each.columns)
    axes.set_yticks(range(len(each.rows)), each.rows)
    axes.tick_params(length=0)
    if max(len(column) for column in each.columns) > LONGEST:
        axes.tick_params(axis="x", rotation=30)
        for label in axes.get_xticklabels():
            label.set_horizontalalignment("right")
    for number, (row, after) in enumerate(pairwise(each.rows)):
        if family(row) != family(after):
            axes.axhline(number + 0.5, color="white", linewidth=2)
    for number, fields in enumerate(each.fields):
        for column, field in enumerate(fields):
            _write_field(axes, (number, column), field, colours, form)


def _write_field(
    axes: Axes, place: tuple[int, int], field: float | str, colours: ScalarMappable, form: str
) -> None:
    """Write a number so that it can be read on its colour; a field without one is hatched."""
    row, column = place
    write = partial(axes.text, column, row, ha="center", va="center")
    if isinstance(field, str):
        corner = (column - 0.5, row - 0.5)
        axes.add_patch(Rectangle(corner, 1, 1, fill=False, hatch="////", edgecolor=FAINT, lw=0))
        write(field, fontsize=6.5, color=GREY)
    else:
        red, green, blue, _ = colours.to_rgba(np.asarray(field))
        is_dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
        write(format(field, form), fontsize=8, color="white" if is_dark else "black")


TRUTH_KNOWN = {
    "honest, kept": "#9ecae8",
    "honest, dropped": "#0072B2",
    "Byzantine, dropped": "#f4c18b",
    "Byzantine, kept": "#c0392b",
}
TRUTH_UNKNOWN = {"kept": "#9ecae8", "dropped": "#D55E00"}
NOT_REPORTED = {"not reported": "#c9ced6"}


def draw_identification(audit: Audit) -> Figure:
    """Draw one run as two maps of clients by rounds: scores, and verdicts beside the truth."""
    if not audit.is_received.any():
        raise ValueError("no client sent anything in this run; choose another.")
    order, num_byzantine = _client_order(audit)
    height = min(max(1.6, 0.075 * len(order)), 3.6)
    figure = ReportFigure(figsize=(10.0, 2 * height + 1.1), layout="constrained")
    figure.suptitle(audit.title, fontsize=10, fontweight="bold", x=0.01, ha="left")
    above, below = figure.subplots(2, 1, sharex=True, sharey=True)
    span = (audit.rounds[0] - 0.5, audit.rounds[-1] + 0.5, len(order) - 0.5, -0.5)
    how = {"extent": span, "aspect": "auto", "interpolation": "nearest"}
    _draw_scores(above, audit, order, how)
    verdicts = _draw_verdicts(below, audit, order, how)
    for axes in (above, below):
        _name_groups(axes, num_byzantine, len(order))
    below.set_xlabel("round")
    patches = [Patch(facecolor=colour) for colour in verdicts.values()]
    place = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.0), "borderaxespad": 0.2}
    below.legend(patches, list(verdicts), ncols=len(verdicts), columnspacing=1.4, **place)
    return figure


def _client_order(audit: Audit) -> tuple[NDArray[np.int64], int]:
    """Return the clients, Byzantine ones first if they are known, then by their drop rate."""
    rate = audit.is_refused.sum(axis=0) / np.maximum(audit.is_decided.sum(axis=0), 1)
    known = audit.is_byzantine
    truth = np.zeros(len(rate), dtype=bool) if known is None else known
    return np.lexsort((np.arange(len(rate)), -rate, ~truth)), int(truth.sum())


def _draw_scores(axes: Axes, audit: Audit, order: NDArray[np.int64], how: Any) -> None:
    """Draw scores relative to their round, because updates shrink as training goes on."""
    relative = _relative(audit)
    known = relative[relative > 0]
    far = max(1.5, float(np.quantile(np.maximum(known, 1 / known), 0.98))) if len(known) else 2.0
    axes.set_title("scores")
    norm = LogNorm(1 / far, far, clip=True)
    image = axes.imshow(relative.T[order], cmap=colormaps["cividis"], norm=norm, **how)
    bar = axes.figure.colorbar(image, ax=axes, pad=0.01, aspect=14)
    bar.set_ticks([1 / far, 1.0, far], labels=[f"≤ {1 / far:.2g}", "1", f"≥ {far:.2g}"])
    bar.ax.minorticks_off()
    bar.set_label("score / median of its round", fontsize=8.5)
    bar.outline.set_visible(False)


def _relative(audit: Audit) -> NDArray[np.float64]:
    """Return scores divided by the median of their round; infinite where not finite."""
    scores = np.where(audit.is_received, audit.scores, np.nan)
    finite = np.ma.masked_invalid(scores)
    middles = np.ma.median(finite, axis=1, keepdims=True).filled(np.nan)  # type: ignore[no-untyped-call]
    result: NDArray[np.float64] = scores / np.where(middles > 0, middles, np.nan)
    return result


def _draw_verdicts(axes: Axes, audit: Audit, order: NDArray[np.int64], how: Any) -> dict[str, str]:
    """Draw kept and dropped, and return the verdicts and their colours."""
    kind = audit.is_refused.astype(float)
    verdicts = dict(TRUTH_UNKNOWN)
    if audit.is_byzantine is not None:
        # In the order of TRUTH_KNOWN: honest kept, dropped; Byzantine dropped, kept.
        verdicts = dict(TRUTH_KNOWN)
        kind = np.where(audit.is_byzantine, 3.0 - kind, kind)
    is_unknown = audit.marks == Mark.UNKNOWN
    if is_unknown.any():
        kind = np.where(is_unknown, len(verdicts), kind)
        verdicts |= NOT_REPORTED
    shown = np.where(audit.is_received, kind, np.nan)
    axes.set_title("verdicts" if audit.is_byzantine is None else "verdicts and truth")
    colours, top = ListedColormap(list(verdicts.values())), len(verdicts) - 0.5
    axes.imshow(shown.T[order], cmap=colours, vmin=-0.5, vmax=top, **how)
    return verdicts


def _name_groups(axes: Axes, num_byzantine: int, num_clients: int) -> None:
    """Name the two groups of clients instead of each client."""
    axes.grid(visible=False)
    axes.tick_params(axis="y", length=0)
    if not num_byzantine:
        axes.set_yticks([])
        axes.set_ylabel("clients, most often dropped first")
        return
    axes.axhline(num_byzantine - 0.5, color="black", linewidth=0.8)
    middles = [(num_byzantine - 1) / 2, (num_byzantine + num_clients - 1) / 2]
    groups = [f"{num_byzantine} Byzantine", f"{num_clients - num_byzantine} honest"]
    axes.set_yticks(middles, groups, rotation=90, va="center")
