"""Only one process works on a run; the system gives the lock back if that process is killed."""

import importlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

from outvote.results.faults import BusyError

# There is none on Windows: there nobody is kept away.
fcntl: Any = importlib.import_module("fcntl") if find_spec("fcntl") else None


def lock(path: Path) -> BinaryIO:
    """Take the lock that a file stands for, until that file is closed; BusyError if taken.

    Other faults (a file system without locks, say) are OSErrors that tell themselves.
    """
    file = path.open("ab")
    if fcntl is None:
        return file
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        if isinstance(error, BlockingIOError):
            raise BusyError(f"another process works on {path.parent}") from error
        raise
    return file
