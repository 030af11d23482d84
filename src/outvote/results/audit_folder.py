"""The folder of an audit log: named by the time, its manifest, readable by its owner alone."""

from contextlib import suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

import outvote
from outvote.results import disk
from outvote.results.audit_log import MANIFEST, Manifest


def now() -> str:
    """Return the time as ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def new_folder(parent: Path) -> Path:
    """Make a folder for a run, named by the time, which its owner alone can read."""
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    name = datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%SZ")
    for number in count(1):
        folder = parent / (name if number == 1 else f"{name}-{number}")
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            return folder
    raise AssertionError


def make_private(folder: Path) -> None:
    """Let nobody but the owner read the files: seeds of the rule are secret."""
    for path in folder.iterdir():
        with suppress(OSError):
            if path.is_file() and path.stat().st_mode & 0o077:
                path.chmod(0o600)


def write_manifest(folder: Path, **about: Any) -> None:
    """Write the manifest of a log, with the version of outvote."""
    manifest = Manifest(outvote=outvote.__version__, **about)
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
    disk.write_whole(folder / MANIFEST, text + b"\n")
