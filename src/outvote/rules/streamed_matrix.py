"""Gradients that are too large for memory: read some coordinates at a time, as often as needed.

A `ColumnStream` stands for the values, a `StreamedMatrix` for the matrix: what is between the
clients (norms, distances, inner products) comes from passes over the stream. A `TileMatrix` has the
values of some coordinates, and the geometry of all. `StreamedGroups` are the groups of a split:
inner products and sums of squares are added up group by group while coordinates come in the order
of the files; a rule that needs the values of groups gets as many at a time as fit the memory.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from threading import Lock, local
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from outvote.axes import Columns, Mixture, Pairs, PerClient, PerCoordinate
from outvote.keyed_order import draw_order
from outvote.precision import exact_products
from outvote.rules import distances
from outvote.rules.client_matrix import ClientMatrix
from outvote.rules.groups import Groups
from outvote.rules.split import (
    BY_LAYER,
    IndexBlock,
    Split,
    balanced_sizes,
    ceil_sizes,
    checked_sizes,
    groups_of_layers,
    note_of_layers,
)
from outvote.threads import CPU, mapped

if TYPE_CHECKING:
    from outvote.rules.rule import Aggregation, RoundInfo

Result = TypeVar("Result")
Chunks = Callable[[], Iterator[tuple[slice, Tensor]]]
"""Starts a pass: yields slices of the coordinates and their values ``[clients, coordinates]``, in
order; the values last until the next are asked for."""
Reduce = Callable[[Columns], PerCoordinate]

TRANSPOSED_AT_ONCE = 512
# A tile of so many values is worked on by one core.
TILE_VALUES = 1 << 22
# Sums of more are rounded too often in float32; those of tiles are added in float64.
SUMMED_VALUES = 1 << 18
# What is read of groups is copied, sorted and subtracted from: so many times its size.
NUM_COPIES = 4


class NeedsWholeRows(TypeError):  # noqa: N818  (named like TooManyByzantine)
    """A rule asks for whole gradients, which a stream does not have."""


class ColumnStream:
    """Values ``[1, dim, clients]`` that are read when they are needed, a chunk at a time."""

    is_cuda = False
    device = CPU

    def __init__(self, chunks: Chunks, shape: torch.Size, dtype: torch.dtype) -> None:
        """Take a way to start a pass, and the shape and dtype of all values."""
        self.chunks, self.shape, self.dtype = chunks, shape, dtype

    @property
    def mT(self) -> "ColumnStream":  # noqa: N802  (as torch calls it)
        """The same: only asked which device it is on."""
        return self

    def __getattr__(self, name: str) -> Any:
        """Refuse what needs all values at once."""
        raise NeedsWholeRows(f"it asks for {name!r} of all values at once")

    def dim(self) -> int:
        """Return the number of axes."""
        return len(self.shape)

    def numel(self) -> int:
        """Return how many values there are."""
        return self.shape.numel()

    def reshape(self, *shape: int) -> "ColumnStream":
        """Return the same, as one matrix."""
        if torch.Size(shape[1:]) != self.shape[-2:]:
            raise NeedsWholeRows(f"it asks for the shape {shape} of all values at once")
        return self

    def __getitem__(self, index: tuple[int, ...]) -> "ColumnStream":
        """Return the values of the one run, ``[dim, clients]``."""
        if index != (0,):
            raise NeedsWholeRows(f"it asks for {index} of all values at once")
        return ColumnStream(self.chunks, self.shape[-2:], self.dtype)

    def tiles(self) -> Iterator[tuple[slice, Columns]]:
        """Read all values once."""
        for piece, rows in self.chunks():
            yield piece, rows.mT.view(*self.shape[:-2], *rows.mT.shape)

    def over_tiles(self, work: Callable[[tuple[slice, Columns]], Result]) -> list[Result]:
        """Work on pieces of the coordinates, on all cores."""
        results: list[Result] = []
        for piece, rows in self.chunks():
            cuts = tile_cuts(rows, SUMMED_VALUES)
            results += mapped(
                lambda cut, first=piece.start, rows=rows: work(  # type: ignore[misc]
                    (
                        slice(first + cut[0], first + cut[1]),
                        rows[:, cut[0] : cut[1]].mT.view(*self.shape[:-2], -1, len(rows)),
                    )
                ),
                cuts,
            )
        return results

    def changed(self, change: Callable[[Tensor], Tensor], num_clients: int) -> "ColumnStream":
        """Return the stream of ``change(values [clients, coordinates])``."""

        def chunks() -> Iterator[tuple[slice, Tensor]]:
            for piece, rows in self.chunks():
                yield piece, change(rows)

        return ColumnStream(chunks, torch.Size([*self.shape[:-1], num_clients]), self.dtype)


def tile_cuts(rows: Tensor, num_values: int = TILE_VALUES) -> list[tuple[int, int]]:
    """Cut the coordinates of ``rows [clients, coordinates]`` into tiles, one after another."""
    num_clients, width = rows.shape
    num_tiles = max(1, -(-width * num_clients // num_values))
    cuts = [width * k // num_tiles for k in range(num_tiles + 1)]
    return list(pairwise(cuts))


class StreamedMatrix(ClientMatrix):
    """The clients of a stream; there is one run."""

    columns: Any

    def __init__(
        self,
        stream: ColumnStream,
        *,
        centre: Tensor | None = None,
        products: Callable[[], Pairs] | None = None,
        originals: Tensor | None = None,
        max_bytes: int = 1 << 30,
    ) -> None:
        """Take the stream; see `ClientMatrix`. `max_bytes` is what values of groups may take."""
        super().__init__(
            lambda: stream,  # type: ignore[arg-type, return-value]
            stream.shape,
            like=torch.empty(0, dtype=stream.dtype),
            centre=torch.zeros(1, dtype=torch.long) if centre is None else centre,
            products=products,
            originals=originals,
        )
        self.stream, self.max_bytes = stream, max_bytes
        self._made: dict[Any, Any] = {}

    def set_products(self, products: Callable[[], Pairs]) -> None:
        """Set where the inner products come from: added up in a pass that is made anyway."""
        self._products = products

    def mixed(self, mixture: Mixture) -> "StreamedMatrix":
        """Replace the clients by weighted averages of them."""
        mixture = mixture.double().expand(*self.batch, *mixture.shape[-2:])
        return self._once(("mixed", mixture.numpy().tobytes()), lambda: self._mixed(mixture))

    def _mixed(self, mixture: Mixture) -> "StreamedMatrix":
        originals = distances.equal_rows(mixture)

        def change(rows: Tensor) -> Tensor:
            columns = ClientMatrix(rows.mT.unsqueeze(0), originals=self.originals)
            return columns._mixed_columns(mixture, originals)[0].mT

        is_narrow = self.dim <= self.num_clients
        return StreamedMatrix(
            self.stream.changed(change, mixture.shape[-2]),
            products=None if is_narrow else lambda: mixture @ self.gram @ mixture.mT,
            originals=originals,
            max_bytes=self.max_bytes,
        )

    def with_point(self, vector: PerCoordinate | None = None) -> "StreamedMatrix":
        """Add the origin behind the clients."""
        if vector is not None:
            raise NeedsWholeRows("it compares the clients with a vector of its own")
        return self._once("origin", self._with_origin)

    def _with_origin(self) -> "StreamedMatrix":
        stream = self.stream.changed(_with_zeros, self.num_clients + 1)
        zero = torch.zeros((), dtype=self.work_dtype).expand(self.shape[:-1])

        def products() -> Pairs:
            return distances.products_with(self.columns, self.centre, zero)

        return StreamedMatrix(
            stream, centre=self.centre, products=products, max_bytes=self.max_bytes
        )

    def scaled(self, factors: PerClient) -> "StreamedMatrix":
        """Multiply every client by a number of its own."""
        by = factors[0].to(self.work_dtype).unsqueeze(-1)
        return self._once(
            ("scaled", factors.numpy().tobytes()),
            lambda: StreamedMatrix(
                self.stream.changed(lambda rows: rows * by, self.num_clients),
                centre=self.centre,
                originals=self.originals,
                max_bytes=self.max_bytes,
            ),
        )

    def norms_of(self, run: int) -> Tensor:
        """Return the norms of the one run."""
        return self.norms[run]

    def sign_counts(self, run: int, window: slice) -> Tensor:
        """Count the positive, zero and negative values of the clients, ``[clients, 3]``."""
        del run
        return self._once(("signs", window.start, window.stop), lambda: self._sign_counts(window))

    def _sign_counts(self, window: slice) -> Tensor:
        total = torch.zeros(self.num_clients, 3, dtype=torch.float64)
        for piece, rows in self.stream.chunks():
            start, stop = max(window.start, piece.start), min(window.stop, piece.stop)
            if start < stop:
                total += distances.sign_counts(rows[:, start - piece.start : stop - piece.start].mT)
        return total

    def at_coordinates(self, index: Tensor) -> ClientMatrix:
        """Read some coordinates, ``index [1, k]``."""
        return self._once(("at", index.numpy().tobytes()), lambda: self._at(index))

    def _at(self, index: Tensor) -> ClientMatrix:
        order = index[0].argsort()
        ranked = index[0][order]
        values = torch.empty(self.num_clients, len(order), dtype=self.work_dtype)
        for piece, rows in self.stream.chunks():
            first, last = torch.searchsorted(ranked, torch.tensor([piece.start, piece.stop]))
            values[:, order[first:last]] = rows[:, ranked[first:last] - piece.start]
        return ClientMatrix(values.mT.unsqueeze(0).contiguous())

    def split(self, how: str, num_groups: int, info: "RoundInfo") -> "StreamedGroups":
        """Split the coordinates into groups."""
        key = ("split", how, num_groups, info.stream)
        return self._once(
            key, lambda: StreamedGroups(self, stream_split(self.dim, how, num_groups, info))
        ).asked(num_groups)

    def vector(self, aggregation: "Aggregation") -> PerCoordinate:
        """Refuse: a vector of all coordinates is made tile by tile."""
        raise NeedsWholeRows("it works on the update as a whole")

    def tile(self, rows: Tensor) -> "TileMatrix":
        """Return the values ``[clients, coordinates]`` of some coordinates, with this geometry."""
        return TileMatrix(rows.mT.unsqueeze(0), self)

    def _once(self, key: Any, make: Callable[[], Result]) -> Result:
        """Remember what was made: rules are called for every tile."""
        if key not in self._made:
            self._made[key] = make()
        found: Result = self._made[key]
        return found


def _with_zeros(rows: Tensor) -> Tensor:
    return torch.cat([rows, rows.new_zeros(1, rows.shape[1])])


class TileMatrix(ClientMatrix):
    """The values of some coordinates of a stream, and the geometry of all of them."""

    def __init__(self, columns: Columns, whole: ClientMatrix) -> None:
        """Take the values ``[1, coordinates, clients]`` and the matrix that they are part of."""
        super().__init__(columns, originals=whole.originals)
        self.whole = whole
        self.sums_are_finite = whole.sums_are_finite

    @property
    def dim(self) -> int:
        """How many coordinates there are in all."""
        return self.whole.dim

    # Lazy attributes of the base class: looked up in the whole matrix instead.
    centre: Any = property(lambda self: self.whole.centre)
    products: Any = property(lambda self: self.whole.products)
    gram: Any = property(lambda self: self.whole.gram)
    squared_distances: Any = property(lambda self: self.whole.squared_distances)
    norms: Any = property(lambda self: self.whole.norms)

    def sums_of_smallest_distances(self, num_smallest: int) -> PerClient:
        """Return those of all coordinates."""
        return self.whole.sums_of_smallest_distances(num_smallest)

    def squared_distances_to(self, aggregation: "Aggregation") -> PerClient:
        """Return how far every client is from an average, over all coordinates."""
        if aggregation.vector is not None:
            raise NeedsWholeRows("it measures distances to the update while that is worked out")
        return self.whole.squared_distances_to(aggregation)

    def norms_of(self, run: int) -> Tensor:
        """Return the norms of the one run, over all coordinates."""
        return self.whole.norms_of(run)

    def sign_counts(self, run: int, window: slice) -> Tensor:
        """Count signs among all coordinates."""
        return self.whole.sign_counts(run, window)

    def mixed(self, mixture: Mixture) -> "TileMatrix":
        """Replace the clients by weighted averages of them."""
        mixture = mixture.double().expand(*self.batch, *mixture.shape[-2:])
        whole = self.whole.mixed(mixture)
        return TileMatrix(self._mixed_columns(mixture, whole.originals), whole)

    def with_point(self, vector: PerCoordinate | None = None) -> "TileMatrix":
        """Add the origin behind the clients."""
        whole = self.whole.with_point(vector)
        return TileMatrix(_with_zeros(self.columns[0].mT).mT.unsqueeze(0), whole)

    def scaled(self, factors: PerClient) -> "TileMatrix":
        """Multiply every client by a number of its own."""
        by = factors.to(self.work_dtype).unsqueeze(-2)
        return TileMatrix(self.columns.to(self.work_dtype) * by, self.whole.scaled(factors))

    def at_coordinates(self, index: Tensor) -> ClientMatrix:
        """Read some of all coordinates."""
        return self.whole.at_coordinates(index)

    def split(self, how: str, num_groups: int, info: "RoundInfo") -> Groups:
        """Split all coordinates."""
        return self.whole.split(how, num_groups, info)


class StreamSplit:
    """A partition of the coordinates, asked for some coordinates at a time."""

    def __init__(self, positions: Callable[[int, int], np.ndarray], starts: np.ndarray) -> None:
        """Take where coordinates are in the order that is cut, and where groups start in it.

        ``positions(start, stop)`` are those of the coordinates from `start` to `stop`; `starts` has
        the end too, ``[groups + 1]`` int64.
        """
        self.positions, self.starts = positions, starts
        self.note = ""
        self.widths = np.diff(starts)
        num_large = int(np.count_nonzero(self.widths == self.widths[0]))
        small = int(self.widths[-1])
        even = _even_starts(num_large, int(self.widths[0]), self.num_groups, small)
        self._even = (num_large, small) if np.array_equal(even, starts) else None

    @property
    def num_groups(self) -> int:
        """How many groups there are."""
        return len(self.starts) - 1

    def groups(self, start: int, stop: int) -> np.ndarray:
        """Return the group of each coordinate from `start` to `stop`."""
        positions = self.positions(start, stop)
        if self._even is None:
            after: np.ndarray = np.searchsorted(self.starts[1:], positions, side="right")
            return after
        # Two widths, the groups of one before those of the other: divisions instead of a search.
        num_large, small = self._even
        found = positions // positions.dtype.type(self.widths[0])
        if num_large < self.num_groups:
            end = int(self.starts[num_large])
            is_after = positions >= end
            found[is_after] = num_large + (positions[is_after] - end) // small
        groups: np.ndarray = found
        return groups


def _even_starts(num_large: int, large: int, num_groups: int, small: int) -> np.ndarray:
    widths = np.full(num_groups, small, np.int64)
    widths[:num_large] = large
    return np.concatenate([[0], widths.cumsum()])


def stream_split(dim: int, how: str, num_groups: int, info: "RoundInfo") -> StreamSplit:
    """Return the split that `draw_split` draws in memory, for a stream."""
    if info.split is not None:
        return _explicit(info.split, dim)
    num_groups = min(num_groups, dim)
    if how in BY_LAYER:
        sizes = checked_sizes(how, info.layer_sizes, dim)
        if how == "by-layer":
            return StreamSplit(np.arange, np.concatenate([[0], np.cumsum(sizes)]))
        return _by_layer_random(sizes, num_groups, info)
    num_first, first, num_second, second = (ceil_sizes if how == "ceil" else balanced_sizes)(
        dim, num_groups
    )
    starts = _even_starts(num_first, first, num_first + num_second, second)
    if how == "contiguous":
        return StreamSplit(np.arange, starts)
    (seed,) = info.stream.fold_in("gas-split").derived()
    return StreamSplit(draw_order(dim, seed).positions_between, starts)


def _by_layer_random(sizes: tuple[int, ...], num_groups: int, info: "RoundInfo") -> StreamSplit:
    stream = info.stream.fold_in("gas-split")
    layers = np.concatenate([[0], np.cumsum(sizes)])
    orders, starts = [], [np.zeros(1, np.int64)]
    for number, own in enumerate(groups_of_layers(sizes, num_groups)):
        (seed,) = stream.fold_in(f"layer-{number}").derived()
        orders.append(draw_order(sizes[number], seed))
        num_large, large, num_small, small = balanced_sizes(sizes[number], own)
        ends = _even_starts(num_large, large, num_large + num_small, small)[1:]
        starts.append(layers[number] + ends)

    def positions(start: int, stop: int) -> np.ndarray:
        found, number = [], int(np.searchsorted(layers, start, side="right")) - 1
        while start < stop:
            first, end = int(layers[number]), min(stop, int(layers[number + 1]))
            found.append(orders[number].positions_between(start - first, end - first) + first)
            start, number = end, number + 1
        return np.concatenate(found) if found else np.empty(0, np.int64)

    split = StreamSplit(positions, np.concatenate(starts))
    split.note = note_of_layers(sizes, num_groups)
    return split


def _explicit(split: Split, dim: int) -> StreamSplit:
    position = np.empty(dim, np.int64)
    widths: list[int] = []
    done = 0
    for block in split.blocks:
        index = block.index[0].reshape(-1).numpy()
        position[index] = np.arange(done, done + len(index))
        widths += [block.shape[-1]] * block.shape[1]
        done += len(index)
    starts = np.concatenate([[0], np.cumsum(widths)])
    return StreamSplit(lambda start, stop: position[start:stop], starts)


class GroupSums:
    """Adds up something group by group while coordinates come in the order of the files."""

    def __init__(self, split: StreamSplit, shape: tuple[int, ...]) -> None:
        """Start at 0; `shape` is that of one group's sum."""
        self.split = split
        self.total = np.zeros((split.num_groups, *shape))
        self._lock = Lock()

    def add(self, piece: slice, rows: Tensor) -> None:
        """Add the values ``[clients, coordinates]`` of a slice of the coordinates."""

        def work(cut: tuple[int, int]) -> None:
            groups = self.split.groups(piece.start + cut[0], piece.start + cut[1])
            tile = SortedTile(groups)
            found = self.sum(tile, rows.numpy()[:, cut[0] : cut[1]])
            with self._lock:
                self.total[tile.first : tile.last] += found

        mapped(work, tile_cuts(rows))

    def sum(self, tile: "SortedTile", rows: np.ndarray) -> np.ndarray:
        """Return the sums of the groups from ``tile.first`` to ``tile.last`` over some values."""
        raise NotImplementedError


