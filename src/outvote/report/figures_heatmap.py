"""Heatmaps with numbers in them: rule × attack, and number of liars × heterogeneity."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from outvote.report.cells import SHORT_TITLES, Cell, Metric, is_percent
from outvote.report.differing import differing, ordered, split
from outvote.report.figures_style import FAINT, GREY, MOST_PANELS, panels
from outvote.report.grid import Grid
from outvote.report.naming import family, title_of
from outvote.report.table_text import missing
from outvote.results.labels import names_of
from outvote.results.run import Result

HEIGHT, LONGEST = 0.3, 14
"""Of a field, in inches; and of the title of a column before it is turned."""
LIARS, HETEROGENEITY = "federation.byzantine", "data.beta"


class Map(NamedTuple):
    """One heatmap."""

    title: str
    rows: list[str]
    columns: list[str]
    fields: list[list[float | str]]
    """A number, or why there is none."""


class Colours(NamedTuple):
    """The colour of each value, the same for all maps of a figure."""

    range: Normalize
    map: Colormap


def draw_heatmap(grids: Sequence[Grid], metric: Metric) -> Figure:
    """Draw rules against the columns of a table."""
    return _draw([_map_of(grid, metric) for grid in grids], metric)


def draw_liars_and_heterogeneity(results: Sequence[Result], metric: Metric) -> Figure:
    """Draw the number of liars against β: one map for each rule and whatever else differs."""
    over = [each for each in results if each.is_over]
    varied = differing(over)
    missing = [key for key in (LIARS, HETEROGENEITY) if key not in varied]
    if missing:
        raise ValueError(
            f"f-beta needs runs that differ in {LIARS} and {HETEROGENEITY}; these do not differ "
            f"in {' and '.join(missing)}: play a grid of both."
        )
    rest = [key for key in varied if key not in (LIARS, HETEROGENEITY)]
    found = [each for told, group in split(over, rest) for each in _maps(group, told, metric)]
    return _draw(found, metric)


def _map_of(grid: Grid, metric: Metric) -> Map:
    fields = [[_field(cell, metric) for cell in row] for row in grid.cells]
    return Map(grid.title, list(grid.rows), grid.titles, fields)


def _field(cell: Cell, metric: Metric) -> float | str:
    spread = cell.spread(metric)
    return missing(cell, metric) if spread is None else spread.mean


def _maps(results: Sequence[Result], told: str, metric: Metric) -> list[Map]:
    """Return a map for each pair of rule and attack."""
    rules = names_of(each.config["rule"] for each in results)
    attacks = names_of(each.config["attack"] for each in results)
    liars = ordered(each.setting(LIARS) for each in results)
    betas = ordered(each.setting(HETEROGENEITY) for each in results)
    cells: dict[tuple[str, str], dict[tuple[float, float], list[Result]]] = {}
    for each in results:
        pair = rules[each.config["rule"]], attacks[each.config["attack"]]
        place = each.setting(LIARS), each.setting(HETEROGENEITY)
        cells.setdefault(pair, {}).setdefault(place, []).append(each)

    def field(found: list[Result]) -> float | str:
        return _field(Cell(results=tuple(sorted(found, key=lambda each: each.name))), metric)

    return [
        Map(
            ", ".join(text for text in (rule, attack if len(attacks) > 1 else "", told) if text),
            [title_of(LIARS, liar) for liar in liars],
            [title_of(HETEROGENEITY, beta) for beta in betas],
            [[field(found.get((liar, beta), [])) for beta in betas] for liar in liars],
        )
        for (rule, attack), found in sorted(cells.items(), key=lambda item: _base_first(item[0]))
    ]


def _base_first(pair: tuple[str, str]) -> tuple[str, int, str]:
    return family(pair[0]), pair[0].count("("), pair[1]


def _draw(maps: Sequence[Map], metric: Metric) -> Figure:
    fields = [field for each in maps for row in each.fields for field in row]
    known = [field for field in fields if isinstance(field, float)]
    if not known:
        raise ValueError(
            f"none of these runs has a number for {SHORT_TITLES[metric]}; choose another --metric, "
            "or play them to the end."
        )
    if len(maps) > MOST_PANELS:
        raise ValueError(f"these runs would make {len(maps)} maps; choose a part (--part).")
    colours = Colours(Normalize(min(known), max(known)), colormaps["cividis"])
    figure, all_axes = _panels(maps)
    for axes, each in zip(all_axes, maps, strict=True):
        _draw_map(axes, each, colours, ".1f" if is_percent(metric) else ".3g")
    bar = figure.colorbar(
        ScalarMappable(*colours), ax=all_axes, aspect=8 * figure.get_figheight(), pad=0.02
    )
    unit = ", percent" if is_percent(metric) else ""
    bar.set_label(f"{SHORT_TITLES[metric]}{unit}", fontsize=8.5)
    bar.outline.set_visible(False)
    return figure


def _panels(maps: Sequence[Map]) -> tuple[Figure, list[Axes]]:
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
    figure = Figure(figsize=size, layout="constrained")
    all_axes = figure.subplots(len(maps), 1, height_ratios=heights).tolist()
    return figure, all_axes


def _draw_map(axes: Axes, each: Map, colours: Colours, form: str) -> None:
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    numbers = [[f if isinstance(f, float) else float("nan") for f in row] for row in each.fields]
    axes.imshow(numbers, cmap=colours.map, norm=colours.range, aspect="auto")
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
            told = field if isinstance(field, str) else format(field, form)
            _write(axes, (number, column), told, colours, field)


def _write(
    axes: Axes, place: tuple[int, int], told: str, colours: Colours, field: float | str
) -> None:
    """Write a number so that it can be read on its colour; a field without one is hatched."""
    row, column = place
    if isinstance(field, str):
        corner = (column - 0.5, row - 0.5)
        axes.add_patch(Rectangle(corner, 1, 1, fill=False, hatch="////", edgecolor=FAINT, lw=0))
        axes.text(column, row, told, ha="center", va="center", fontsize=6.5, color=GREY)
        return
    red, green, blue, _ = colours.map(float(colours.range(field)))
    is_dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
    colour = "white" if is_dark else "black"
    axes.text(column, row, told, ha="center", va="center", fontsize=8, color=colour)
