"""The groups of a stream: sums group by group, while coordinates come in the order of the files.

Inner products and sums of squares are added up in one pass; a rule that needs the values of groups
gets as many at a time as fit the memory.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from threading import Lock, local
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from outvote.axes import Columns, PerClient, PerCoordinate
from outvote.ops.precision import exact_products
from outvote.ops.threads import mapped
from outvote.rules.client_matrix import ClientMatrix
from outvote.rules.column_stream import Sum, tile_cuts
from outvote.rules.groups import Groups
from outvote.rules.split import IndexBlock, Split
from outvote.rules.stream_split import StreamSplit

if TYPE_CHECKING:
    from outvote.rules.streamed_matrix import StreamedMatrix

Reduce = Callable[[Columns], PerCoordinate]

TRANSPOSED_AT_ONCE = 512
# Longer sums over a group are rounded too often in float32; those of parts are added in float64.
SUMMED_AT_ONCE = 2500
# What is read of groups is copied, sorted and subtracted from: so many times its size.
NUM_COPIES = 4


class GroupSums:
    """Adds up something group by group while coordinates come in the order of the files."""

    def __init__(self, split: StreamSplit, shape: tuple[int, ...]) -> None:
        """Start at 0; `shape` is that of one group's sum."""
        self.split = split
        self.own = np.zeros((split.num_groups, *shape))
        self._lock = Lock()
        self._total: Tensor | None = None

    def total(self, everywhere: Sum) -> Tensor:
        """Return the sums of all groups, over all processes that read a part."""
        if self._total is None:
            self._total = everywhere(torch.from_numpy(self.own))
        return self._total

    def add(self, piece: slice, rows: Tensor) -> None:
        """Add the values ``[clients, coordinates]`` of a slice of the coordinates."""

        def work(cut: tuple[int, int]) -> None:
            groups = self.split.groups(piece.start + cut[0], piece.start + cut[1])
            self._add_tile(groups, rows.numpy()[:, cut[0] : cut[1]])

        mapped(work, tile_cuts(rows))

    def _add_tile(self, groups: np.ndarray, rows: np.ndarray) -> None:
        tile = SortedTile(groups)
        num_parts = -(-int(tile.counts.max()) // SUMMED_AT_ONCE)
        if num_parts > 1:
            cuts = [len(groups) * k // num_parts for k in range(num_parts + 1)]
            for start, stop in pairwise(cuts):
                self._add_part(SortedTile(groups[start:stop]), rows[:, start:stop])
        else:
            self._add_part(tile, rows)

    def _add_part(self, tile: "SortedTile", rows: np.ndarray) -> None:
        found = self.sum(tile, rows)
        with self._lock:
            self.own[tile.first : tile.last] += found

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

    def __init__(self, matrix: "StreamedMatrix", split: StreamSplit) -> None:
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
        ignores_zeros: Callable[[int], bool] | None = None,
    ) -> PerClient:
        """Return the sum over the groups, see `Groups`; worked out once."""
        del ignores_zeros  # Groups are read without empty coordinates here.
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
        total = None if sums is None else sums.total(self.whole.stream.everywhere)
        if total is not None and isinstance(sums, SquaredDistances):
            return total.sqrt().sum(dim=0).unsqueeze(0)
        products = total
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
        return measure(matrix)

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
        result = np.zeros((self.matrix.num_clients, stop - start), _numpy(self.matrix.work_dtype))
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
        return self.whole.stream.everywhere(torch.from_numpy(result))


def _numpy(dtype: torch.dtype) -> type[np.floating[Any]]:
    return np.float64 if dtype == torch.float64 else np.float32
