"""Where the gradient of one client is read from, some coordinates at a time.

A safetensors file is read, not mapped: one that is cut while it is mapped ends the process. Arrays
and state dicts of torch are mapped by the libraries that open them.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from outvote.files.safetensors_file import FLOATS, Entry, UnusableFile, read_header, state_of
from outvote.flat import LARGEST
from outvote.text import shortened

Chunks = Callable[[], Iterable[Any]]
NUM_CHECKED = 1 << 18


class Source(ABC):
    """The gradient of one client as a vector."""

    size: int
    """How many coordinates it has."""
    dtype: torch.dtype
    """The dtype to work in: float64 if any of it is, else float32."""
    entries: tuple[tuple[str, Entry], ...] = ()
    """The named tensors that it consists of, in order; none for a plain vector."""

    @abstractmethod
    def read(self, start: int, out: Tensor) -> None:
        """Write the coordinates from `start` on to `out`; raise UnusableFile if that fails."""

    def first_not_finite(self, part: slice) -> int:
        """Return the first of some coordinates that cannot be used; the size if all can.

        It is NaN, infinite, or too large to be squared.
        """
        largest = min(LARGEST, torch.finfo(self.dtype).max)
        for start in range(part.start, part.stop, NUM_CHECKED):
            values = torch.empty(min(NUM_CHECKED, part.stop - start), dtype=self.dtype)
            self.read(start, values)
            is_bad = ~(values.abs() <= largest)
            if bool(is_bad.any()):
                return start + int(is_bad.nonzero()[0])
        return self.size

    def place(self, at: int) -> str:
        """Say where a coordinate is: in which tensor, if they have names."""
        first = 0
        for name, entry in self.entries:
            first += entry.size
            if at < first:
                return f"in {shortened(name)!r}"
        return f"at coordinate {at}"


def open_source(value: Any) -> Source:
    """Open what a client's gradient may be.

    A path (.safetensors, .npy, or a state dict of torch: .pt, .pth, .bin), an array or memmap or
    tensor, a dict of them, or a function that returns an iterator of chunks, called for every pass.
    """
    if isinstance(value, Source):
        return value
    if isinstance(value, str | os.PathLike):
        return _open_file(Path(value))
    if callable(value):
        return ChunkSource(value)
    if isinstance(value, Iterator):
        raise TypeError(
            "a source is read more than once, got an iterator; give the function that makes it."
        )
    return ArraySource(value if isinstance(value, Mapping) else {"": value})


def _open_file(path: Path) -> Source:
    if path.suffix == ".npy":
        try:
            return ArraySource({"": np.load(path, mmap_mode="r", allow_pickle=False)})
        except Exception as error:  # A damaged header raises anything.
            raise UnusableFile(f"is not an array of numpy: {_first_line(error)}") from error
    if path.suffix in (".pt", ".pth", ".bin"):
        try:
            loaded = torch.load(path, mmap=True, weights_only=True, map_location="cpu")
        except Exception as error:  # A damaged archive raises anything.
            raise UnusableFile(f"is not a state dict of torch: {_first_line(error)}") from error
        if not isinstance(loaded, Mapping):
            raise UnusableFile(f"holds a {type(loaded).__name__} instead of a state dict")
        for name, value in loaded.items():
            if isinstance(value, Tensor):
                _check_dense(value, str(name))
        try:
            return ArraySource(loaded)
        except (ValueError, RuntimeError) as error:
            raise UnusableFile(f"holds what is no tensor: {_first_line(error)}") from error
    return SafetensorsSource(path)


def _check_dense(tensor: Tensor, name: str) -> None:
    """Refuse a tensor whose numbers are not all there: a copy may be larger than any memory."""
    if tensor.layout != torch.strided or tensor.is_meta:
        kind = "no numbers" if tensor.is_meta else "a sparse tensor"
        raise UnusableFile(f"tensor {shortened(name)!r} holds {kind}")
    if tensor.numel() * tensor.itemsize > tensor.untyped_storage().nbytes():
        raise UnusableFile(f"tensor {shortened(name)!r} repeats numbers instead of holding them")


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).partition("\n")[0]


@final
class SafetensorsSource(Source):
    """The float tensors of a safetensors file, in the order of their names."""

    def __init__(self, path: Path) -> None:
        """Read the header."""
        self.path, self.header = path, read_header(path)
        entries = self.header.entries
        self.entries = tuple((name, entry) for name, entry in entries if entry.dtype in FLOATS)
        self.size = sum(entry.size for _, entry in self.entries)
        self.dtype = _work_dtype(entry.dtype for _, entry in self.entries)
        self.counters = {name: entry for name, entry in entries if entry.dtype not in FLOATS}
        """The tensors of integers, which are not part of the vector."""

    def read(self, start: int, out: Tensor) -> None:
        """Read from the file, which must not have changed since it was opened."""
        with self._opened() as file:
            for name, entry, own, there in overlaps(self.entries, slice(start, start + len(out))):
                out[there].copy_(self._read_at(file, name, entry, own))

    def counter(self, name: str) -> Tensor:
        """Read a tensor of integers."""
        entry = self.counters[name]
        with self._opened() as file:
            return self._read_at(file, name, entry, slice(0, entry.size)).view(entry.shape)

    @contextmanager
    def _opened(self) -> Iterator[int]:
        try:
            file = os.open(self.path, os.O_RDONLY)
            try:
                if state_of(os.fstat(file)) != self.header.state:
                    raise UnusableFile("changed while it was read")
                yield file
            finally:
                os.close(file)
        except OSError as error:
            raise UnusableFile(f"cannot be read: {error.strerror or error}") from error

    def _read_at(self, file: int, name: str, entry: Entry, own: slice) -> Tensor:
        """Read some numbers of a tensor."""
        itemsize = entry.dtype.itemsize
        if own.start == own.stop:
            return torch.empty(0, dtype=entry.dtype)
        buffer = np.empty((own.stop - own.start) * itemsize, np.uint8)
        done, offset = 0, self.header.offsets[name] + own.start * itemsize
        while done < len(buffer):
            got = os.preadv(file, [buffer[done:].data], offset + done)
            if got == 0:
                raise UnusableFile("is cut off")
            done += got
        return torch.from_numpy(buffer).view(entry.dtype)


def overlaps(
    entries: Iterable[tuple[str, Entry]], piece: slice
) -> Iterator[tuple[str, Entry, slice, slice]]:
    """Yield the tensors that are in a piece of all coordinates, which of theirs, and where."""
    first = 0
    for name, entry in entries:
        start, stop = max(piece.start, first), min(piece.stop, first + entry.size)
        if start < stop:
            there = slice(start - piece.start, stop - piece.start)
            yield name, entry, slice(start - first, stop - first), there
        first += entry.size


@final
class ArraySource(Source):
    """Arrays or tensors in memory or mapped into it."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        """Take the arrays by name, in order; the name "" is that of a plain vector."""
        self.tensors: dict[str, Any] = {}
        self._entries: list[tuple[str, Entry]] = []
        for name, value in named.items():
            array = value.detach() if isinstance(value, Tensor) else np.asanyarray(value)
            entry = Entry(tuple(array.shape), _dtype_of(array, name))
            if entry.dtype in FLOATS:
                self._entries.append((name, entry))
                self.tensors[name] = array.reshape(-1)
            elif not name:
                raise UnusableFile(f"holds {entry.dtype} instead of floats")
        self.size = sum(entry.size for _, entry in self._entries)
        self.dtype = _work_dtype(entry.dtype for _, entry in self._entries)
        if list(self.tensors) != [""]:
            self.entries = tuple((str(name), entry) for name, entry in self._entries)

    def read(self, start: int, out: Tensor) -> None:
        """Copy the coordinates."""
        for name, _, own, there in overlaps(self._entries, slice(start, start + len(out))):
            part = self.tensors[name][own]
            if not isinstance(part, Tensor):
                part = torch.from_numpy(np.array(part, part.dtype.newbyteorder("=")))
            out[there].copy_(part)


def _dtype_of(array: Any, name: str) -> torch.dtype:
    if isinstance(array, Tensor):
        return array.dtype
    try:
        return torch.from_numpy(np.empty(0, array.dtype.newbyteorder("="))).dtype
    except TypeError as error:
        where = f"tensor {name!r} holds" if name else "holds"
        raise UnusableFile(f"{where} {array.dtype} instead of numbers") from error


@final
class ChunkSource(Source):
    """A function that returns an iterator of arrays; it is called for every pass."""

    def __init__(self, chunks: Chunks) -> None:
        """Take the function; it is called once to count the coordinates."""
        self.chunks = chunks
        self.size, self.dtype = 0, torch.float32
        for chunk in self._fresh():
            self.size += len(chunk)
            self.dtype = torch.promote_types(self.dtype, _work_dtype([chunk.dtype]))
        self._next, self._left = self.size, torch.empty(0)
        self._iterator: Iterator[Tensor] = iter(())

    def _fresh(self) -> Iterator[Tensor]:
        for chunk in self.chunks():
            tensor = chunk.detach() if isinstance(chunk, Tensor) else torch.as_tensor(chunk)
            if tensor.dtype not in FLOATS:
                raise UnusableFile(f"a chunk holds {tensor.dtype} instead of floats")
            yield tensor.reshape(-1)

    def read(self, start: int, out: Tensor) -> None:
        """Take the next chunks; start again if these coordinates are over."""
        if start < self._next:
            self._next, self._left, self._iterator = 0, torch.empty(0), self._fresh()
        stop = start + len(out)
        while self._next < stop:
            if not len(self._left):
                chunk = next(self._iterator, None)
                if chunk is None:
                    raise UnusableFile("yields fewer coordinates than before")
                self._left = chunk
            count = min(len(self._left), stop - self._next)
            first = max(start, self._next)
            if first < self._next + count:
                values = self._left[first - self._next : count]
                out[first - start : self._next + count - start].copy_(values)
            self._left = self._left[count:]
            self._next += count


@final
class MovedSource(Source):
    """What a client's model moved away from the base."""

    def __init__(self, end: Source, base: Source) -> None:
        """Take the client's model and the base."""
        self.end, self.base = end, base
        self.size, self.entries = end.size, end.entries
        self.dtype = torch.promote_types(end.dtype, base.dtype)

    def read(self, start: int, out: Tensor) -> None:
        """Subtract, in float32 at least: half precision would round small steps away."""
        self.end.read(start, out)
        begin = torch.empty_like(out)
        self.base.read(start, begin)
        out -= begin


@final
class PartSource(Source):
    """Some coordinates of a gradient; the others are in other processes."""

    def __init__(self, own: Source, start: int, size: int) -> None:
        """Take the coordinates from `start` on, of `size` in all."""
        self.own, self.start, self.size = own, start, size
        self.dtype = own.dtype

    def read(self, start: int, out: Tensor) -> None:
        """Copy the coordinates, which must be among the own ones."""
        self.own.read(start - self.start, out)


def _work_dtype(dtypes: Iterable[torch.dtype]) -> torch.dtype:
    return torch.float64 if torch.float64 in set(dtypes) else torch.float32
