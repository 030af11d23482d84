"""Downloading a file: resumed where it stopped, checked, and only then given its name."""

import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException, HTTPResponse
from pathlib import Path

from outvote.data.checksum import md5_inside, md5_of
from outvote.data.faults import DamagedDataError, FetchError
from outvote.data.sources import RemoteFile

Progress = Callable[[str, int, int | None], None]
"""Told the name of a file, the bytes that are there, and how many there will be."""

CHUNK = 1 << 18
TIMEOUT_SECONDS = 30
NUM_TRIES = 4
PAUSE_SECONDS = 1.0
NOTHING_MORE = 416
SERVER_TROUBLE = 500


def download(remote: RemoteFile, folder: Path, progress: Progress) -> None:
    """Bring a file into a folder; what is there of it already under NAME.part is used."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{remote.name}.part"
    was_there = part.exists()
    _bring(remote.url, part, progress)
    try:
        _check(remote, part)
    except FetchError:
        part.unlink(missing_ok=True)
        if not was_there:
            raise
        # The beginning may have come from another version of the file.
        download(remote, folder, progress)
        return
    part.replace(folder / remote.name)


def is_original(remote: RemoteFile, path: Path) -> bool:
    """Tell whether a file is there and whole."""
    try:
        return path.is_file() and _md5(remote, path) == remote.md5
    except DamagedDataError:
        return False


def _bring(url: str, part: Path, progress: Progress) -> None:
    """Fetch until all is there; a cut connection is taken up again."""
    for attempt in range(NUM_TRIES):
        try:
            if _bring_more(url, part, progress):
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


def _bring_more(url: str, part: Path, progress: Progress) -> bool:
    """Ask for what is missing; return whether all is there now."""
    start = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "outvote", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    try:
        answer = urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=TIMEOUT_SECONDS
        )
    except urllib.error.HTTPError as error:
        if error.code == NOTHING_MORE and start:
            error.close()
            return True
        raise
    with answer:
        return _append(answer, part, start if answer.status == 206 else 0, progress)


def _append(answer: HTTPResponse, part: Path, start: int, progress: Progress) -> bool:
    length = answer.headers.get("Content-Length")
    total = start + int(length) if length and length.isdigit() else None
    done = start
    name = part.name.removesuffix(".part")
    with part.open("r+b" if start else "wb") as file:
        file.seek(start)
        file.truncate()
        while chunk := answer.read(CHUNK):
            file.write(chunk)
            done += len(chunk)
            progress(name, done, total)
    return total is None or done == total


def _check(remote: RemoteFile, part: Path) -> None:
    try:
        got = _md5(remote, part)
    except DamagedDataError as error:
        raise FetchError(f"{str(error).rstrip('.')}; it was deleted") from error
    if got != remote.md5:
        raise FetchError(
            f"{remote.name} is not the original: md5 {remote.md5} expected, got {got}; it was "
            "deleted"
        )


def _md5(remote: RemoteFile, path: Path) -> str:
    return md5_inside(path) if remote.is_inside else md5_of(path)