class SortedTile:
    """Some coordinates in the order of their groups."""

    def __init__(self, groups: np.ndarray) -> None:
        """Take the group of each coordinate."""
        self.first, self.last = int(groups.min()), int(groups.max()) + 1
        own = groups - self.first
        # Short keys are sorted by their digits, without comparisons.
        keys = own.astype(np.uint16) if self.num <= 1 << 16 else own
        self.order = np.argsort(keys, kind="stable")
        self.counts = np.bincount(own, minlength=self.num)
        self.starts = np.concatenate([[0], self.counts.cumsum()[:-1]])

    @property
    def num(self) -> int:
        """How many groups there are from the first to the last that has a coordinate here."""
        return self.last - self.first

    @property
    def is_even(self) -> bool:
        """Whether the groups are about as wide as one another."""
        return int(self.counts.max()) * self.num <= 2 * len(self.order) + 64 * self.num

    def side_by_side(self, values: np.ndarray) -> Tensor:
        """Copy ``values [coordinates + 1, clients]`` as ``[groups, width, clients]``.

        The last of the values are zeros: groups are filled up with them to the width of the widest.
        """
        num_values, num_clients = values.shape
        widest = int(self.counts.max())
        index = _buffer("index", (self.num, widest), self.order.dtype)
        index.fill(num_values - 1)
        # Where each coordinate goes: its group's first position, and its rank among the group.
        skipped = np.arange(self.num) * widest - self.starts
        position = np.arange(len(self.order)) + np.repeat(skipped, self.counts)
        index.reshape(-1)[position] = self.order
        groups = _buffer("groups", (self.num, widest, num_clients), values.dtype)
        return torch.from_numpy(values.take(index, axis=0, out=groups, mode="clip"))

    def one_by_one(self, values: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the groups that have a coordinate here, and their values."""
        for group in np.flatnonzero(self.counts).tolist():
            first = self.starts[group]
            yield group, values.take(self.order[first : first + self.counts[group]], axis=0)


def _buffer(name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return memory of this thread that may be written over: fresh pages cost time."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    kept: np.ndarray | None = getattr(_BUFFERS, name, None)
    if kept is None or kept.size < size or kept.size > 4 * size:
        kept = np.empty(size, np.uint8)
        setattr(_BUFFERS, name, kept)
    memory: np.ndarray = kept[:size].view(dtype).reshape(shape)
    return memory


_BUFFERS = local()


def _transposed(rows: np.ndarray, middle: np.ndarray | None = None) -> np.ndarray:
    """Copy ``rows [clients, coordinates]`` clients last, less one vector, and append zeros."""
    num_clients, width = rows.shape
    columns = _buffer("columns", (width + 1, num_clients), rows.dtype)
    for start in range(0, width, TRANSPOSED_AT_ONCE):
        part = slice(start, min(width, start + TRANSPOSED_AT_ONCE))
        if middle is None:
            columns[part] = rows[:, part].T
        else:
            np.subtract(rows[:, part].T, middle[part, None], out=columns[part])
    columns[width] = 0
    return columns


class Products(GroupSums):
    """The inner products of the clients of every group, relative to the central client."""

    def __init__(self, split: StreamSplit, num_clients: int, centre: int) -> None:
        """Start at 0."""
        super().__init__(split, (num_clients, num_clients))
        self.centre = centre

    def sum(self, tile: SortedTile, rows: np.ndarray) -> np.ndarray:
        """Centre the values, put those of a group side by side, and multiply."""
        centred = _transposed(rows, rows[self.centre])
        with exact_products():
            if tile.is_even:
                groups = tile.side_by_side(centred)
                products: np.ndarray = torch.matmul(groups.mT, groups).numpy()
                return products
            num_clients = len(rows)
            result = np.zeros((tile.num, num_clients, num_clients), rows.dtype)
            for group, values in tile.one_by_one(centred):
                np.matmul(values.T, values, out=result[group])
            return result


class SquaredDistances(GroupSums):
    """The squared distances, in every group, of the clients to a coordinate-wise result."""

    def __init__(self, split: StreamSplit, num_clients: int, reduce: Reduce) -> None:
        """Start at 0; `reduce` is the rule."""
        super().__init__(split, (num_clients,))
        self.reduce = reduce

    def sum(self, tile: SortedTile, rows: np.ndarray) -> np.ndarray:
        """Reduce every coordinate, and add up the squared differences group by group."""
        columns = _transposed(rows)
        middle = self.reduce(torch.from_numpy(columns[:-1]).unsqueeze(0))[0].numpy()
        if not np.isfinite(middle).all():
            raise ValueError("a rule gave NaN or infinity for finite gradients; mend the rule.")
        with np.errstate(over="ignore"):
            np.subtract(columns[:-1], middle[:, None], out=columns[:-1])
            found = self._add_up(tile, columns)
        if np.isfinite(found).all():
            return found
        return self._add_up(tile, _transposed(rows.astype(np.float64), middle.astype(np.float64)))

    @staticmethod
    def _add_up(tile: SortedTile, apart: np.ndarray) -> np.ndarray:
        np.square(apart, out=apart)
        with exact_products():
            if tile.is_even:
                groups = tile.side_by_side(apart)
                ones = torch.ones(1, groups.shape[1], dtype=groups.dtype)
                total: np.ndarray = torch.matmul(ones, groups).squeeze(1).numpy()
                return total
            result = np.zeros((tile.num, apart.shape[1]), apart.dtype)
            for group, values in tile.one_by_one(apart):
                result[group] = values.sum(axis=0)
        return result


class StreamedGroups(Groups):
    """The groups of a split of a stream."""

    split: Any

    def __init__(self, matrix: StreamedMatrix, split: StreamSplit) -> None:
        """Take the matrix and its split."""
        super().__init__(matrix, split, 0)  # type: ignore[arg-type]
        self.whole = matrix
        self._total: PerClient | None = None
        self._sums: GroupSums | None = None

    def asked(self, num_groups: int) -> "StreamedGroups":
        """Set how many groups were asked for."""
        self.num_asked = num_groups
        return self

    def sums(self, needs_values: bool | None, reduce: Reduce | None) -> GroupSums | None:
        """Return what to add up in one pass for a rule; None: it needs the values of groups."""
        num_clients = self.matrix.num_clients
        num_bytes = 8 * self.num_groups * num_clients
        if self._sums is None and reduce is not None and num_bytes <= self.whole.max_bytes:
            self._sums = SquaredDistances(self.split, num_clients, reduce)
        fits = num_bytes * num_clients <= self.whole.max_bytes
        is_wide = bool((self.split.widths > num_clients).any())
        if self._sums is None and reduce is None and not needs_values and is_wide and fits:
            centre = int(self.matrix.centre[0])
            self._sums = Products(self.split, num_clients, centre)
        return self._sums

    def total(
        self,
        measure: Callable[[ClientMatrix], PerClient],
        *,
        needs_values: bool | None = True,
        reduce: Reduce | None = None,
    ) -> PerClient:
        """Return the sum over the groups, see `Groups`; worked out once."""
        if self._total is None:
            with exact_products():
                found = self._work_out(measure, needs_values=needs_values, reduce=reduce)
            self._total = self.matrix.same_for_copies(found)
        return self._total

    def _work_out(
        self,
        measure: Callable[[ClientMatrix], PerClient],
        *,
        needs_values: bool | None,
        reduce: Reduce | None,
    ) -> PerClient:
        was_added_up = self._sums is not None
        sums = self.sums(needs_values, reduce)
        if sums is not None and not was_added_up:
            for piece, rows in self.whole.stream.chunks():
                sums.add(piece, rows)
        if isinstance(sums, SquaredDistances):
            return torch.from_numpy(np.sqrt(sums.total).sum(axis=0)).unsqueeze(0)
        products = None if sums is None else torch.from_numpy(sums.total)
        parts = [
            self._sum_of(measure, first, last, products, needs_values=needs_values)
            for first, last in self._batches(has_products=products is not None)
        ]
        return torch.stack(parts).sum(dim=0)

    def _batches(self, *, has_products: bool) -> Iterator[tuple[int, int]]:
        """Cut the groups into batches of one width whose values fit the memory."""
        widths = self.split.widths
        changes = np.flatnonzero(np.diff(widths)) + 1
        itemsize = self.matrix.work_dtype.itemsize
        for first, last in pairwise([0, *changes.tolist(), self.num_groups]):
            per_group = int(widths[first]) * self.matrix.num_clients * itemsize * NUM_COPIES
            if has_products and widths[first] > self.matrix.num_clients:
                per_group += 40 * self.matrix.num_clients**2
            step = max(1, self.whole.max_bytes // per_group)
            for start in range(first, last, step):
                yield start, min(last, start + step)

    def _sum_of(
        self,
        measure: Callable[[ClientMatrix], PerClient],
        first: int,
        last: int,
        products: Tensor | None,
        *,
        needs_values: bool | None,
    ) -> PerClient:
        width, num_clients = int(self.split.widths[first]), self.matrix.num_clients
        if products is None or width <= num_clients:
            groups = self._in_memory(first, last)
            return groups._sum(measure, None, needs_values=needs_values)
        # As in memory: rounded to the working precision, and redone from the values where inexact.
        some = products[first:last].to(self.matrix.work_dtype).unsqueeze(0)
        matrix = ClientMatrix(
            partial(self._values, first, last),
            torch.Size([1, last - first, width, num_clients]),
            like=torch.empty(0, dtype=self.matrix.work_dtype),
            centre=self.matrix.centre,
            products=lambda: some,
            originals=self.matrix.originals,
        )
        return measure(matrix).sum(dim=-2)

    def _in_memory(self, first: int, last: int) -> Groups:
        """Read some groups of one width, and split what was read in the same way."""
        rows = self._read(first, last)
        matrix = ClientMatrix(
            rows.mT.unsqueeze(0), centre=self.matrix.centre, originals=self.matrix.originals
        )
        index = torch.arange(rows.shape[1], dtype=torch.int32).view(1, last - first, -1)
        return Groups(matrix, Split((IndexBlock(index),)), self.num_asked)

    def _values(self, first: int, last: int) -> Columns:
        rows = self._read(first, last)
        return rows.view(len(rows), last - first, -1).permute(1, 2, 0).unsqueeze(0)

    def _read(self, first: int, last: int) -> Tensor:
        """Read the values of some groups in one pass, ``[clients, groups * width]``."""
        start, stop = int(self.split.starts[first]), int(self.split.starts[last])
        result = np.empty((self.matrix.num_clients, stop - start), _numpy(self.matrix.work_dtype))
        for piece, rows in self.whole.stream.chunks():
            positions = self.split.positions(piece.start, piece.stop)
            where = np.flatnonzero((positions >= start) & (positions < stop))
            target = positions[where] - start
            values = rows.numpy()
            mapped(
                lambda k, values=values, where=where, target=target: result[k].__setitem__(  # type: ignore[misc]
                    target, values[k].take(where)
                ),
                range(len(result)),
            )
        return torch.from_numpy(result)


def _numpy(dtype: torch.dtype) -> type[np.floating[Any]]:
    return np.float64 if dtype == torch.float64 else np.float32
