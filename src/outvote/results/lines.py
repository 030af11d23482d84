"""Files that grow line by line; a half written last line is no line."""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from outvote.results.atomic import not_written, sync
from outvote.results.faults import StoreError
from outvote.results.renamed import renamed_line

Line = TypeVar("Line")


def append_line(path: Path, line: Any) -> None:
    """Add a line of JSON and hand it to the system: it is there even if this process is killed.

    The file is not kept open: of hundreds of runs, that would be more than a process may have.
    """
    try:
        with path.open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")
    except OSError as error:
        raise StoreError(not_written(path, error)) from error


def sync_lines(path: Path) -> None:
    """Make sure that all lines are on the disk: they are there even if the power goes."""
    try:
        if path.exists():
            sync(path)
    except OSError as error:
        raise StoreError(not_written(path, error)) from error


def read_lines(path: Path, kind: type[Line]) -> list[Line]:
    """Read the lines up to the first that is not whole: where each builds on those before it."""
    return [line for line, _ in _whole_lines(path, kind)]


def read_readable(path: Path, kind: type[Line]) -> tuple[list[Line], int]:
    """Read all lines that make sense, and count the others: where each stands for itself.

    A last line without an end is being written, and does not count yet.
    """
    if not path.exists():
        return [], 0
    *lines, _ = path.read_bytes().split(b"\n")
    decoder, found = msgspec.json.Decoder(kind), []
    for line in lines:
        with suppress(msgspec.DecodeError, UnicodeDecodeError):
            found.append(decoder.decode(renamed_line(line)))
    return found, len(lines) - len(found)


def cut_back(path: Path, num_lines: int, kind: type[Any]) -> bool:
    """Keep the first lines and remove the rest; False, and nothing done, if there are fewer."""
    end, found = 0, 0
    for _, stop in _whole_lines(path, kind):
        if found == num_lines:
            break
        end, found = stop, found + 1
    if found < num_lines:
        return False
    if path.exists():
        os.truncate(path, end)
    return True


def cut_unfinished(path: Path) -> None:
    """Remove a half written last line; whole lines stay as evidence, even if they make no sense."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return
    end = content.rfind(b"\n") + 1
    if end < len(content):
        os.truncate(path, end)


def count_from_one(rounds: Sequence[int]) -> bool:
    """Tell whether the rounds are 1, 2, 3, ..."""
    return list(rounds) == list(range(1, len(rounds) + 1))


def _whole_lines(path: Path, kind: type[Line]) -> Iterator[tuple[Line, int]]:
    if not path.exists():
        return
    end = 0
    decoder = msgspec.json.Decoder(kind)
    with path.open("rb") as file:
        for text in file:
            end += len(text)
            try:
                line = decoder.decode(renamed_line(text))
            except (msgspec.DecodeError, UnicodeDecodeError):
                return
            if not text.endswith(b"\n"):
                return
            yield line, end
