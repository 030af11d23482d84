"""Writing a file so that it is there in full or not at all, whenever the power goes."""

import errno
import os
import secrets
import stat
from pathlib import Path

from outvote.results.faults import StoreError

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
CHECKPOINT = "the last checkpoint is intact"


def write_whole(path: Path, content: bytes, *, stays: str = CHECKPOINT) -> None:
    """Write beside the target, then replace it; on failure what was there stays, and is told.

    A link stays, and leads to the new content; a pipe or /dev/null is written to, not replaced. A
    new file has the mode that the umask asks for, one that is replaced keeps its own.
    """
    target = Path(os.path.realpath(path))
    if _is_special(target):
        _write_into(target, content, stays)
        return
    draft = write_draft(target, content, stays=stays)
    try:
        draft.replace(target)
        sync(target.parent)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise StoreError(not_written(path, error, stays)) from error


def write_draft(path: Path, content: bytes, *, stays: str = CHECKPOINT) -> Path:
    """Write a file that shall become `path`, and make sure that it is on the disk."""
    draft = path.parent / f".{path.name}.{secrets.token_hex(4)}.tmp"
    try:
        with draft.open("xb") as file:
            if path.exists():
                os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise StoreError(not_written(path, error, stays)) from error
    return draft


def remove_drafts(folder: Path) -> None:
    """Remove what a killed process left half written."""
    for draft in folder.glob(".*.tmp"):
        draft.unlink(missing_ok=True)


def _is_special(path: Path) -> bool:
    return path.exists() and not path.is_file() and not path.is_dir()


def _write_into(path: Path, content: bytes, stays: str) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise StoreError(not_written(path, error, stays)) from error


def sync(path: Path) -> None:
    """Make sure that what was written to a file or folder is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def not_written(path: Path, error: OSError, stays: str = CHECKPOINT) -> str:
    """Tell what could not be written, what is still there, and what to do."""
    remedy = "make room" if error.errno in NO_ROOM else "check the folder"
    return (
        f"{path} could not be written: {error.strerror or error}; {stays}: {remedy} and run the "
        "same command again"
    )
