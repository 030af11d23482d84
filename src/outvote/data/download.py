"""Downloading a file: resumed where it stopped, checked, and only then renamed."""

import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException, HTTPResponse
from pathlib import Path

from outvote.data.checksum import md5_of, read_inside
from outvote.data.dataset_entry import RemoteFile
from outvote.data.faults import DamagedDataError, FetchError

Progress = Callable[[str, int, int | None], None]
"""Called with the name of a file, its bytes so far, and its size."""

CHUNK = 1 << 18
TIMEOUT_SECONDS = 30
NUM_TRIES = 4
PAUSE_SECONDS = 1.0
NOTHING_MORE = 416
SERVER_TROUBLE = 500


def download(remote: RemoteFile, folder: Path, progress: Progress) -> None:
    """Download a file into a folder; an unfinished NAME.part is continued."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{remote.name}.part"
    was_there = part.exists()
    _receive(remote.url, part, progress)
    if not (fault := _fault(remote, part)):
        part.replace(folder / remote.name)
        return
    part.unlink(missing_ok=True)
    if not was_there:
        raise FetchError(f"{fault}; it was deleted")
    # The beginning may have come from another version of the file.
    download(remote, folder, progress)


def is_original(remote: RemoteFile, path: Path) -> bool:
    """Return whether a file is there and whole."""
    return path.is_file() and not _fault(remote, path)


def _fault(remote: RemoteFile, path: Path) -> str:
    """Return what is wrong with a file; empty: it is the original."""
    try:
        got = read_inside(path)[1] if remote.is_inside else md5_of(path)
    except DamagedDataError as error:
        return str(error).rstrip(".")
    same = got == remote.md5
    return (
        "" if same else f"{remote.name} is not the original: md5 {remote.md5} expected, got {got}"
    )


def _receive(url: str, part: Path, progress: Progress) -> None:
    """Request until the file is complete; a lost connection is resumed."""
    for attempt in range(NUM_TRIES):
        try:
            if _request_rest(url, part, progress):
                return
            why = "the connection was cut"
        except urllib.error.HTTPError as error:
            error.close()
            why = f"the server answers {error.code} {error.reason}"
            if error.code < SERVER_TROUBLE:
                raise FetchError(why) from error
        except urllib.error.URLError as error:
            raise FetchError(f"it cannot be reached: {error.reason}") from error
        except (TimeoutError, ConnectionError, HTTPException) as error:
            why = f"the connection was cut: {str(error) or type(error).__name__}"
        if attempt + 1 < NUM_TRIES:
            time.sleep(PAUSE_SECONDS * 2**attempt)
    raise FetchError(why)


def _request_rest(url: str, part: Path, progress: Progress) -> bool:
    """Request what is missing; return whether the file is complete now."""
    start = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "outvote", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    try:
        response = urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=TIMEOUT_SECONDS
        )
    except urllib.error.HTTPError as error:
        if error.code == NOTHING_MORE and start:
            error.close()
            return True
        raise
    with response:
        return _append(response, part, start if response.status == 206 else 0, progress)


def _append(response: HTTPResponse, part: Path, start: int, progress: Progress) -> bool:
    length = response.headers.get("Content-Length")
    total = start + int(length) if length and length.isdigit() else None
    done = start
    name = part.name.removesuffix(".part")
    with part.open("r+b" if start else "wb") as file:
        file.seek(start)
        file.truncate()
        while chunk := response.read(CHUNK):
            file.write(chunk)
            done += len(chunk)
            progress(name, done, total)
    return total is None or done == total
