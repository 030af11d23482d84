"""Tables for runs that no suite describes: rules against whatever differs."""

from collections.abc import Sequence
from typing import Any

from outvote.report.differing import differing, order, ordered, split
from outvote.report.grid import Grid, Placed, fill
from outvote.report.naming import family
from outvote.results.labels import names_of
from outvote.results.run import Result


def automatic_grids(results: Sequence[Result], *, suite_title: str, title: str = "") -> list[Grid]:
    """Lay runs of one suite out: a row per rule, a column per attack, tables for the rest.

    If there is one attack only, the columns are the setting with the most values.
    """
    varied = differing(results)
    column = _column_key(results, varied)
    grids = []
    for told, group in split(results, [key for key in varied if key != column]):
        heading = ", ".join(text for text in (title, told) if text)
        grids.append(_grid(group, column, suite_title, heading))
    return grids


def _column_key(results: Sequence[Result], varied: dict[str, list[Any]]) -> str:
    has_attacks = len({each.config["attack"] for each in results}) > 1
    if has_attacks or not varied:
        return "attack"
    return max(varied, key=lambda key: len(varied[key]))


def _grid(results: Sequence[Result], column: str, suite_title: str, title: str) -> Grid:
    rules = names_of(each.config["rule"] for each in results)
    attacks = names_of(each.config["attack"] for each in results)
    placed = [
        Placed(
            rules[each.config["rule"]],
            attacks[each.config["attack"]] if column == "attack" else each.setting(column),
            each,
        )
        for each in results
    ]
    rows = sorted({each.row for each in placed}, key=_row_order)
    columns = ordered(each.column for each in placed)
    return Grid(
        suite=results[0].suite,
        suite_title=suite_title,
        part="",
        title=title,
        kind="table",
        column_key=column,
        rows=tuple(rows),
        columns=tuple(columns),
        cells=fill(placed, rows, columns, num_wanted=len({each.seed for each in results})),
    )


def _row_order(row: str) -> tuple[Any, ...]:
    """Put a rule before its wrapped forms."""
    return family(row), row.count("("), order(row), row
