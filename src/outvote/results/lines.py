"""Files that grow line by line; a half written last line is no line."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from outvote.results.atomic import not_written
from outvote.results.faults import StoreError

Line = TypeVar("Line")


class Lines:
    """Appends lines of JSON to a file."""

    def __init__(self, path: Path) -> None:
        """Open the file, after what is in it."""
        self.path = path
        try:
            self._file = path.open("ab")
        except OSError as error:
            raise StoreError(not_written(path, error)) from error

    def append(self, line: Any) -> None:
        """Add a line and hand it to the system: it is there even if this process is killed."""
        try:
            self._file.write(msgspec.json.encode(line) + b"\n")
            self._file.flush()
        except OSError as error:
            raise StoreError(not_written(self.path, error)) from error

    def sync(self) -> None:
        """Make sure that all lines are on the disk: they are there even if the power goes."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise StoreError(not_written(self.path, error)) from error

    def close(self) -> None:
        """Close the file."""
        try:
            self._file.close()
        except OSError as error:
            raise StoreError(not_written(self.path, error)) from error


def read_lines(path: Path, kind: type[Line]) -> list[Line]:
    """Read the lines up to the first that is not whole."""
    return [line for line, _ in _whole_lines(path, kind)]


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
                line = decoder.decode(text)
            except (msgspec.DecodeError, UnicodeDecodeError):
                return
            if not text.endswith(b"\n"):
                return
            yield line, end
