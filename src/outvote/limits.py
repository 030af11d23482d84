"""Limits on files from elsewhere: a small file must not take all memory, or fill a screen."""

import gzip
import io
import zipfile
from collections.abc import Iterable
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import IO

GZIP = b"\x1f\x8b"
MOST_SETTINGS = 10_000_000
"""Bytes of a file of settings."""
CHUNK = 1 << 20


class TooLargeError(ValueError):
    """A file holds more than is read."""


def unpacked(content: bytes, most: int) -> bytes:
    """Return what a gzip file holds; more than `most` bytes is a TooLargeError.

    >>> unpacked(gzip.compress(b"text"), most=4)
    b'text'
    """
    with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
        return read_at_most(file, most)


def read_at_most(file: IO[bytes] | gzip.GzipFile, most: int) -> bytes:
    """Read a file to its end; more than `most` bytes is a TooLargeError."""
    parts, left = [], most
    while part := file.read(min(CHUNK, left + 1)):
        left -= len(part)
        if left < 0:
            raise TooLargeError(f"it holds more than the {most:,} bytes that are read")
        parts.append(part)
    return b"".join(parts)


def read_settings_text(path: Path | Traversable) -> str:
    """Return a file of settings; one of more than 10 MB, or without an end, is a TooLargeError."""
    with path.open("rb") as file:
        return read_at_most(file, MOST_SETTINGS).decode()


def check_members(archive: zipfile.ZipFile, names: Iterable[str], most: int) -> None:
    """Raise a TooLargeError if some members of an archive have more than `most` bytes in all.

    Packed sizes count too: they are claims, and a read allocates what they claim.
    """
    wanted = set(names)
    members = [each for each in archive.infolist() if each.filename in wanted]
    found = sum(max(each.file_size, each.compress_size) for each in members)
    if found > most:
        raise TooLargeError(f"it holds {found:,} bytes, at most {most:,} are read")
