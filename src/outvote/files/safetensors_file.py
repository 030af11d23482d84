"""Reads safetensors files from untrusted clients: every fault has a reason, nothing is mapped.

The header is read and compared before any data, so a file with a false size costs nothing.
The data is read, not mapped into memory: a file that is cut while it is mapped ends the process.
"""

import json
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import torch

from outvote import flat
from outvote.text import shortened

LARGEST_HEADER = 8_000_000
"""Of a header that is read, in bytes: some 80,000 tensors."""
LONGEST_NAME = 1000
"""Of a tensor, in characters."""
DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "U16": torch.uint16,
    "I16": torch.int16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
FLOATS = (*flat.FLOATS, torch.float8_e4m3fn, torch.float8_e5m2)
"""What holds updates; all other tensors are counters."""


class UnusableFile(Exception):  # noqa: N818  (named like TooManyByzantine)
    """A file cannot be used; the text is the reason."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The header of one tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """How long its data is."""
        return self.size * self.dtype.itemsize

    def __str__(self) -> str:
        """Return the type and shape as in float32[3, 4]."""
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}"


@dataclass(frozen=True, slots=True)
class Header:
    """The tensors of a file, by name in alphabetical order, and its metadata."""

    entries: tuple[tuple[str, Entry], ...]
    metadata: Mapping[str, str] = field(default_factory=dict)
    offsets: Mapping[str, int] = field(default_factory=dict)
    """Where the data of every tensor starts in the file."""
    state: tuple[int, ...] = ()
    """What tells whether the file changed since."""

    def fault(self, expected: "Header") -> str:
        """Return how this header differs from the expected one; "" where it does not."""
        own, wanted = dict(self.entries), dict(expected.entries)
        for name, entry in wanted.items():
            if name not in own:
                return f"tensor {shortened(name)!r} is missing"
            if own[name] != entry:
                return f"tensor {shortened(name)!r} is {own[name]} instead of {entry}"
        extra = next((name for name in own if name not in wanted), None)
        return "" if extra is None else f"unexpected tensor {shortened(extra)!r}"


def state_of(status: os.stat_result) -> tuple[int, ...]:
    """Return what is different once a file was changed or replaced."""
    return status.st_ino, status.st_size, status.st_mtime_ns


def read_header(path: Path) -> Header:
    """Read and check the header of a file, without its data."""
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise UnusableFile("is a folder")
        if not stat.S_ISREG(status.st_mode):
            raise UnusableFile("is not a regular file")
        with path.open("rb") as file:
            start = file.read(8)
            length = _check_length(start, status.st_size)
            text = file.read(length)
    except OSError as error:
        raise UnusableFile(f"cannot be read: {error.strerror or error}") from error
    about = _parse(text)
    metadata = about.pop("__metadata__", {})
    entries = _read_entries(about, status.st_size - 8 - length)
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise _invalid("its metadata is not text")
    offsets = _check_offsets(about, entries, 8 + length)
    return Header(entries, metadata, offsets, state_of(status))


def _check_length(start: bytes, size: int) -> int:
    if size == 0:
        raise UnusableFile("is empty")
    length = int.from_bytes(start, "little")
    if len(start) < 8 or length > size + LARGEST_HEADER:
        raise UnusableFile("is not a safetensors file")
    if length > LARGEST_HEADER:
        raise UnusableFile(f"has a header of {length:,} bytes, at most {LARGEST_HEADER:,} are read")
    if length > size - 8:
        raise UnusableFile(f"is cut off: {size:,} bytes, its header alone has {length:,}")
    return length


def _parse(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise UnusableFile("is not a safetensors file: its header is not JSON") from error
    if not isinstance(header, dict):
        raise UnusableFile("is not a safetensors file: its header is not a JSON object")
    return header


def _read_entries(header: dict[str, Any], num_bytes: int) -> tuple[tuple[str, Entry], ...]:
    entries = tuple((name, _entry(name, header[name])) for name in sorted(header))
    if not entries:
        raise UnusableFile("holds no tensors")
    promised = sum(entry.num_bytes for _, entry in entries)
    if promised != num_bytes:
        what = "is cut off" if num_bytes < promised else "has bytes too many"
        raise UnusableFile(f"{what}: {num_bytes:,} bytes of data, its header needs {promised:,}")
    return entries


def _entry(name: str, about: object) -> Entry:
    if len(name) > LONGEST_NAME:
        raise UnusableFile(
            f"has a tensor name of {len(name):,} characters, at most {LONGEST_NAME:,} are allowed: "
            f"{shortened(name)!r}"
        )
    if name.encode(errors="replace").decode() != name:
        raise UnusableFile(f"has a tensor name that is no text: {shortened(name)!r}")
    about = about if isinstance(about, dict) else {}
    shape = about.get("shape")
    # The bounds keep the product of a forged shape finite.
    if (
        not isinstance(shape, list)
        or len(shape) > 64
        or not all(type(size) is int and 0 <= size < 2**63 for size in shape)
    ):
        raise UnusableFile(
            f"is not a safetensors file: its header has no shape for {shortened(name)!r}"
        )
    dtype = DTYPES.get(str(about.get("dtype")))
    if dtype is None:
        raise UnusableFile(
            f"tensor {shortened(name)!r} has the type {shortened(str(about.get('dtype')))!r}, "
            f"known are {', '.join(DTYPES)}"
        )
    return Entry(tuple(shape), dtype)


def _check_offsets(
    about: dict[str, Any], entries: Sequence[tuple[str, Entry]], first: int
) -> dict[str, int]:
    """Return where every tensor starts in the file; together they must fill it, without a gap."""
    starts: dict[str, int] = {}
    for name, entry in entries:
        if prod(size for size in entry.shape if size) >= 2**63:
            raise _invalid(f"the shape of {shortened(name)!r}")
        offsets = about[name].get("data_offsets")
        if not (
            isinstance(offsets, list)
            and len(offsets) == 2
            and all(type(offset) is int for offset in offsets)
        ):
            raise _invalid(f"no offsets for {shortened(name)!r}")
        starts[name] = offsets[0]
    sizes = {name: entry.num_bytes for name, entry in entries}
    end = 0
    for name in sorted(starts, key=lambda name: (starts[name], sizes[name])):
        if about[name]["data_offsets"] != [end, end + sizes[name]]:
            raise _invalid(f"wrong offsets for {shortened(name)!r}")
        end += sizes[name]
    return {name: first + start for name, start in starts.items()}


def _invalid(why: str) -> UnusableFile:
    return UnusableFile(f"is not a valid safetensors file: {why}")
