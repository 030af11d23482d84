"""Files that survive a crash: written whole or not at all, grown line by line, or locked."""

import errno
import importlib
import os
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from io import BufferedReader
from pathlib import Path
from tempfile import TemporaryFile
from time import sleep, time
from typing import Any, BinaryIO, TypeVar

import msgspec

from outvote.text import short_line

# Windows has no fcntl: there, no run can be stored, see `lock`.
fcntl: Any = importlib.import_module("fcntl") if find_spec("fcntl") else None
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
NO_PLACE = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR),
    *(errno.ENAMETOOLONG, errno.ELOOP, errno.EEXIST, errno.ENOTEMPTY),
)
"""Errors that only another path, or other rights, can remedy."""
LONG_AGO = 3600.0
CHECKPOINT = "the last checkpoint is intact"
LOCK = ".lock"
MOST_BYTES = 100_000_000
"""Of a file that is read whole, or of one line; a run of ten thousand clients needs 1 % of it."""
READER_SECONDS = 0.02
"""A reader may look at a lock for less than this, see `is_locked`."""
UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for a text that is no JSON of some type."""
Kind = TypeVar("Kind")


class StoreError(Exception):
    """Results could not be written or read; what was there before is still there."""


class OutputError(StoreError):
    """A path cannot be written to, whatever is tried again: the user must name another."""


class DamagedFileError(StoreError):
    """A file exists, but its content is not what it should be."""


class BusyError(Exception):
    """Another process works on the run."""


def write_whole(path: Path, content: bytes, *, stays: str = CHECKPOINT) -> None:
    """Write a temporary file, then replace the target; a failure leaves the target as it was.

    A link stays, and leads to the new content; a pipe or /dev/null is written to, not replaced. A
    new file has the mode that the umask asks for, one that is replaced keeps its own.
    """
    with replacing(path, stays=stays) as file:
        file.write(content)


@contextmanager
def replacing(path: Path, *, stays: str = CHECKPOINT) -> Iterator[BinaryIO]:
    """Open a file to write in any order; it replaces `path` if the block ends without an error.

    As `write_whole`, for what is too large to be in memory.
    """
    target = Path(os.path.realpath(path))
    with write_errors(path, stays):
        if target.exists() and not target.is_file() and not target.is_dir():
            with TemporaryFile() as file:
                yield file
                file.seek(0)
                with target.open("wb") as pipe:
                    shutil.copyfileobj(file, pipe)
            return
        temporary = target.parent / f".{target.name}.{secrets.token_hex(4)}.tmp"
        try:
            with temporary.open("xb+") as file:
                if target.exists():
                    os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
            sync(target.parent)
        finally:
            temporary.unlink(missing_ok=True)


def write_temporary(path: Path, content: bytes, *, stays: str = CHECKPOINT) -> Path:
    """Write a temporary file that is to replace `path`, and sync it to the disk."""
    temporary = path.parent / f".{path.name}.{secrets.token_hex(4)}.tmp"
    try:
        with write_errors(path, stays), temporary.open("xb") as file:
            if path.exists():
                os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except StoreError:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def unshare(path: Path) -> None:
    """Replace a link, or a file with several names, by a file of its own with the same content.

    Lines are appended in place: they would appear under the other names, too. A link that leads to
    no regular file is removed.
    """
    is_link = path.is_symlink()
    if not is_link and not (path.is_file() and path.stat().st_nlink > 1):
        return
    if not path.is_file():
        path.unlink()
        return
    temporary = path.parent / f".{path.name}.{secrets.token_hex(4)}.tmp"
    try:
        shutil.copyfile(path, temporary)
        sync(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def remove_temporaries(folder: Path) -> None:
    """Remove the temporary files of a killed process."""
    for temporary in folder.glob(".*.tmp"):
        temporary.unlink(missing_ok=True)


def remove_old(paths: Iterable[Path]) -> None:
    """Remove files and folders that killed programs have left long ago."""
    for path in paths:
        with suppress(OSError):
            if time() - path.stat().st_mtime > LONG_AGO:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def sync(path: Path) -> None:
    """Sync a file or folder to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def not_written(path: Path, error: OSError, stays: str = CHECKPOINT) -> str:
    """Return the message of a failed write: what failed, what is intact, what to do."""
    remedy = "free some space" if error.errno in DISK_FULL else "check the folder"
    if error.errno in NO_PLACE:
        remedy = "check the folder and its rights, or choose another path,"
    return (
        f"{path} could not be written: {error.strerror or error}; {stays}: {remedy} and run the "
        "same command again"
    )


