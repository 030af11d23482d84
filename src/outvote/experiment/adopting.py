"""A run that another suite of the store has finished is taken over, not played again."""

import errno
import secrets
import shutil
from pathlib import Path
from time import time

from outvote.experiment.job import Job
from outvote.experiment.toml import to_toml
from outvote.results.atomic import not_written, sync, write_whole
from outvote.results.checkpoint import drop_all
from outvote.results.faults import BusyError, StoreError
from outvote.results.schema import OVER, DataUsed, Status

FILES = ("env.json", "metrics.jsonl", "timings.jsonl", "audit.npz", "status.json")
"""What is copied, in this order: all that makes tables and reports; weights stay where they are."""
LONG_AGO = 3600.0
TAKEN = (errno.ENOTEMPTY, errno.EEXIST)


def find_elsewhere(job: Job) -> Job | None:
    """Return the same run in another suite of the store, if it is over there."""
    if not job.root.is_dir():
        return None
    for suite in sorted(path.name for path in job.root.iterdir() if path.is_dir()):
        if suite == job.suite or suite.startswith("."):
            continue
        other = Job(job.spec, suite, job.root, job.hash)
        if _is_over(other):
            return other
    return None


def adopt(job: Job, other: Job, now: DataUsed) -> Status | None:
    """Copy the results of another suite; None if they cannot be had.

    They are there in full or not at all, whenever the program is killed.
    """
    if other.other_data(other.known_data(), now):
        return None
    draft = job.folder.path.parent / f".{job.name}.{secrets.token_hex(4)}.tmp"
    try:
        _remove_left(job)
        _copy(job, other, draft)
        _put(job, draft)
    except FileNotFoundError:  # Somebody removed the other run.
        return None
    except BusyError:
        return None
    except OSError as error:
        raise StoreError(not_written(job.folder.path, error)) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return job.folder.known_status()[0]


def _is_over(job: Job) -> bool:
    try:
        status, _ = job.folder.known_status()
    except StoreError:
        return False
    return status is not None and status.outcome in OVER


def _remove_left(job: Job) -> None:
    """Remove what a program that was killed left beside the run."""
    for path in job.folder.path.parent.glob(f".{job.name}.*.tmp"):
        if time() - path.stat().st_mtime > LONG_AGO:
            shutil.rmtree(path, ignore_errors=True)


def _copy(job: Job, other: Job, draft: Path) -> None:
    draft.mkdir(parents=True)
    for name in FILES:
        shutil.copyfile(other.folder.path / name, draft / name)
        sync(draft / name)
    write_whole(draft / "config.toml", to_toml(job.spec, job.suite).encode())
    sync(draft)


def _put(job: Job, draft: Path) -> None:
    """Give the copy its name; a half-done run of that name gives way."""
    place = job.folder.path
    try:
        draft.rename(place)
    except OSError as error:
        if error.errno not in TAKEN:
            raise
        _put_into(job, draft)
    sync(place.parent)


def _put_into(job: Job, draft: Path) -> None:
    """Replace what is in the folder: it is held all the time, so nobody can begin it meanwhile."""
    writer = job.writer()
    try:
        if _is_over(job):
            return
        drop_all(writer.path)  # They do not go with the copy, should it end half way.
        for name in ("config.toml", *FILES):
            if name == FILES[-1]:
                sync(writer.path)
            (draft / name).replace(writer.path / name)
    finally:
        writer.close()
