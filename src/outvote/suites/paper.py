"""The numbers that the paper printed."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, NamedTuple, final

from outvote.results.labels import label
from outvote.text import read_number


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which numbers: a file of the folder paper, and the column of its columns."""

    file: str
    """The table of the paper. Allowed: the names of the CSV files in `src/outvote/suites/paper`,
    without the ending."""
    column: str
    """The column of that file whose values are those of the part's columns. Allowed: a column of
    the file."""
    where: Mapping[str, str] = field(default_factory=dict)
    """Only rows of the file that have these values. Allowed: columns of the file and their values.
    """
    empty: str = "oracle"
    """What an empty field of that column stands for. Allowed: any value of the part's columns."""


class Printed(NamedTuple):
    """One cell of a table of the paper, in percent."""

    accuracy: float
    std: float | None


def read_printed(wanted: Wanted) -> dict[tuple[str, Any], Printed]:
    """Return the cells by the name of the rule and the value of the column."""
    text = (files("outvote.suites") / "paper" / f"{wanted.file}.csv").read_text(encoding="utf-8")
    result = {}
    for row in csv.DictReader(text.splitlines()):
        if all(row[key] == value for key, value in wanted.where.items()):
            std = row.get("std")
            column = row[wanted.column]
            key = label(row["rule"]), read_number(column) if column else wanted.empty
            result[key] = Printed(float(row["accuracy"]), float(std) if std else None)
    return result
