"""Exports: many runs in one CSV file, small enough to commit; tables need nothing else.

One row is one run. What is recorded per round is one field: numbers with spaces between them.
Diagnostics, and what is recorded per client, have columns only if a run has them.
"""

import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import MsgspecError

from outvote.limits import GZIP, TooLargeError, read_at_most, unpacked
from outvote.results.check import check_settings
from outvote.results.disk import DamagedFileError, StoreError
from outvote.results.run import Result
from outvote.results.schema import Environment, Outcome, Status
from outvote.results.series import (
    COUNTS_OR_NAN,
    OPTIONAL,
    REAL,
    SERIES,
    Clients,
    Series,
    column,
    to_digits,
)
from outvote.text import short_line, shortened

VERSION = 2
MARK = "outvote-export"
"""The first column: the version of the format, in every row."""
PATH = re.compile(r", (/|~|[A-Za-z]:[\\/]|\\\\).*$")
"""The local path at the end of the source of a dataset."""
ABOUT: dict[str, Callable[[Result], str]] = {
    "suite": lambda run: run.suite,
    "name": lambda run: run.name,
    "outcome": lambda run: run.status.outcome,
    "reason": lambda run: run.status.reason,
    "rounds_completed": lambda run: str(run.status.round),
    "num_rounds": lambda run: str(run.status.num_rounds),
    "config": lambda run: json.dumps(
        run.config, sort_keys=True, separators=(",", ":"), ensure_ascii=False
    ),
    "environment": lambda run: _environment(run.environment),
    "seconds": lambda run: f"{run.seconds:.3f}",
    "num_samples": lambda run: str(run.num_samples),
}
"""The columns with one value per run, and how it is written."""
BY_CLIENT = {"client_accuracies": "accuracy", "client_kept": "kept", "client_sampled": "sampled"}
"""The columns with one value per client, and the field of `Clients`; only if a run has them."""


def to_export(results: Iterable[Result], *, is_packed: bool = True) -> bytes:
    """Return the file: the same runs always give the same bytes, even those of an export."""
    ordered = sorted(results, key=lambda result: (result.suite, result.name))
    columns = (*SERIES, *(name for name in OPTIONAL if _is_known(ordered, name)))
    by_client = BY_CLIENT if any(each.clients for each in ordered) else ()
    text = io.StringIO(newline="")
    table = csv.writer(text, lineterminator="\n")
    table.writerow([MARK, *ABOUT, *columns, *by_client])
    for each in ordered:
        about = (write(each) for write in ABOUT.values())
        rounds, own = _by_round(each.series, columns), _by_client(each.clients, by_client)
        table.writerow([str(VERSION), *about, *rounds, *own])
    # Names of folders need not be text.
    content = text.getvalue().encode(errors="backslashreplace")
    return _packed(content) if is_packed else content


def _environment(found: Environment | None) -> str:
    """Return it without local paths, which are private: the checksum identifies the data."""
    if found is None:
        return ""
    if found.data is not None:
        data = msgspec.structs.replace(found.data, source=PATH.sub("", found.data.source))
        found = msgspec.structs.replace(found, data=data)
    return msgspec.json.encode(found, order="sorted").decode()


def _is_known(results: Sequence[Result], name: str) -> bool:
    return any(not np.isnan(getattr(each.series, name)).all() for each in results)


def _by_round(series: Series, columns: Sequence[str]) -> Iterator[str]:
    # Plain numbers: run-length encoding gives the same size after gzip.
    for name in columns:
        write = _WRITERS.get(name, to_digits if name in REAL else repr)
        yield " ".join(write(value) for value in getattr(series, name).tolist())


def _by_client(clients: Clients | None, columns: Iterable[str]) -> Iterator[str]:
    for name in columns:
        values = [] if clients is None else getattr(clients, BY_CLIENT[name]).tolist()
        yield " ".join(f"{value:.4g}" for value in values)


def _count_or_nan(value: float) -> str:
    return "nan" if np.isnan(value) else str(int(value))


_WRITERS = {"accuracy": repr, **dict.fromkeys(COUNTS_OR_NAN, _count_or_nan)}
"""Accuracies are what tables print: to the last bit."""


def _packed(content: bytes) -> bytes:
    file = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=file, mtime=0) as pack:
        pack.write(content)
    return file.getvalue()


MOST_BYTES = 100_000_000
"""Of an export that is read, unpacked: about 30 times the largest of all tables of the paper."""
LONGEST_FIELD = 4_000_000
"""Of one field, in characters: more than 200,000 rounds of a run."""


