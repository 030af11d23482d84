"""A list of all runs of a store: index.sqlite, derived from the run folders.

One row per run in the table `runs`, with real types, and a column for each setting, such as
"data.beta". Only folders that changed are read again. It may be deleted at any time; one that is
damaged, or of another version, is rebuilt; where it cannot be written, the list is made without it.
"""

import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from outvote.results.check import REMEDY
from outvote.results.disk import DamagedFileError
from outvote.results.folder import CONTENT, STATUS_NAME, RunFolder, find_runs
from outvote.results.long_table import BY_ROUND, Column, setting_columns, settings_of
from outvote.results.run import Result, read_result

NAME = "index.sqlite"
VERSION = 5
"""Of the table; to be raised whenever an entry changes."""
PATIENCE = 10.0
"""Seconds to wait for another process that writes."""
UNUSABLE = (
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
)
"""Errors that a new file would not remedy."""

Warn = Callable[[str], None]


class IndexRow(NamedTuple):
    """One run; None: not known."""

    path: str
    """Of its folder, relative to the store."""
    suite: str
    name: str
    hash: str
    rule: str
    attack: str
    seed: int
    outcome: str
    round: int
    num_rounds: int
    best: float | None
    final: float | None
    last_ten: float | None
    kept_byzantine: float | None
    byzantine_weight: float | None
    deviation: float | None
    client_accuracy: float | None
    worst_decile: float | None
    least_kept: float | None
    settings: str
    """All settings by dotted name, as JSON; each has a column of its own, too."""
    stamp: str
    """When its files were written, and their sizes; "" for one that is to be read every time."""


METRICS = IndexRow._fields[10:-2]
TYPES = {
    **dict.fromkeys(IndexRow._fields, "TEXT"),
    **dict.fromkeys(("seed", "round", "num_rounds"), "INTEGER"),
    **dict.fromkeys(METRICS, "REAL"),
}
"""Of the columns of an entry."""
TYPE_OF_KIND = {"text": "TEXT", "integer": "INTEGER", "real": "REAL", "boolean": "INTEGER"}


def list_runs(root: Path, warn: Warn, *, rebuild: bool = False) -> list[IndexRow]:
    """Return all runs below a store, by suite and name, and bring its index up to date."""
    folders = {each.path.relative_to(root).as_posix(): each for each in find_runs(root)}
    if not folders:
        return []
    known = {} if rebuild else _known(root / NAME, warn)
    found = {
        path: entry
        for path, folder in folders.items()
        if (entry := _entry(folder, path, known.get(path), warn)) is not None
    }
    if found != known or rebuild:
        _write(root / NAME, list(found.values()), warn)
    return sorted(found.values(), key=lambda entry: (entry.suite, entry.name, entry.path))


def _entry(folder: RunFolder, path: str, known: IndexRow | None, warn: Warn) -> IndexRow | None:
    """Return the known entry of a run, or read the run if it has changed since."""
    try:
        stamp = _stamp(folder.path)
        if known is not None and known.stamp == stamp:
            return known
        result = read_result(folder)
    except (DamagedFileError, OSError) as error:
        warn(f"{folder.path} is left out: {error}; {REMEDY}")
        return None
    if result is None:
        return None
    for fault in result.faults:
        warn(f"{fault}; {REMEDY}")
    # Whether the process of a run that is not over has ended is no property of its files.
    return _described(result, path, stamp if result.is_over and not result.faults else "")


def _stamp(path: Path) -> str:
    found = []
    for name in (STATUS_NAME, *CONTENT):
        about = None
        with suppress(FileNotFoundError):
            about = (path / name).stat()
        found.append("-" if about is None else f"{about.st_mtime_ns} {about.st_size}")
    return " ".join(found)


