"""Tables for programs: one record for each cell, as CSV or JSON."""

import csv
import io
from collections.abc import Sequence
from typing import Any

from outvote.report.cells import METRICS, Cell, Metric, is_percent
from outvote.report.grid import Grid
from outvote.report.provenance import provenance_of

DIGITS = 4


def records(
    grids: Sequence[Grid], metric: Metric | None = None, *, paper: bool = False
) -> list[dict[str, Any]]:
    """Return one flat record for each cell, with all metrics; None: no number.

    All but the deviation are in percent. `metric` is what was chosen, or else what the table is
    about. `is_worst` tells whether it is worst in this column of the row; None: there is no such
    thing as a worst case. With `paper`, `difference` is that of the metric to the paper's value.
    """
    return [
        {
            "suite": grid.suite,
            "part": grid.part,
            "title": grid.title,
            "rule": row,
            "column": grid.column_key,
            "value": value,
            **_counts(cell),
            **_numbers(cell),
            "metric": shown,
            "is_worst": _is_worst(grid, number, column, shown),
            **(_printed(cell, shown) if paper else {}),
        }
        for grid in grids
        for shown in grid.metrics(metric)[:1]
        for number, (row, cells) in enumerate(zip(grid.rows, grid.cells, strict=True))
        for column, (value, cell) in enumerate(zip(grid.columns, cells, strict=True))
    ]


def to_csv(grids: Sequence[Grid], metric: Metric | None = None, *, paper: bool = False) -> str:
    """Return the records as CSV; an empty field: no number."""
    found = records(grids, metric, paper=paper)
    file = io.StringIO()
    writer = csv.DictWriter(file, list(found[0]) if found else [], lineterminator="\n")
    writer.writeheader()
    for each in found:
        writer.writerow({**each, "seeds": " ".join(map(str, each["seeds"]))})
    return file.getvalue()


def as_json(
    grids: Sequence[Grid], metric: Metric | None = None, *, paper: bool = False
) -> dict[str, Any]:
    """Return the records, the worst case of each row, and where all of it comes from.

    `metric` is the one that was chosen; None: each table has that which it is about.
    """
    return {
        "metric": metric,
        "cells": records(grids, metric, paper=paper),
        "worst_cases": [
            _worst(grid, number, grid.metrics(metric)[0], paper=paper)
            for grid in grids
            if grid.has_worst
            for number in range(len(grid.rows))
        ],
        "provenance": provenance_of(grids).as_dict(),
    }


def _counts(cell: Cell) -> dict[str, Any]:
    return {
        "seeds": cell.seeds,
        "num_seeds": len(cell.seeds),
        "num_wanted": cell.num_wanted,
        "num_runs": len(cell.results),
        "num_diverged": cell.num_diverged,
        "num_unfinished": len(cell.unfinished),
    }


def _numbers(cell: Cell) -> dict[str, float | None]:
    result = {}
    for name in METRICS:
        spread = cell.spread(name)
        result[f"{name}_mean"] = None if spread is None else _rounded(spread.mean, name)
        std = None if spread is None else spread.std
        result[f"{name}_std"] = None if std is None else _rounded(std, name)
    return result


def _rounded(value: float, metric: Metric) -> float:
    """Return a percentage to four decimals, a length to so many digits that it is as exact."""
    return round(value, DIGITS) if is_percent(metric) else float(f"{value:.{DIGITS + 2}g}")


def _printed(cell: Cell, metric: Metric) -> dict[str, float | None]:
    printed = cell.printed
    return {
        "paper": None if printed is None else printed.accuracy,
        "paper_std": None if printed is None else printed.std,
        "difference": cell.difference(metric),
    }


def _is_worst(grid: Grid, row: int, column: int, metric: Metric) -> bool | None:
    worst = grid.worst(row, metric) if grid.has_worst else None
    return None if worst is None else worst.column == column


def _worst(grid: Grid, row: int, metric: Metric, *, paper: bool) -> dict[str, Any]:
    worst = grid.worst(row, metric)
    place = {"suite": grid.suite, "part": grid.part, "title": grid.title, "rule": grid.rows[row]}
    printed = {
        "paper": None if worst is None else worst.printed,
        "difference": None if worst is None else worst.difference,
    }
    return {
        **place,
        "metric": metric,
        "value": None if worst is None else grid.columns[worst.column],
        "mean": None if worst is None else _rounded(worst.spread.mean, metric),
        "is_partial": worst is None or worst.is_partial,
        **(printed if paper else {}),
    }
