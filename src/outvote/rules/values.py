"""Where the values of a matrix come from: memory, or a stream of files, or of other ranks' shares.

Both work through the coordinates piece by piece. `total` adds up what is found in the pieces,
`by_coordinate` puts it side by side. Cores, files and ranks are known here and nowhere above.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import Tensor

from outvote.axes import Columns, PerCoordinate
from outvote.lazy import lazy
from outvote.ops.precision import work_dtype
from outvote.ops.threads import CPU, mapped

# A tile of so many values stays in the cache of a core; a GPU takes larger ones.
TILE_VALUES = {"cpu": 1 << 20, "cuda": 1 << 28}
# Sums of more values of a stream are rounded too often in float32; tiles are added in float64.
SUMMED_VALUES = 1 << 18

Work = Callable[..., Any]
"""Called with the values of some coordinates, and with those of a vector where one is given."""
Chunks = Callable[[], Iterator[tuple[slice, Tensor]]]
"""Starts a pass: yields slices of the coordinates and their values ``[clients, coordinates]``, in
order; the values last until the next are asked for."""


class NeedsWholeRows(TypeError):  # noqa: N818  (named like TooManyByzantine)
    """A rule asks for whole gradients, which a stream does not have."""


class Values(Protocol):
    """Values ``[*batch, dim, clients]`` of some kind."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    @property
    def columns(self) -> Columns:
        """All values at once."""

    def total(self, work: Work, vector: Any = None) -> Tensor:
        """Return the sum of ``work(tile)`` or ``work(tile, piece of the vector)`` over all tiles."""

    def by_coordinate(self, work: Work, vector: Any = None) -> Any:
        """Return ``work(tile)`` of all tiles: a number for every coordinate."""

    def by_coordinate_and_total(self, work: Work) -> tuple[Any, Tensor | None]:
        """Return both for work that gives a number for every coordinate, and what is added up."""

    def changed(self, change: Work, num_clients: int, vector: Any = None) -> "Values":
        """Return what a change makes of the values, tile by tile."""

    def at(self, index: Tensor) -> Columns:
        """Return the values of some coordinates, ``index [runs, k]``."""

    def within(self, run: int, window: slice) -> "Values":
        """Return the values of neighbouring coordinates of one run."""

    def of_clients(self, run: int, index: Tensor) -> "Values":
        """Return the values of some clients of one run."""