LONGEST_VERSION = 9
UNREADABLE = (ValueError, TypeError, AttributeError, OverflowError, RecursionError, MsgspecError)
"""What the fields of a damaged row raise."""


def read_export(path: Path) -> list[Result]:
    """Read an export, packed or not; one that is none, or of a newer outvote, is a StoreError."""
    text = _text(path)
    limit = csv.field_size_limit(LONGEST_FIELD)
    try:
        return [_result(row, f"run {number} of {path}") for number, row in _rows(text, path)]
    except csv.Error as error:
        raise DamagedFileError(f"{path} is damaged: {error}") from error
    finally:
        csv.field_size_limit(limit)


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = read_at_most(file, MOST_BYTES)
        if content.startswith(GZIP):
            content = unpacked(content, MOST_BYTES)
        return content.decode()
    except TooLargeError as error:
        raise DamagedFileError(f"{path} is too large: {error}; make several exports") from error
    except UnicodeDecodeError as error:
        raise StoreError(_no_export(path)) from error
    except (OSError, EOFError, zlib.error) as error:
        raise DamagedFileError(f"{path} cannot be read: {error}") from error


def _rows(text: str, path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Return the rows by column, each with its number."""
    table = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    columns = table.fieldnames or ()
    if MARK not in columns:
        raise StoreError(_no_export(path))
    for number, row in enumerate(table, start=1):
        _check_version(str(row[MARK]), path)
        if number == 1:
            _check_columns(columns, path)
        yield number, row


def _no_export(path: Path) -> str:
    return (
        f"{path} is not an export; give the output of `outvote export` (--format runs, the "
        "default), or a folder of runs"
    )


def _check_version(found: str, path: Path) -> None:
    if not found.isdecimal() or len(found) > LONGEST_VERSION or int(found) < 1:
        raise DamagedFileError(f"{path} is damaged: its version is {shortened(found)!r}")
    if int(found) != VERSION:
        is_newer = int(found) > VERSION
        age = "a newer" if is_newer else "an unreleased"
        remedy = "upgrade outvote" if is_newer else "export the runs again"
        raise StoreError(
            f"{path} was written by {age} outvote (export {found}, known: {VERSION}); {remedy}"
        )


def _check_columns(found: Sequence[str], path: Path) -> None:
    needed = (MARK, *ABOUT, *SERIES)
    for name in needed:
        if name not in found:
            raise DamagedFileError(f"{path} is damaged: it has no column {name!r}")
    for name in found:
        if name not in (*needed, *OPTIONAL, *BY_CLIENT):
            raise StoreError(f"{path} has an unknown column {shortened(name)!r}; remove it")


def _result(row: Mapping[str, Any], where: str) -> Result:
    try:
        return Result(
            suite=row["suite"],
            name=row["name"],
            config=_config(row["config"], where),
            status=Status(
                outcome=msgspec.convert(row["outcome"], Outcome),
                reason=row["reason"],
                round=int(row["rounds_completed"]),
                num_rounds=int(row["num_rounds"]),
            ),
            environment=msgspec.json.decode(row["environment"] or "null", type=Environment | None),
            series=_series(row),
            seconds=float(row["seconds"]),
            num_samples=int(row["num_samples"]),
            folder=None,
            clients=_clients(row),
        )
    # A row that is too short has None for the fields that it lacks.
    except UNREADABLE as error:
        raise DamagedFileError(f"{where} is damaged: {short_line(error)}") from error


def _clients(row: Mapping[str, Any]) -> Clients | None:
    """Return the clients of a run; None: it has none."""
    if not all(row.get(name) for name in BY_CLIENT):
        return None
    arrays = {
        field: np.array(row[name].split(), dtype=np.float64) for name, field in BY_CLIENT.items()
    }
    if len({len(array) for array in arrays.values()}) > 1:
        raise ValueError(f"{' and '.join(BY_CLIENT)} have different numbers of clients")
    return Clients(**arrays)


def _config(text: str, where: str) -> Mapping[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("its config is not a table")  # noqa: TRY004  (the file is wrong)
    try:
        check_settings(found)
    except DamagedFileError as error:
        raise DamagedFileError(f"{where} {error}") from error
    return found


def _series(row: Mapping[str, Any]) -> Series:
    num_rounds = len(row["round"].split())
    arrays = {
        name: column(name, row[name].split() if name in row else [np.nan] * num_rounds)
        for name in (*SERIES, *OPTIONAL)
    }
    for name, array in arrays.items():
        if len(array) != num_rounds:
            raise ValueError(f"{name} has {len(array)} numbers for {num_rounds} rounds")
    return Series(**arrays)
