"""npz files that somebody else wrote: arrays by name, or one sentence on what is wrong."""

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from outvote.data.faults import DamagedDataError

UNREADABLE = (zipfile.BadZipFile, zlib.error, KeyError, ValueError, OSError, EOFError)


def read_npz(path: Path, names: Sequence[str], remedy: str) -> list[np.ndarray[Any, Any]]:
    """Return the arrays of these names; pickled objects are refused."""
    try:
        # Opened here, because numpy leaves a file that is no archive open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            return [stored[name] for name in names]
    except UNREADABLE as error:
        raise DamagedDataError(
            f"{path} must be an npz file with {', '.join(names)}: {error}; {remedy}."
        ) from error