def _described(result: Result, path: str, stamp: str) -> IndexRow:
    return IndexRow(
        path=path,
        suite=result.suite,
        name=result.name,
        hash=result.hash,
        rule=result.config["rule"],
        attack=result.config["attack"],
        seed=result.seed,
        outcome=result.status.outcome,
        round=result.status.round,
        num_rounds=result.status.num_rounds,
        **{name: getattr(result.summary, name) for name in METRICS},
        settings=json.dumps(settings_of(result)),
        stamp=stamp,
    )


def _known(path: Path, warn: Warn) -> Mapping[str, IndexRow]:
    """Return the entries of the index; none if there is no usable index."""
    if not path.exists():
        return {}
    try:
        with _opened(path) as index:
            (version,) = index.execute("PRAGMA user_version").fetchone()
            if version != VERSION:
                return {}
            index.execute("BEGIN")  # Both of the same content.
            rows = index.execute("SELECT * FROM runs ORDER BY path").fetchall()
            is_sound = index.execute("SELECT * FROM checksum").fetchall() == [(_checksum(rows),)]
    except UnicodeDecodeError:  # Of the text of an error: it has parts of the file.
        return {}
    except sqlite3.Error as error:
        if _is_unusable(error):
            warn(f"{path} cannot be read: {error}; all runs are read instead")
        return {}
    return {row[0]: IndexRow(*row[: len(TYPES)]) for row in rows} if is_sound else {}


def _write(path: Path, entries: Sequence[IndexRow], warn: Warn) -> None:
    """Replace the content of the index; a file that is damaged is removed first."""
    try:
        try:
            _replace(path, entries)
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            if isinstance(error, sqlite3.Error) and _is_unusable(error):
                raise
            path.unlink(missing_ok=True)
            _replace(path, entries)
    # The last two: a seed that is too large for SQLite, a folder whose name is not text.
    except (sqlite3.Error, OSError, OverflowError, UnicodeEncodeError) as error:
        warn(f"{path} could not be written: {error}; the list is complete without it")


def _replace(path: Path, entries: Sequence[IndexRow]) -> None:
    ordered = sorted(entries)
    settings = _setting_columns(ordered)
    values = [column.values for column in settings.values()]
    rows = [(*entry, *own) for entry, *own in zip(ordered, *values, strict=True)]
    types = TYPES | {name: TYPE_OF_KIND[column.kind] for name, column in settings.items()}
    columns = ", ".join(f"{_quoted(name)} {type_}" for name, type_ in types.items())
    with _opened(path) as index:
        # One short transaction: others see the content before it or after it.
        index.execute("BEGIN IMMEDIATE")
        for table in ("runs", "checksum"):
            index.execute(f"DROP TABLE IF EXISTS {table}")
        index.execute(f"CREATE TABLE runs ({columns}, PRIMARY KEY (path))")
        index.execute("CREATE TABLE checksum (value TEXT)")
        index.executemany(f"INSERT INTO runs VALUES ({', '.join('?' * len(types))})", rows)
        index.execute("INSERT INTO checksum VALUES (?)", (_checksum(rows),))
        index.execute(f"PRAGMA user_version = {VERSION}")
        index.execute("COMMIT")


def _setting_columns(entries: Sequence[IndexRow]) -> dict[str, Column]:
    """Return a column for each setting, as in a frame; SQLite has no type for true and false."""
    tables = [json.loads(entry.settings) for entry in entries]
    found = setting_columns(tables, (*IndexRow._fields, *BY_ROUND))
    return {
        name: column._replace(values=[_number(value) for value in column.values])
        if column.kind == "boolean"
        else column
        for name, column in found.items()
    }


def _number(value: Any) -> int | None:
    return None if value is None else int(value)


def _quoted(name: str) -> str:
    """Return the name of a column as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


def _checksum(rows: Sequence[tuple[object, ...]]) -> str:
    return hashlib.blake2b(ascii(rows).encode(), digest_size=16).hexdigest()


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    index = sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)
    try:
        yield index
    finally:
        index.close()


def _is_unusable(error: sqlite3.Error) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in UNUSABLE
