"""Runs as a long table: one row per run and round, settings as columns; frame, CSV or Parquet.

Columns have a type. What a run does not have, or did not measure, is missing: NaN or None in a
frame, an empty field in CSV, null in Parquet.
"""

import csv
import gzip
import importlib
import io
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import fields
from math import isnan
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from outvote.grids import flat
from outvote.results.labels import parameters
from outvote.results.later import LATER
from outvote.results.run import Result
from outvote.results.series import COUNTS_OR_NAN, REAL, Series

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal["text", "integer", "real", "boolean"]
ABOUT: dict[str, Callable[[Result], Any]] = {
    "suite": lambda run: run.suite,
    "name": lambda run: run.name,
    "rule": lambda run: run.config["rule"],
    "attack": lambda run: run.config["attack"],
    "seed": lambda run: run.seed,
    "outcome": lambda run: run.status.outcome,
}
"""The first columns; rule and attack with their parameters, as texts."""
BY_ROUND = tuple(field.name for field in fields(Series))
"""The last columns: one value per round."""
NONE = "none"
"""How a file of settings writes that there is no value."""


PREFIX = "settings."
"""Before the name of a setting that is also the name of another column, such as "loss"."""


class Column(NamedTuple):
    """One value per run, all of one type."""

    kind: Kind
    values: list[Any]
    """None: the run has none."""


def settings_of(result: Result) -> dict[str, Any]:
    """Return all settings by dotted name, and the parameters of rule and attack likewise.

    Without those that are columns of their own: suite, seed, rule, attack.
    """
    inside = {
        f"{axis}.{key}": value
        for axis in ("rule", "attack")
        for key, value in parameters(result.config[axis]).items()
    }
    return inside | {key: v for key, v in flat(result.config).items() if key not in ABOUT}


def setting_columns(
    tables: Sequence[Mapping[str, Any]], taken: Collection[str]
) -> dict[str, Column]:
    """Return a column for each setting that any run has, in order of their names.

    A setting that came later, and was left out at its default, has that. `taken` are names of
    other columns.

    >>> found = setting_columns([{"data.beta": 0.5, "round": 1}, {"data.beta": "none"}], ["round"])
    >>> found["data.beta"], found["settings.round"]
    (Column(kind='real', values=[0.5, None]), Column(kind='integer', values=[1, None]))
    """
    whole = [LATER | {**table} for table in tables]
    columns = {}
    for name in sorted({name for table in whole for name in table}):
        values = [None if table.get(name) == NONE else table.get(name) for table in whole]
        columns[f"{PREFIX}{name}" if name.lower() in taken else name] = typed(values)
    return columns


def run_columns(results: Sequence[Result]) -> dict[str, Column]:
    """Return the columns with one value per run: what it is, and its settings.

    "none" is a missing setting, but the name of an attack.
    """
    about = {name: typed([read(each) for each in results]) for name, read in ABOUT.items()}
    settings = [settings_of(each) for each in results]
    return about | setting_columns(settings, (*ABOUT, *BY_ROUND))


def typed(values: Sequence[Any]) -> Column:
    """Return a column of the one type that holds all values; mixed ones are text.

    >>> typed([1, 2.5, None]), typed([1, "all"])
    (Column(kind='real', values=[1.0, 2.5, None]), Column(kind='text', values=['1', 'all']))
    """
    kind = _kind([each for each in values if each is not None])
    if kind == "text":
        return Column(kind, [None if each is None else _text(each) for each in values])
    if kind == "real":
        # Added to 0.0, the negative zero is the usual one.
        known = [None if each is None or isnan(each) else float(each) + 0.0 for each in values]
        return Column(kind, known)
    return Column(kind, list(values))


def _kind(known: Sequence[Any]) -> Kind:
    kinds = {type(each) for each in known}
    if kinds == {bool}:
        return "boolean"
    if kinds == {int} and all(abs(each) < 2**63 for each in known):
        return "integer"
    # A column without a value is one of numbers, as when pandas reads a file.
    return "real" if not kinds or (kinds <= {int, float} and float in kinds) else "text"


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    # Names of folders need not be text.
    return text.encode(errors="backslashreplace").decode()


