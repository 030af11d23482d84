"""Forked processes: how they begin, and what they leave to their parent.

Only Linux has them: elsewhere a process with threads cannot be forked safely.
"""

import gc
import os
import signal
import sys
import warnings
from contextlib import suppress
from pathlib import Path

IS_POSSIBLE = sys.platform == "linux" and hasattr(os, "fork")


def fork() -> int:
    """Fork this process: return 0 in the child, and its id in the parent.

    SIGINT and SIGTERM are blocked in the child until `leave_to_parent`.
    """
    # A child that was interrupted here would go on as if it were its parent.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    process = -1
    try:
        with warnings.catch_warnings():
            # Of other threads, which a child has not: it waits for none of them.
            warnings.simplefilter("ignore", DeprecationWarning)
            process = os.fork()
    finally:
        if process != 0:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return process


def leave_to_parent(files: tuple[int, ...]) -> None:
    """In a child: leave signals, objects and open files to the parent, but for some files."""
    # What was there before is the parent's: nothing of it is finalised here.
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    _close_others(files)


def _close_others(files: tuple[int, ...]) -> None:
    """Close what the parent has open, such as locks and sockets: they shall end with the parent."""
    for path in list(Path("/proc/self/fd").iterdir()):
        file = int(path.name)
        if file > 2 and file not in files:
            with suppress(OSError):  # The folder itself was open, too.
                os.close(file)


def end(process: int) -> None:
    """Kill a child, and wait until it is gone."""
    try:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    except (ProcessLookupError, ChildProcessError):  # It was waited for elsewhere.
        return
