"""Tables as a page holds them: every number that its switch can show."""

from collections.abc import Mapping, Sequence
from typing import Any

from outvote.report.cells import METRICS, Cell, Metric, Spread
from outvote.report.grid import Grid
from outvote.report.naming import family
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
    seeds = seeds_note(grid)
    return {
        "suite": grid.suite,
        "part": grid.part,
        "title": (grid.title if is_only_suite else f"{grid.suite_title}: {grid.title}")
        or grid.suite_title,
        "seeds": seeds,
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
                    places,
                    [metric for metric in METRICS if (row, column) in bold[metric]],
                    are_seeds_told=bool(seeds),
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


def seeds_note(grid: Grid) -> str:
    """Return how many seeds all cells have; empty if they differ: then the cells say it."""
    cells = [cell for row in grid.cells for cell in row if not cell.is_missing]
    found = {(len(cell.seeds), max(cell.num_wanted, len(cell.seeds))) for cell in cells}
    if len(found) != 1:
        return ""
    num, wanted = found.pop()
    seeds = "1 seed" if wanted == 1 else f"{wanted} seeds"
    return seeds if num == wanted else f"{num} of {seeds}"


def _cell_entry(
    cell: Cell, places: Places, bold: Sequence[Metric], *, are_seeds_told: bool
) -> dict[str, Any]:
    entry: dict[str, Any] = {metric: _numbers(cell.spread(metric)) for metric in METRICS}
    entry["runs"] = [places[id(each)] for each in (*cell.results, *cell.unfinished)]
    if bold:
        entry["bold"] = list(bold)
    if cell.printed is not None:
        difference = cell.difference("best")
        entry["paper"] = [cell.printed.accuracy, cell.printed.std]
        entry["difference"] = None if difference is None else round(difference, 2)
    note = cell_note(cell, are_seeds_told=are_seeds_told)
    if note:
        entry["note"] = note
    return entry


def cell_note(cell: Cell, *, are_seeds_told: bool = False) -> str:
    """Return what must be said beside the number: what is missing or went wrong."""
    if cell.is_missing:
        return "unfinished" if cell.unfinished else "not run"
    notes = []
    if not cell.is_complete and not are_seeds_told:
        notes.append(f"{len(cell.seeds)} of {cell.num_wanted} seeds")
    if cell.num_diverged:
        notes.append(f"{cell.num_diverged} diverged")
    elif cell.spread("best") is None:
        notes.append("not tested")
    return ", ".join(notes)


def _worst_entry(grid: Grid, row: int, metric: Metric) -> list[Any] | None:
    """Return number, column, whether columns are missing, the paper's, and the difference."""
    worst = grid.worst(row, metric)
    if worst is None:
        return None
    mean = round(worst.spread.mean, 2)
    return [mean, worst.column, worst.is_partial, worst.printed, worst.difference]


def _numbers(spread: Spread | None) -> list[float | None] | None:
    if spread is None:
        return None
    return [round(spread.mean, 2), None if spread.std is None else round(spread.std, 2)]