class InMemory:
    """Values in memory, or a way to make them that is taken when they are first needed."""

    def __init__(
        self,
        columns: Columns | Callable[[], Columns],
        shape: torch.Size | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device = CPU,
    ) -> None:
        """Take the values; or a way to make them, and the shape and kind that they will have."""
        if isinstance(columns, Tensor):
            self.columns = columns
            self.shape, self.dtype, self.device = columns.shape, columns.dtype, columns.device
        else:
            self._make = columns
            self.shape, self.dtype, self.device = torch.Size(shape or ()), dtype, device

    @lazy
    def columns(self) -> Columns:
        """The values."""
        return self._make()

    def tiles(self) -> list[slice]:
        """Cut the coordinates into pieces that fit the cache."""
        dim, num_values = self.shape[-2], self.shape.numel()
        most = TILE_VALUES.get(self.device.type, 1 << 28)
        if num_values <= most:
            return [slice(0, dim)]
        width = max(16, most * dim // num_values)
        return [slice(start, min(dim, start + width)) for start in range(0, dim, width)]

    def _over_tiles(self, work: Work, vector: Any) -> list[Any]:
        columns = self.columns

        def of_tile(piece: slice) -> Any:
            tile = columns[..., piece, :]
            return work(tile) if vector is None else work(tile, vector[..., piece])

        return mapped(of_tile, self.tiles(), self.device)

    def total(self, work: Work, vector: Any = None) -> Tensor:
        """Return the sum over all tiles, on all cores."""
        parts = self._over_tiles(work, vector)
        if len(parts) == 1:
            first: Tensor = parts[0]
            return first
        return torch.stack(parts).sum(dim=0, dtype=torch.float64)

    def by_coordinate(self, work: Work, vector: Any = None) -> PerCoordinate:
        """Return what the tiles give, side by side."""
        parts = self._over_tiles(work, vector)
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)

    def by_coordinate_and_total(self, work: Work) -> tuple[PerCoordinate, Tensor | None]:
        """Return what the tiles give, side by side, and the sum; None where it is not known."""
        parts = self._over_tiles(work, None)
        if len(parts) == 1:
            first: tuple[PerCoordinate, Tensor | None] = parts[0]
            return first
        vectors, counts = zip(*parts, strict=True)
        total = None if counts[0] is None else torch.stack(counts).sum(dim=0)
        return torch.cat(vectors, dim=-1), total

    def changed(self, change: Work, num_clients: int, vector: Any = None) -> "InMemory":
        """Return the changed values, made when they are needed."""

        def make() -> Columns:
            parts = self._over_tiles(change, vector)
            return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-2)

        shape = torch.Size([*self.shape[:-1], num_clients])
        return InMemory(make, shape, work_dtype(self.dtype), self.device)

    def at(self, index: Tensor) -> Columns:
        """Return the values of some coordinates."""
        batch = self.shape[:-2]
        index = index.view(len(index), *[1] * (len(batch) - 1), -1, 1)
        return self.columns.gather(-2, index.expand(*batch, -1, self.shape[-1]))

    def within(self, run: int, window: slice) -> "InMemory":
        """Return the values of neighbouring coordinates of one run."""
        return InMemory(self.columns[run : run + 1, window])

    def of_clients(self, run: int, index: Tensor) -> "InMemory":
        """Return the values of some clients of one run."""
        # By rows, so that the copy has them as they were.
        return InMemory(self.columns[run : run + 1].mT.index_select(-2, index).mT)


