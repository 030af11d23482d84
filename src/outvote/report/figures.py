"""Figures: from runs to a picture; needs matplotlib."""

from collections.abc import Sequence
from typing import Literal, get_args

from matplotlib import rc_context
from matplotlib.figure import Figure

from outvote.errors import closest
from outvote.report.audit import Audit, audit_run
from outvote.report.cells import Metric
from outvote.report.figures_curves import draw_accuracy, draw_deviation
from outvote.report.figures_heatmap import draw_heatmap, draw_liars_and_heterogeneity
from outvote.report.figures_identification import draw_identification
from outvote.report.figures_selection import draw_selection
from outvote.report.figures_style import NO_DATES, SETTINGS, to_bytes
from outvote.report.grid import Grid
from outvote.report.layout import grids_of
from outvote.results.run import Result

FigureKind = Literal["curves", "heatmap", "selection", "deviation", "identification", "f-beta"]
KINDS: tuple[str, ...] = get_args(FigureKind)
FORMATS = tuple(NO_DATES)


def picture(
    kind: FigureKind,
    results: Sequence[Result],
    format_: str,
    *,
    metric: Metric = "best",
    part: str | None = None,
    suites: Sequence[str] = (),
    run: str | None = None,
) -> bytes:
    """Return the file of a figure; what the runs are not enough for is a ValueError.

    `suites` are files of suites that do not come with outvote.
    """
    with rc_context(SETTINGS):
        if kind == "identification":
            return to_bytes(draw_identification(_audit(results, run)), format_)
        return to_bytes(_figure(kind, grids_of(results, part, suites), metric), format_)


def audit_picture(audit: Audit, format_: str) -> bytes:
    """Return the file of the figure of one audit, of a simulation or of production."""
    with rc_context(SETTINGS):
        return to_bytes(draw_identification(audit), format_)


def _figure(kind: FigureKind, found: Sequence[Grid], metric: Metric) -> Figure:
    grids = [grid for grid in found if grid.results]
    if not grids:
        raise ValueError("none of these runs is over; play them to the end.")
    if kind == "f-beta":
        return draw_liars_and_heterogeneity(
            [each for grid in grids for each in grid.results], metric
        )
    if kind == "heatmap":
        return draw_heatmap(grids, metric)
    if kind == "curves":
        return draw_accuracy(grids)
    own = _of_kind(grids, kind)
    return draw_selection(own) if kind == "selection" else draw_deviation(own)


def _of_kind(grids: Sequence[Grid], kind: str) -> Sequence[Grid]:
    """Return the parts that a suite has for this figure, or all if there are none."""
    return [grid for grid in grids if grid.kind == kind] or grids


def _audit(results: Sequence[Result], run: str | None) -> Audit:
    names = [each.name for each in results]
    if run is None and len(results) != 1:
        raise ValueError(
            f"identification shows one run, got {len(results)}; name one by --run, such as "
            f"{names[0]}."
        )
    found = [each for each in results if run is None or run in (each.name, each.hash)]
    if not found:
        raise ValueError(f"there is no run {run!r} among these; {closest(str(run), names)}")
    audit = audit_run(found[0])
    if audit is None:
        raise ValueError(
            "an export does not say how each client was judged; give the folder of the run."
        )
    return audit