@contextmanager
def write_errors(path: Path, stays: str = CHECKPOINT) -> Iterator[None]:
    """Turn OSErrors into StoreErrors."""
    try:
        yield
    except OSError as error:
        kind = OutputError if error.errno in NO_PLACE else StoreError
        raise kind(not_written(path, error, stays)) from error


def lock(path: Path) -> BinaryIO:
    """Lock a file until it is closed or the process ends; BusyError if another process has it.

    Other faults (a file system without locks, say) are OSErrors.
    """
    if fcntl is None:
        raise OutputError(
            f"{path.parent} cannot be locked on this system, so no run can be stored; use Linux or "
            "another POSIX system, on Windows WSL"
        )
    file = path.open("ab")
    for is_last in (False, False, True):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if isinstance(error, BlockingIOError) and not is_last:
                sleep(READER_SECONDS)
                continue
            file.close()
            if isinstance(error, BlockingIOError):
                raise BusyError(f"another process works on {path.parent}") from error
            raise
        break
    return file


def is_locked(folder: Path) -> bool | None:
    """Return whether another process works on a folder; None if that cannot be known.

    Without a file of the lock, nobody does.
    """
    if fcntl is None:
        return None
    try:
        with open_regular(folder / LOCK) as file:
            # A shared one: two readers do not see each other. It is released at once.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except BlockingIOError:
        return True
    except OSError:
        return None
    return False


def append_line(path: Path, line: Any) -> bytes:
    """Append a line of JSON and flush it to the system: it survives a kill of this process.

    The file is not kept open: hundreds of runs would exceed the limit on open files. What was
    written is returned.
    """
    content = msgspec.json.encode(line) + b"\n"
    with write_errors(path), path.open("ab") as file:
        file.write(content)
    return content


def sync_lines(path: Path) -> None:
    """Sync all lines to the disk: they survive a power failure."""
    with write_errors(path):
        if path.exists():
            sync(path)


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file to read; an OSError for others: a pipe would block, a device not end."""
    # Without O_NONBLOCK, opening a pipe that nobody writes to would block, too.
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "no regular file", str(path))


def read_bounded(path: Path) -> bytes:
    """Read a small file; one that is large or no regular file is an OSError."""
    with open_regular(path) as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise OSError(errno.EFBIG, f"more than {MOST_BYTES:,} bytes", str(path))
    return content


def read_json(path: Path, kind: type[Kind]) -> Kind | None:
    """Read a file; None if there is none."""
    try:
        return msgspec.json.decode(read_bounded(path), type=kind)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, *UNDECODABLE) as error:
        raise DamagedFileError(f"{path} cannot be read: {short_line(error)}") from error


def read_lines(path: Path, kind: type[Kind]) -> list[Kind]:
    """Read the lines up to the first that is not whole: where each builds on those before it."""
    return [line for line, _ in _whole_lines(path, kind)]


def read_readable(path: Path, kind: type[Kind], start: int = 0) -> tuple[list[Kind], int, int]:
    """Read all lines that can be decoded, count the others, and return where the last line ends.

    For lines that stand for themselves. A last line without an end is being written, and does not
    count yet.
    """
    if not path.exists():
        return [], 0, start
    with open_regular(path) as file:
        start = min(start, file.seek(0, os.SEEK_END))
        file.seek(start)
        *lines, _ = file.read().split(b"\n")
    decoder, found = msgspec.json.Decoder(kind), []
    for line in lines:
        with suppress(*UNDECODABLE):
            found.append(decoder.decode(line))
    return found, len(lines) - len(found), start + sum(len(line) + 1 for line in lines)


def line_ends(path: Path, kind: type[Any]) -> list[int]:
    """Return where each line ends, up to the first that is not whole."""
    return [end for _, end in _whole_lines(path, kind)]


def cut_back(path: Path, num_lines: int, kind: type[Any]) -> bool:
    """Keep the first lines and remove the rest; False, and nothing done, if there are fewer."""
    ends = [0, *line_ends(path, kind)]
    if num_lines >= len(ends):
        return False
    if path.exists():
        os.truncate(path, ends[num_lines])
    return True


def cut_unfinished(path: Path) -> None:
    """Remove a half written last line; whole lines stay, even if they cannot be decoded."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return
    end = content.rfind(b"\n") + 1
    if end < len(content):
        os.truncate(path, end)


def _whole_lines(path: Path, kind: type[Kind]) -> Iterator[tuple[Kind, int]]:
    if not path.exists():
        return
    end, decoder = 0, msgspec.json.Decoder(kind)
    with open_regular(path) as file:
        while text := file.readline(MOST_BYTES):
            end += len(text)
            try:
                line = decoder.decode(text)
            except UNDECODABLE:
                return
            if text.endswith(b"\n"):
                yield line, end
