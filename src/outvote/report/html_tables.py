"""Tables as a page holds them: every number that its switch can show."""

from collections.abc import Mapping, Sequence
from typing import Any

from outvote.report.cells import METRICS, Cell, Metric, Spread, shown
from outvote.report.grid import Grid
from outvote.report.naming import family
from outvote.report.table_text import missing, notes, seeds_of
from outvote.results.run import Result

Places = Mapping[int, int]
"""Where a run is in the page, by the id of the `Result`."""


def grid_entries(grids: Sequence[Grid], results: Sequence[Result]) -> list[dict[str, Any]]:
    """Return all tables; cells name their runs by their places in `results`."""
    places = {id(result): place for place, result in enumerate(results)}
    titles = {grid.suite_title for grid in grids}
    return [_grid_entry(grid, places, is_only_suite=len(titles) == 1) for grid in grids]


def _grid_entry(grid: Grid, places: Places, *, is_only_suite: bool) -> dict[str, Any]:
    bold = {metric: grid.best(metric) for metric in METRICS}
    return {
        "suite": grid.suite,
        "part": grid.part,
        "title": (grid.title if is_only_suite else f"{grid.suite_title}: {grid.title}")
        or grid.suite_title,
        "seeds": seeds_of(grid) if grid.results else "",
        "rows": list(grid.rows),
        "families": [family(row) for row in grid.rows],
        "columns": grid.titles,
        "column_key": grid.column_key,
        "has_paper": grid.has_printed,
        "has_worst": grid.has_worst,
        "cells": [
            [
                _cell_entry(
                    cell,
                    grid,
                    places,
                    [metric for metric in METRICS if (row, column) in bold[metric]],
                )
                for column, cell in enumerate(cells)
            ]
            for row, cells in enumerate(grid.cells)
        ],
        "worst": {
            metric: [_worst_entry(grid, row, metric) for row in range(len(grid.rows))]
            for metric in METRICS
        },
    }


def _cell_entry(cell: Cell, grid: Grid, places: Places, bold: Sequence[Metric]) -> dict[str, Any]:
    entry: dict[str, Any] = {metric: _numbers(cell.spread(metric), metric) for metric in METRICS}
    entry["runs"] = [places[id(each)] for each in (*cell.results, *cell.unfinished)]
    if bold:
        entry["bold"] = list(bold)
    if cell.printed is not None:
        difference = cell.difference("best")
        entry["paper"] = [cell.printed.accuracy, cell.printed.std]
        entry["difference"] = None if difference is None else round(difference, 2)
    note = cell_note(cell, grid)
    if note:
        entry["note"] = note
    return entry


def cell_note(cell: Cell, grid: Grid) -> str:
    """Return what must be said beside the number: what is missing or went wrong."""
    why = [missing(cell, "best")] if cell.spread("best") is None else []
    return ", ".join([*why, *notes(cell, grid, "best")])


def _worst_entry(grid: Grid, row: int, metric: Metric) -> list[Any] | None:
    """Return number, column, whether columns are missing, the paper's, and the difference."""
    worst = grid.worst(row, metric)
    if worst is None:
        return None
    mean = shown(worst.spread.mean, metric)
    return [mean, worst.column, worst.is_partial, worst.printed, worst.difference]


def _numbers(spread: Spread | None, metric: Metric) -> list[float | None] | None:
    if spread is None:
        return None
    return [shown(spread.mean, metric), None if spread.std is None else shown(spread.std, metric)]
