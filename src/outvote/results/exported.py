"""Reading an export back, and telling what is wrong with one."""

import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from outvote.results.export import ABOUT, MARK, VERSION
from outvote.results.faults import DamagedFileError, StoreError
from outvote.results.renamed import COLUMNS, renamed_settings
from outvote.results.run import Result, check_config
from outvote.results.schema import Environment, Status
from outvote.results.series import OPTIONAL, REAL, SERIES, Series

GZIP = b"\x1f\x8b"
LONGEST_FIELD = 2**31 - 1


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
        content = path.read_bytes()
        if content.startswith(GZIP):
            content = gzip.decompress(content)
        return content.decode()
    except UnicodeDecodeError as error:
        raise StoreError(_no_export(path)) from error
    except (OSError, EOFError, zlib.error) as error:
        raise DamagedFileError(f"{path} cannot be read: {error}") from error


def _rows(text: str, path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Return the rows by column, each with its number."""
    table = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    columns = [COLUMNS.get(name, name) for name in table.fieldnames or ()]
    table.fieldnames = columns
    if MARK not in columns:
        raise StoreError(_no_export(path))
    for number, row in enumerate(table, start=1):
        _check_version(str(row[MARK]), path)
        if number == 1:
            _check_columns(columns, path)
        yield number, row


def _no_export(path: Path) -> str:
    return f"{path} is no export; give one that `outvote export` wrote, or a folder of runs"


def _check_version(found: str, path: Path) -> None:
    if not found.isdecimal() or int(found) < 1:
        raise DamagedFileError(f"{path} is damaged: its version is {found!r}")
    if int(found) > VERSION:
        raise StoreError(
            f"{path} was written by a newer outvote (export {found}, known up to {VERSION}); "
            "upgrade outvote"
        )


def _check_columns(found: Sequence[str], path: Path) -> None:
    needed = (MARK, *ABOUT, *SERIES)
    for name in needed:
        if name not in found:
            raise DamagedFileError(f"{path} is damaged: it has no column {name!r}")
    for name in found:
        if name not in (*needed, *OPTIONAL):
            raise StoreError(f"{path} has an unknown column {name!r}; remove it")


def _result(row: Mapping[str, Any], where: str) -> Result:
    try:
        return Result(
            suite=row["suite"],
            name=row["name"],
            config=_config(row["config"], where),
            status=_status(row),
            environment=_environment(row["environment"]),
            series=_series(row),
            seconds=float(row["seconds"]),
            num_samples=int(row["num_samples"]),
            folder=None,
        )
    # A row that is too short has None for the fields that it lacks.
    except (ValueError, TypeError, AttributeError, msgspec.MsgspecError) as error:
        raise DamagedFileError(f"{where} is damaged: {error}") from error


def _config(text: str, where: str) -> Mapping[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("its config is no table")  # noqa: TRY004  (the file is wrong)
    check_config(found, where)
    return renamed_settings(found)


def _status(row: Mapping[str, Any]) -> Status:
    found = {
        "outcome": row["outcome"],
        "reason": row["reason"],
        "round": int(row["rounds_completed"]),
        "num_rounds": int(row["num_rounds"]),
    }
    return msgspec.convert(found, Status)


def _environment(text: str) -> Environment | None:
    return msgspec.json.decode(text, type=Environment) if text else None


def _series(row: Mapping[str, Any]) -> Series:
    num_rounds = len(row["round"].split())
    arrays: dict[str, NDArray[Any]] = {name: _numbers(row, name) for name in SERIES}
    for name in OPTIONAL:
        arrays[name] = _numbers(row, name) if name in row else np.full(num_rounds, np.nan)
    for name, array in arrays.items():
        if len(array) != num_rounds:
            raise ValueError(f"{name} has {len(array)} numbers for {num_rounds} rounds")
    return Series(**arrays)


def _numbers(row: Mapping[str, Any], name: str) -> NDArray[Any]:
    return np.array(row[name].split(), dtype=np.float64 if name in REAL else np.int64)
