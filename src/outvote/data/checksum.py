"""Checks of files from elsewhere: checksums of files, of gzip content and of arrays; npz files."""

import gzip
import hashlib
import zipfile
import zlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from outvote.data.faults import FETCH_AGAIN, DamagedDataError, fetch_again
from outvote.limits import TooLargeError, check_members, unpacked
from outvote.text import short_line

_new_md5 = partial(hashlib.md5, usedforsecurity=False)
MOST_INSIDE = 200_000_000
"""Bytes of a gzip or zip file of a dataset, unpacked; the largest known has 47 million."""
MOST_ARRAYS = 1 << 29
"""Bytes of the arrays of an npz file of a dataset."""


def md5_of(path: Path) -> str:
    """Return the md5 of a file as it is."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, _new_md5).hexdigest()


def read_inside(path: Path) -> tuple[bytes, str]:
    """Return what a file holds, without gzip, and its md5: gzip files of the same data differ."""
    content = path.read_bytes()
    try:
        content = unpacked(content, MOST_INSIDE) if ".gz" in path.suffixes else content
    except (EOFError, gzip.BadGzipFile, zlib.error, TooLargeError) as error:
        raise fetch_again(f"{path} is no whole gzip file: {error}") from error
    return content, _new_md5(content).hexdigest()


def check_sum(what: str, expected: str, got: str, remedy: str = FETCH_AGAIN) -> None:
    """Raise unless two checksums agree."""
    if got != expected:
        raise DamagedDataError(
            f"{what} is not the original: checksum {expected} expected, got {got}; {remedy}."
        )


def read_npz(
    path: Path, names: Sequence[str], remedy: str, *, most: int = MOST_ARRAYS
) -> list[np.ndarray[Any, Any]]:
    """Return the arrays of these names, `most` bytes in all; pickled objects are refused."""
    try:
        # Opened here, because numpy leaves a file that is no archive open.
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            check_members(archive, [f"{name}.npy" for name in names], most)
            file.seek(0)
            with np.load(file, allow_pickle=False) as stored:
                arrays = [stored[name] for name in names]
        if not all(isinstance(array, np.ndarray) for array in arrays):
            raise ValueError("a member is no array")  # noqa: TRY301
    # An archive has many ways to be wrong: its directory, its compression, the header of an array.
    except Exception as error:
        raise DamagedDataError(
            f"{path} must be an npz file with {', '.join(names)}: {short_line(error)}; {remedy}."
        ) from error
    return arrays
