"""How figures look: colours for colour-blind readers, panels, files."""

import io
from collections.abc import Sequence
from importlib.resources import files
from itertools import cycle
from math import ceil
from textwrap import wrap
from typing import Any, NamedTuple

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from outvote.report.cells import family, grouped

# Okabe and Ito's colours, but for their yellow, which is hard to see on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#222222", "#8C6D31")
BLUE, RED = COLOURS[:2]
GREY, FAINT = "#6b7280", "#e3e6eb"
ALONE = "-"
IN_FAMILY: tuple[Any, ...] = ("--", "-", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)))
"""The rule itself is dashed, its first wrapped form solid."""
MOST_PANELS = 24
GAP = 6.0
"""Between two titles side by side, in points."""
LINE_HEIGHT = 1.25
"""Of a line of a title, in parts of its font size."""
SETTINGS = str(files("outvote.report") / "templates" / "figure.mplstyle")
NO_DATES: dict[str, dict[str, None]] = {
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


class ReportFigure(Figure):
    """A figure that a notebook shows, whether or not pyplot was imported."""

    def _repr_png_(self) -> bytes:
        return to_bytes(self, "png")


class LineStyle(NamedTuple):
    """How the curve of a rule is drawn."""

    colour: str
    dashes: Any
    width: float


def line_styles(rows: Sequence[str]) -> dict[str, LineStyle]:
    """Give all forms of a rule one colour, and each its own dashes."""
    styles = {}
    families = grouped(dict.fromkeys(rows), family).values()
    for colour, group in zip(cycle(COLOURS), families, strict=False):
        for row, dashes in zip(group, cycle(IN_FAMILY), strict=False):
            own = ALONE if len(group) == 1 else dashes
            styles[row] = LineStyle(colour, own, 1.4 if own == "-" else 1.1)
    return styles


def panels(number: int, *, width: float = 3.1, height: float = 2.4, **how: Any) -> "Panels":
    """Make a figure of some panels, side by side; those of a row share their axis."""
    if number > MOST_PANELS:
        raise ValueError(
            f"these runs would make {number} panels, and {MOST_PANELS} can be read; "
            "choose a part (--part), or fewer runs."
        )
    columns = min(number, 3 if number in (3, 5, 6, 9) else 2 if number in (2, 4) else 4)
    rows = ceil(number / columns)
    figure = ReportFigure(
        figsize=(width * columns + 0.6, height * rows + 0.9), layout="constrained"
    )
    axes = figure.subplots(rows, columns, squeeze=False, **how).ravel().tolist()
    for spare in axes[number:]:
        spare.remove()
    lowest = axes[max(0, number - columns) : number]
    for axis in lowest:
        axis.tick_params(labelbottom=True)
    return Panels(figure, axes[:number], lowest, axes[:number:columns])


class Panels(NamedTuple):
    """A figure and the panels in it."""

    figure: Figure
    axes: list[Axes]
    lowest: list[Axes]
    """Those with nothing below them."""
    leftmost: list[Axes]


def legend_below(figure: Figure, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """Put one legend for all panels below them; a rule and its wrapped form stand together."""
    width = figure.get_figwidth()
    longest = max((len(label) for label in labels), default=0)
    fit = max(1, int(width / (0.075 * longest + 0.6)))
    rows = max(ceil(len(labels) / fit), 2 if len(labels) > 4 else 1)
    rows += rows % 2 if rows > 1 else 0  # It is filled column by column: no pair is torn apart.
    columns = max(1, ceil(len(labels) / rows))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, handlelength=2.4)


def fit_titles(figure: Figure) -> None:
    """Put titles that reach into a neighbour, or beyond the figure, on several lines.

    The figure grows by the lines that are added, so that the panels keep their height.
    """
    figure.draw_without_rendering()
    added: dict[int, float] = {}
    for title, limit in _titles(figure):
        before = title.get_text()
        _wrap_title(title, limit)
        lines = title.get_text().count("\n") - before.count("\n")
        row = round(title.get_window_extent().y0)
        inches = lines * LINE_HEIGHT * float(title.get_fontsize()) / 72
        added[row] = max(added.get(row, 0.0), inches)
    if more := sum(added.values()):
        figure.set_figheight(figure.get_figheight() + more)


def _titles(figure: Figure) -> list[tuple[Text, float]]:
    """Return all titles, and how far to the right each may reach, in pixels."""
    gap = GAP * figure.dpi / 72
    edge = figure.bbox.width - gap
    boxes = [(axes, axes.get_window_extent()) for axes in figure.axes]
    found = []
    for axes, box in boxes:
        title = axes._left_title  # type: ignore[attr-defined]
        if not title.get_text():
            continue
        right = [
            other.x0 - gap
            for neighbour, other in boxes
            if neighbour is not axes and other.x0 >= box.x1 and other.y0 < box.y1 <= other.y1 + 1
        ]
        # A legend above the panel, at its right end, stands beside the title.
        if (legend := axes.get_legend()) is not None and legend.get_window_extent().y0 >= box.y1:
            right.append(legend.get_window_extent().x0 - gap)
        found.append((title, min([edge, *right])))
    whole = getattr(figure, "_suptitle", None)
    return found if whole is None else [*found, (whole, edge)]


def _wrap_title(title: Text, limit: float) -> None:
    """Break the lines of a title until it ends before a limit; at its left end it stays."""
    lines = title.get_text().split("\n")
    width = max(map(len, lines))
    while title.get_window_extent().x1 > limit and width > 1:
        width -= 1
        title.set_text("\n".join(part for line in lines for part in wrap(line, width)))


def to_bytes(figure: Figure, format_: str) -> bytes:
    """Return the file of a figure; the same figure always gives the same bytes."""
    file = io.BytesIO()
    with rc_context(fname=SETTINGS):
        figure.savefig(file, format=format_, metadata=NO_DATES[format_])
    return file.getvalue()
