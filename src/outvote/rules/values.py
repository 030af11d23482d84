"""Where the values of a matrix come from: memory, or a stream of files, or of other ranks' shares.

Both work through the coordinates piece by piece. `total` adds up what is found in the pieces,
`by_coordinate` puts it side by side. Cores, files and ranks are known here and nowhere above.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import Tensor

from outvote.axes import Columns, PerCoordinate, Rows
from outvote.flat import LARGEST, finite_rows
from outvote.ops.process import CPU, lazy, mapped, work_dtype
from outvote.ops.rows import row_norms

# A tile of so many values stays in the cache of a core; a GPU takes larger ones.
TILE_VALUES = {"cpu": 1 << 20, "cuda": 1 << 28}
FEW_VALUES = 1 << 18
# Sums of more values of a stream are rounded too often in float32; tiles are added in float64.
SUMMED_VALUES = 1 << 18
# In float32, squares of twice the first are finite; those of norms below the second underflow.
SAFE_NORM, SMALLEST_NORM = 1e18, 1e-10
# Coordinates that rows of equal norm are compared in before all are.
NUM_COMPARED = 16
# Coordinates that a central client is found by.
NUM_SAMPLED = 512

Work = Callable[..., Any]
"""Called with the values of some coordinates, and with those of a vector where one is given."""
OnTile = Callable[[Columns, Any], Any]
"""Called with what a stream reads of some coordinates, and their slice or index."""
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

    @property
    def sample(self) -> Columns:
        """The values of enough coordinates to find a central client by."""

    def total(self, work: Work, vector: Any = None) -> Tensor:
        """Return the sum over all tiles of ``work(tile)`` or ``work(tile, piece of vector)``."""

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

    @property
    def sample(self) -> Columns:
        """The values of some coordinates."""
        return self.columns[..., _sampled(self.shape[-2]), :]

    def tiles(self) -> list[slice]:
        """Cut the coordinates into pieces that fit the cache."""
        dim, num_values = self.shape[-2], self.shape.numel()
        most = TILE_VALUES.get(self.device.type, 1 << 28)
        if num_values <= most or len(self.shape) > 3:  # Groups come some at a time.
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
        if self.shape.numel() <= FEW_VALUES:
            found: Tensor = work(self.columns) if vector is None else work(self.columns, vector)
            return found
        parts = self._over_tiles(work, vector)
        if len(parts) == 1:
            first: Tensor = parts[0]
            return first
        return torch.stack(parts).sum(dim=0, dtype=torch.float64)

    def by_coordinate(self, work: Work, vector: Any = None) -> PerCoordinate:
        """Return what the tiles give, side by side."""
        if vector is None and self.shape.numel() <= FEW_VALUES:
            found: PerCoordinate = work(self.columns)
            return found
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
        change: OnTile = lambda read, _: read,
    ) -> None:
        """Take a way to start a pass, and the shape and dtype of all values.

        `max_bytes` is what values of groups may take. `change` makes these values of what is read.
        """
        self.chunks, self.shape, self.dtype = chunks, shape, dtype
        self.everywhere, self.max_bytes, self.change = everywhere, max_bytes, change

    @property
    def columns(self) -> Columns:
        """Refuse to have all values at once."""
        raise NeedsWholeRows("it asks for all values at once")

    @property
    def sample(self) -> Columns:
        """Read some coordinates."""
        dim = self.shape[-2]
        return self.at(torch.tensor([range(dim)[_sampled(dim)]]))

    def over_tiles(self, work: OnTile, num_values: int = SUMMED_VALUES) -> Iterator[list[Any]]:
        """Read all values once; yield what the work gives for the tiles of each chunk."""
        for piece, rows in self.chunks():
            yield over_tiles(work, piece, rows, num_values)

    def total(self, work: Work, vector: Any = None) -> Tensor:
        """Return the sum over all tiles of all processes, in one pass."""
        on_tile = self._on_tile(work, vector)
        total: Tensor | None = None
        for parts in self.over_tiles(lambda read, index: on_tile(read, index).double()):
            found = torch.stack(parts).sum(dim=0)
            total = found if total is None else total.add_(found)
        assert total is not None
        return self.everywhere(total)

    def by_coordinate(self, work: Work, vector: Any = None) -> "StreamedVector":
        """Return a vector that is worked out tile by tile."""
        return StreamedVector(self._on_tile(work, vector))

    def by_coordinate_and_total(self, work: Work) -> tuple["StreamedVector", Tensor | None]:
        """Return a vector that is worked out tile by tile, and the sum from a pass of its own."""
        vector = self.by_coordinate(lambda tile: work(tile)[0])
        unknown = torch.full((1, self.shape[-1]), torch.nan, dtype=torch.float64)

        def count(tile: Columns) -> Tensor:
            counts: Tensor | None = work(tile)[1]
            return unknown if counts is None else counts

        total = self.total(count)
        return vector, None if bool(total.isnan().any()) else total

    def changed(self, change: Work, num_clients: int, vector: Any = None) -> "Stream":
        """Return the stream of the changed values."""
        shape = torch.Size([*self.shape[:-1], num_clients])
        return self._with(shape=shape, change=self._on_tile(change, vector))

    def at(self, index: Tensor) -> Columns:
        """Read some coordinates in one pass."""
        order = index[0].argsort()
        ranked = index[0][order]
        # Zeros, to which what other processes read is added.
        values = torch.zeros(1, len(order), self.shape[-1], dtype=work_dtype(self.dtype))
        for piece, rows in self.chunks():
            first, last = torch.searchsorted(ranked, torch.tensor([piece.start, piece.stop]))
            some = ranked[first:last]
            read = rows[:, some - piece.start].mT.unsqueeze(0)
            values[:, order[first:last]] = self.change(read, some).to(values.dtype)
        return self.everywhere(values)

    def within(self, run: int, window: slice) -> "Stream":
        """Read neighbouring coordinates only."""
        del run

        def chunks() -> Iterator[tuple[slice, Tensor]]:
            for piece, rows in self.chunks():
                start = min(max(window.start, piece.start), piece.stop)
                stop = max(start, min(window.stop, piece.stop))
                yield slice(start, stop), rows[:, start - piece.start : stop - piece.start]

        return self._with(chunks=chunks)

    def of_clients(self, run: int, index: Tensor) -> "Stream":
        """Return the stream of some clients."""
        del run
        return self.changed(lambda tile: tile.mT.index_select(-2, index).mT, len(index))

    def _on_tile(self, work: Work, vector: Any) -> OnTile:
        """Return work on these values as work on what is read."""

        def on_tile(read: Columns, index: Any) -> Any:
            tile = self.change(read, index)
            return work(tile) if vector is None else work(tile, cut(vector, read, index))

        return on_tile

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


def _sampled(dim: int) -> slice:
    """Return the coordinates that a central client is found by."""
    step = max(1, dim // NUM_SAMPLED)
    return slice(0, step * NUM_SAMPLED, step)


def over_tiles(work: OnTile, piece: slice, rows: Tensor, num_values: int) -> list[Any]:
    """Cut what was read, ``rows [clients, coordinates]``, into tiles, and work on all cores."""
    num_clients, width = rows.shape
    num_tiles = max(1, -(-width * num_clients // num_values))
    cuts = [width * k // num_tiles for k in range(num_tiles + 1)]

    def of_tile(ends: tuple[int, int]) -> Any:
        read = rows[:, slice(*ends)].mT.unsqueeze(0)
        return work(read, slice(piece.start + ends[0], piece.start + ends[1]))

    return mapped(of_tile, pairwise(cuts))


@dataclass(frozen=True, slots=True)
class StreamedVector:
    """A vector with a number for every coordinate of a stream, worked out tile by tile."""

    of_tile: OnTile
    dtype = None  # Known when it is worked out.

    def changed(self, change: Callable[[PerCoordinate], PerCoordinate]) -> "StreamedVector":
        """Return what a change makes of the vector."""
        return StreamedVector(lambda read, index: change(self.of_tile(read, index)))

    def __getitem__(self, run: int) -> "StreamedVector":
        """Return the vector of a run, of which there is one."""
        return self.changed(lambda piece: piece[run])


def cut(vector: Any, read: Columns, index: Any) -> PerCoordinate:
    """Return some coordinates of a vector in memory or of a streamed one."""
    found: PerCoordinate
    if isinstance(vector, StreamedVector):
        found = vector.of_tile(read, index)
    else:
        found = vector[..., index]
    return found


@dataclass(frozen=True, slots=True)
class RowFacts:
    """What every rule needs to know about the rows of all clients, by run."""

    norms: list[list[float]]
    is_finite: list[list[bool]]
    originals: list[list[int]]
    """The first row of the run that is equal to each."""

    def of(self, runs: Sequence[int]) -> "RowFacts":
        """Return those of some runs."""
        return RowFacts(
            [self.norms[k] for k in runs],
            [self.is_finite[k] for k in runs],
            [self.originals[k] for k in runs],
        )


def row_facts(gradients: "Rows | Stream") -> RowFacts:
    """Look at ``gradients [runs, clients, dim]``: once for all rules, as a GPU is waited for."""
    if isinstance(gradients, Stream):
        return _of_stream(gradients)
    norms = row_norms(gradients).tolist()
    largest, everyone = min(LARGEST, torch.finfo(gradients.dtype).max), gradients.shape[1]
    is_finite, originals = [[True] * everyone] * len(norms), [list(range(everyone))] * len(norms)
    for run, own in enumerate(norms):
        # Written so that a norm that is not a number is looked at, too.
        if not (sum(own) <= largest and min(own, default=1.0) >= SMALLEST_NORM):
            is_finite[run] = finite_rows(gradients[run], own)
            _redo_norms(gradients[run], own, is_finite[run])
        if len(set(own)) < everyone:
            originals[run] = find_originals(gradients[run], own)
    return RowFacts(norms, is_finite, originals)


def _redo_norms(rows: Tensor, norms: list[float], is_finite: list[bool]) -> None:
    """Work out again, in float64, what float32 may have lost: very large and very small norms."""
    lost = [
        row
        for row, norm in enumerate(norms)
        if is_finite[row] and (norm == torch.inf or norm < SMALLEST_NORM)
    ]
    if lost:
        for row, norm in zip(lost, row_norms(rows[lost].double()).tolist(), strict=True):
            norms[row] = norm


def find_originals(rows: Tensor, norms: list[float]) -> list[int]:
    """Return, for each of ``rows [clients, dim]``, the first equal one.

    Colluding clients send copies. To find them once is cheaper than group by group.
    """
    # Rows of equal norm need not be equal: a gradient and its negative, for one.
    sample = rows[:, :: max(1, rows.shape[1] // NUM_COMPARED)].tolist()
    alike: dict[tuple[float, ...], list[int]] = {}
    for row, norm in enumerate(norms):
        alike.setdefault((norm, *sample[row]), []).append(row)
    originals = list(range(len(norms)))
    while pairs := [(row, same[0]) for same in alike.values() for row in same[1:]]:
        equal = torch.stack([(rows[row] == rows[first]).all() for row, first in pairs]).tolist()
        unequal = []
        for (row, first), is_equal in zip(pairs, equal, strict=True):
            if is_equal:
                originals[row] = first
            else:
                unequal.append(row)
        alike = {key: [row for row in same if row in unequal] for key, same in alike.items()}
    return originals


def central_client(norms: list[float]) -> tuple[int, bool]:
    """Return a client of median norm, and whether squares overflow in float32, or vanish.

    No difference from the client cancels because it is long.
    """
    centre = sorted(range(len(norms)), key=norms.__getitem__)[(len(norms) - 1) // 2]
    return centre, max(norms) >= SAFE_NORM or norms[centre] < SMALLEST_NORM


def _of_stream(stream: Stream) -> RowFacts:
    """Look at the rows of a stream in one pass; in one more if some may be copies."""
    norms = stream.total(squared_norms)[0].sqrt().tolist()
    is_finite = [norm < torch.inf for norm in norms]
    counts = Counter(norms)
    alike = [k for k, norm in enumerate(norms) if is_finite[k] and counts[norm] > 1]
    originals = list(range(len(norms)))
    if alike:
        index = torch.tensor(alike)

        def differ(tile: Columns) -> Tensor:
            rows = tile[0].mT.index_select(0, index)
            label = rows.unique(dim=0, return_inverse=True)[1] if rows.numel() else index * 0
            return label.unsqueeze(-1) != label

        for row, others in zip(alike, stream.total(differ).tolist(), strict=True):
            originals[row] = alike[others.index(0)]
    return RowFacts([norms], [is_finite], [originals])


def squared_norms(tile: Columns) -> Tensor:
    """Return the squared norms; infinity where a number is not finite, or too large."""
    norms = row_norms(tile.mT)
    is_short = norms < SMALLEST_NORM
    if bool(is_short.any()):
        norms[is_short] = row_norms(tile.mT[is_short].double())
    is_fine = norms <= LARGEST
    if not bool(is_fine.all()):
        largest = min(LARGEST, torch.finfo(tile.dtype).max)
        is_fine = (tile.abs() <= largest).all(dim=-2)
        is_long = is_fine & norms.isinf()
        norms[is_long] = row_norms(tile.mT[is_long].double())
    return norms.square().masked_fill(~is_fine, torch.inf)
