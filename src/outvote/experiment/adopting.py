"""A run that another suite of the store has finished is copied, not executed again."""

import errno
import secrets
import shutil
from dataclasses import replace
from pathlib import Path

from outvote.experiment.plan import Job
from outvote.experiment.run_spec import to_toml
from outvote.results.disk import StoreError, not_written, remove_old, sync, write_whole
from outvote.results.folder import (
    CONFIG_NAME,
    STATUS_NAME,
    RunFolder,
    copied_status,
    status_bytes,
)
from outvote.results.schema import DataUsed, Status

FILES = ("env.json", "metrics.jsonl", "timings.jsonl", "audit.npz", "status.json")
"""The files that are copied, in this order: all but the checkpoints."""
TAKEN = (errno.ENOTEMPTY, errno.EEXIST)


def find_elsewhere(job: Job) -> Job | None:
    """Return the same run in another suite of the store, if it is over there."""
    if not job.root.is_dir():
        return None
    for suite in sorted(path.name for path in job.root.iterdir() if path.is_dir()):
        if suite == job.suite or suite.startswith("."):
            continue
        other = replace(job, suite=suite)
        if _is_over(other):
            return other
    return None


def adopt(job: Job, other: Job, now: DataUsed) -> Status | None:
    """Copy the results of another suite; None if that is not possible, or the run has begun here.

    The copy is complete or absent, whenever the program is killed.
    """
    if job.folder.path.exists() or other.data_fault(other.known_data(), now):
        return None
    temporary = job.folder.path.parent / f".{job.name}.{secrets.token_hex(4)}.tmp"
    try:
        remove_old(job.folder.path.parent.glob(f".{job.name}.*.tmp"))
        _copy(job, other, temporary)
        temporary.rename(job.folder.path)
        sync(job.folder.path.parent)
    except FileNotFoundError:  # The other run was removed.
        return None
    except OSError as error:
        if error.errno in TAKEN:  # Another process has begun it.
            return None
        raise StoreError(not_written(job.folder.path, error)) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return job.status


def _is_over(job: Job) -> bool:
    try:
        return job.status.is_over
    except StoreError:  # Of a newer outvote.
        return False


def _copy(job: Job, other: Job, temporary: Path) -> None:
    temporary.mkdir(parents=True)
    config = to_toml(job.spec, job.suite).encode()
    for name in FILES:
        shutil.copyfile(other.folder.path / name, temporary / name)
        status = RunFolder(temporary).status() if name == STATUS_NAME else None
        if status is not None and status.sums is not None:
            (temporary / name).write_bytes(status_bytes(copied_status(status, config)))
        sync(temporary / name)
    write_whole(temporary / CONFIG_NAME, config)
    sync(temporary)
