"""Checkpoints: written whole, checked when read, and the one before is kept."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from outvote.results.disk import StoreError, open_regular, sync, write_errors, write_temporary
from outvote.text import short_line

NEWEST, PREVIOUS = "checkpoint.safetensors", "checkpoint.previous.safetensors"
BOTH = (NEWEST, PREVIOUS)
Arrays = Mapping[str, NDArray[Any]]
UNREADABLE = (
    *(OSError, MemoryError, SafetensorError, ValueError, KeyError, TypeError, RecursionError),
)
"""What reading a damaged file raises."""


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Checkpoint:
    """The state of a run after a round."""

    round: int
    config: str
    """The checksum of the run's settings."""
    arrays: Arrays
    notes: Mapping[str, Any]
    """Everything but arrays, as JSON."""

    def to_bytes(self) -> bytes:
        """Return the file: safetensors, with a checksum of all of it in its metadata."""
        about = {"round": self.round, "config": self.config, "notes": dict(self.notes)}
        text = json.dumps(about, sort_keys=True)
        arrays = {name: np.ascontiguousarray(array) for name, array in self.arrays.items()}
        # One entry only: safetensors writes several in any order, and files must be the same.
        metadata = {"about": text, "checksum": _checksum(text, arrays)}
        return save_arrays(arrays, {"outvote": json.dumps(metadata)})


def read_checkpoint(path: Path) -> Checkpoint:
    """Read and check a file; one that is damaged is a StoreError."""
    try:
        with open_regular(path) as file:
            content = file.read()
        metadata = _metadata(content)
        arrays = load_arrays(content)
        about = json.loads(metadata["about"])
    except UNREADABLE as error:
        raise StoreError(f"{path} is damaged: {short_line(error)}") from error
    if _checksum(metadata["about"], arrays) != metadata.get("checksum"):
        raise StoreError(f"{path} is damaged: its checksum is wrong")
    return Checkpoint(
        round=about["round"], config=about["config"], arrays=arrays, notes=about["notes"]
    )


def save(folder: Path, checkpoint: Checkpoint) -> None:
    """Put a checkpoint into a folder; the one that was there becomes the previous one."""
    newest = folder / NEWEST
    temporary = write_temporary(newest, checkpoint.to_bytes())
    with write_errors(newest):
        # Killed between the two, the previous one is still found.
        if newest.exists():
            newest.replace(folder / PREVIOUS)
        temporary.replace(newest)
        sync(folder)


def load_newest(
    folder: Path, config: str, fault_of: Callable[[Checkpoint], str] = lambda _: ""
) -> tuple[Checkpoint | None, list[str]]:
    """Return the newest sound checkpoint, and the faults of newer ones.

    `fault_of` returns why one does not fit to the rest of the folder, or "".
    """
    faults = []
    for path in (folder / name for name in BOTH):
        if not path.exists():
            continue
        try:
            found = read_checkpoint(path)
        except StoreError as error:
            faults.append(str(error))
            continue
        fault = fault_of(found) if found.config == config else f"{path} belongs to other settings"
        if not fault:
            return found, faults
        faults.append(fault)
    return None, faults


def drop(folder: Path, *names: str) -> None:
    """Remove checkpoints: `NEWEST`, `PREVIOUS`, or `BOTH`."""
    for name in names:
        with write_errors(folder / name):
            (folder / name).unlink(missing_ok=True)


def _metadata(content: bytes) -> dict[str, str]:
    size = int.from_bytes(content[:8], "little")
    found = json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["outvote"])
    if not isinstance(found, dict) or not isinstance(found.get("about"), str):
        raise ValueError("its metadata is not that of a checkpoint")  # noqa: TRY004
    return found


def _checksum(about: str, arrays: Arrays) -> str:
    digest = hashlib.blake2b(about.encode(), digest_size=16)
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"\0{name}\0{array.dtype.str}\0{array.shape}\0".encode())
        digest.update(np.ascontiguousarray(array).data if array.size else b"")
    return digest.hexdigest()