def optional(module: str, what: str) -> Any:
    """Import a package that is not always installed; the error states the remedy."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise ImportError(
            f"{what} needs {module}, which is missing; install it: pip install {module}"
        ) from error


def to_frame(results: Sequence[Result]) -> "pd.DataFrame":
    """Return a pandas frame with a row per run and round; a run without rounds has no row."""
    pandas = optional("pandas", "a frame")
    per_run = run_frame(run_columns(results)).take(_run_of_row(results)).reset_index(drop=True)
    by_round = pandas.DataFrame({name: _joined(results, name) for name in BY_ROUND})
    frame: pd.DataFrame = pandas.concat([per_run, by_round], axis=1)
    return frame


def run_frame(columns: Mapping[str, Column]) -> "pd.DataFrame":
    """Return a pandas frame with a row per run."""
    pandas = optional("pandas", "a frame")
    frame: pd.DataFrame = pandas.DataFrame(
        {name: pandas.Series(each.values, dtype=_dtype(each)) for name, each in columns.items()}
    )
    return frame


def _dtype(column: Column) -> str | None:
    """Return the type of pandas; whole numbers with a gap are floats, as when it reads a file."""
    is_whole = None not in column.values
    return {
        "text": None,  # The text of this version of pandas.
        "integer": "int64" if is_whole else "float64",
        "real": "float64",
        "boolean": "bool" if is_whole else "object",
    }[column.kind]


def _run_of_row(results: Sequence[Result]) -> NDArray[np.int64]:
    return np.repeat(np.arange(len(results)), [len(each.series) for each in results])


def _joined(results: Sequence[Result], name: str) -> NDArray[Any]:
    dtype = np.float64 if name in (*REAL, *COUNTS_OR_NAN) else np.int64
    return np.concatenate([np.empty(0, dtype), *(getattr(each.series, name) for each in results)])


def to_long_csv(results: Sequence[Result], *, is_packed: bool = True) -> bytes:
    """Return the table as CSV; the same runs always give the same bytes."""
    ordered = sorted(results, key=lambda result: (result.suite, result.name))
    columns = run_columns(ordered)
    text = io.StringIO(newline="")
    table = csv.writer(text, lineterminator="\n")
    table.writerow([*columns, *BY_ROUND])
    for number, each in enumerate(ordered):
        about = [_field(column.values[number]) for column in columns.values()]
        table.writerows([*about, *row] for row in _rows(each.series))
    content = text.getvalue().encode()
    return gzip.compress(content, mtime=0) if is_packed else content


def _field(value: Any) -> str:
    return "" if value is None else str(value)


def _rows(series: Series) -> Iterator[tuple[str, ...]]:
    columns = []
    for name in BY_ROUND:
        write = str if name not in COUNTS_OR_NAN else lambda value: str(int(value))
        values = getattr(series, name).tolist()
        columns.append(["" if isnan(value) else write(value) for value in values])
    return zip(*columns, strict=True)


def to_parquet(results: Sequence[Result]) -> bytes:
    """Return the table as a Parquet file; needs pyarrow."""
    arrow = optional("pyarrow", "a Parquet file")
    parquet = importlib.import_module("pyarrow.parquet")
    ordered = sorted(results, key=lambda result: (result.suite, result.name))
    types = {
        "text": arrow.string(),
        "integer": arrow.int64(),
        "real": arrow.float64(),
        "boolean": arrow.bool_(),
    }
    row = arrow.array(_run_of_row(ordered))
    arrays = {
        name: arrow.array(column.values, types[column.kind]).take(row)
        for name, column in run_columns(ordered).items()
    }
    for name in BY_ROUND:
        values = _joined(ordered, name)
        kind = types["real" if name in REAL else "integer"]
        is_missing = np.isnan(values)
        known = values if name in REAL else np.where(is_missing, 0, values).astype(np.int64)
        arrays[name] = arrow.array(known, kind, mask=is_missing)
    file = io.BytesIO()
    parquet.write_table(arrow.table(arrays), file)
    return file.getvalue()