class Stream:
    """Values ``[1, dim, clients]`` that are read when they are needed, as often as needed.

    A process may read a part of the coordinates; `everywhere` adds up what all of them found.
    """

    device = CPU

    def __init__(
        self,
        chunks: Chunks,
        shape: torch.Size,
        dtype: torch.dtype,
        *,
        everywhere: Callable[[Tensor], Tensor] = lambda total: total,
        max_bytes: int = 1 << 30,
        change: Work = lambda tile, _: tile,
    ) -> None:
        """Take a way to start a pass, and the shape and dtype of all values.

        `max_bytes` is what values of groups may take. `change` makes these values from a tile of
        those that are read and its slice.
        """
        self.chunks, self.shape, self.dtype = chunks, shape, dtype
        self.everywhere, self.max_bytes, self.change = everywhere, max_bytes, change

    @property
    def columns(self) -> Columns:
        """Refuse to have all values at once."""
        raise NeedsWholeRows("it asks for all values at once")

    def tiles(self, rows: Tensor, first: int) -> list[tuple[slice, Columns]]:
        """Cut what was read, from the coordinate `first` on, into tiles ``[1, width, clients]``."""
        num_clients, width = rows.shape
        num_tiles = max(1, -(-width * num_clients // SUMMED_VALUES))
        cuts = [width * k // num_tiles for k in range(num_tiles + 1)]
        return [
            (slice(first + start, first + stop), rows[:, start:stop].mT.unsqueeze(0))
            for start, stop in pairwise(cuts)
        ]

    def total(self, work: Work, vector: Any = None) -> Tensor:
        """Return the sum over all tiles of all processes, in one pass."""

        def of_tile(numbered: tuple[slice, Columns]) -> Tensor:
            piece, read = numbered
            tile = self.change(read, piece)
            found: Tensor = work(tile) if vector is None else work(tile, cut(vector, piece, read))
            return found.double()

        total: Tensor | None = None
        for piece, rows in self.chunks():
            parts = mapped(of_tile, self.tiles(rows, piece.start))
            found = torch.stack(parts).sum(dim=0)
            total = found if total is None else total.add_(found)
        assert total is not None
        return self.everywhere(total)

    def by_coordinate(self, work: Work, vector: Any = None) -> "StreamedVector":
        """Return a vector that is worked out piece by piece."""
        return StreamedVector(self, work, vector)

    def by_coordinate_and_total(self, work: Work) -> tuple["StreamedVector", Tensor | None]:
        """Return a vector that is worked out piece by piece, and the sum from a pass of its own."""
        vector = self.by_coordinate(lambda tile: work(tile)[0])
        unknown = torch.full((1, self.shape[-1]), torch.nan, dtype=torch.float64)

        def count(tile: Columns) -> Tensor:
            counts: Tensor | None = work(tile)[1]
            return unknown if counts is None else counts

        total = self.total(count)
        return vector, None if bool(total.isnan().any()) else total

    def changed(self, change: Work, num_clients: int, vector: Any = None) -> "Stream":
        """Return the stream of the changed values."""

        def both(read: Columns, piece: slice) -> Columns:
            tile = self.change(read, piece)
            found: Columns = change(tile) if vector is None else change(tile, vector[..., piece])
            return found

        shape = torch.Size([*self.shape[:-1], num_clients])
        return self._with(shape=shape, change=both)

    def at(self, index: Tensor) -> Columns:
        """Read some coordinates in one pass."""
        order = index[0].argsort()
        ranked = index[0][order]
        # Zeros, to which what other processes read is added.
        values = torch.zeros(1, len(order), self.shape[-1], dtype=work_dtype(self.dtype))
        for piece, rows in self.chunks():
            first, last = torch.searchsorted(ranked, torch.tensor([piece.start, piece.stop]))
            some = rows[:, ranked[first:last] - piece.start].mT.unsqueeze(0)
            values[:, order[first:last]] = self.change(some, piece)
        return self.everywhere(values)

    def within(self, run: int, window: slice) -> "Stream":
        """Read neighbouring coordinates only."""
        del run

        def chunks() -> Iterator[tuple[slice, Tensor]]:
            for piece, rows in self.chunks():
                start, stop = max(window.start, piece.start), min(window.stop, piece.stop)
                if start < stop:
                    yield slice(start, stop), rows[:, start - piece.start : stop - piece.start]

        return self._with(chunks=chunks)

    def of_clients(self, run: int, index: Tensor) -> "Stream":
        """Return the stream of some clients."""
        del run
        return self.changed(lambda tile: tile.index_select(-1, index), len(index))

    def _with(self, **other: Any) -> "Stream":
        given = {
            "chunks": self.chunks,
            "shape": self.shape,
            "dtype": self.dtype,
            "everywhere": self.everywhere,
            "max_bytes": self.max_bytes,
            "change": self.change,
        }
        return Stream(**{**given, **other})


class StreamedVector:
    """A vector with a number for every coordinate of a stream, worked out piece by piece."""

    def __init__(self, stream: Stream, work: Work, vector: Any = None) -> None:
        """Take the stream, and what makes the numbers of a tile of it."""
        self.stream, self.work, self.vector = stream, work, vector

    def of_tile(self, read: Columns, piece: slice) -> PerCoordinate:
        """Return the numbers for a tile of what is read."""
        tile = self.stream.change(read, piece)
        found: PerCoordinate = (
            self.work(tile) if self.vector is None else self.work(tile, self.vector[..., piece])
        )
        return found

    def changed(self, change: Callable[[PerCoordinate], PerCoordinate]) -> "StreamedVector":
        """Return what a change makes of the vector."""
        changed = StreamedVector(self.stream, self.work, self.vector)
        changed.of_tile = lambda read, piece: change(self.of_tile(read, piece))  # type: ignore[method-assign]
        return changed


def cut(vector: Any, piece: slice, read: Columns) -> PerCoordinate:
    """Return some coordinates of a vector in memory or of a streamed one."""
    if isinstance(vector, StreamedVector):
        return vector.of_tile(read, piece)
    found: PerCoordinate = vector[..., piece]
    return found
