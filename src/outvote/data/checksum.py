"""Checksums: of files, of what is inside gzip files, of arrays."""

import gzip
import hashlib
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from outvote.data.faults import DamagedDataError

CHUNK = 1 << 20


def md5_of(path: Path) -> str:
    """Return the md5 of a file as it lies there."""
    with path.open("rb") as file:
        return _md5(file)


def md5_inside(path: Path) -> str:
    """Return the md5 of what a gzip file holds: two gzip files of the same data may differ."""
    if path.suffix != ".gz" and not path.name.endswith(".gz.part"):
        return md5_of(path)
    try:
        with gzip.open(path, "rb") as file:
            return _md5(file)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DamagedDataError(
            f"{path} is no whole gzip file: {error}; delete it and fetch it again."
        ) from error


def sha256_of(*arrays: np.ndarray[Any, Any]) -> str:
    """Return the sha256 of the bytes of some arrays, one after the other."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def check_sum(
    what: str, expected: str, got: str, remedy: str = "delete it and fetch it again"
) -> None:
    """Raise unless two checksums agree."""
    if got != expected:
        raise DamagedDataError(
            f"{what} is not the original: checksum {expected} expected, got {got}; {remedy}."
        )


def _md5(file: BinaryIO | gzip.GzipFile) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    while chunk := file.read(CHUNK):
        digest.update(chunk)
    return digest.hexdigest()
