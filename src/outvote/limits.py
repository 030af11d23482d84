"""Limits on files from elsewhere: a small file must not take all memory, or fill a screen."""

import gzip
import io
import zipfile
from collections.abc import Iterable
from typing import BinaryIO

GZIP = b"\x1f\x8b"
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


def read_at_most(file: BinaryIO | gzip.GzipFile, most: int) -> bytes:
    """Read a file to its end; more than `most` bytes is a TooLargeError."""
    parts, left = [], most
    while part := file.read(min(CHUNK, left + 1)):
        left -= len(part)
        if left < 0:
            raise TooLargeError(f"it holds more than the {most:,} bytes that are read")
        parts.append(part)
    return b"".join(parts)


def check_members(archive: zipfile.ZipFile, names: Iterable[str], most: int) -> None:
    """Raise a TooLargeError if some members of an archive have more than `most` bytes in all.

    Packed sizes count too: they are claims, and a read allocates what they claim.
    """
    wanted = set(names)
    members = [each for each in archive.infolist() if each.filename in wanted]
    found = sum(max(each.file_size, each.compress_size) for each in members)
    if found > most:
        raise TooLargeError(f"it holds {found:,} bytes, at most {most:,} are read")
