"""Random groups of coordinates: copying in the order of the groups, and sums without a copy.

A split is given by a random order of the coordinates for each run (or one for all runs), which is
cut into groups.

Random orders that are the same on every device; large ones come from small tables, unsorted.

The positions of `size` things are the cells of a matrix of `num_rows` x `num_columns`, in reading
order. A round rotates every row by a shift of its own, or every column: each is a bijection (a
Feistel network with addition). The shifts are drawn by Philox, on the host or by a GPU: its numbers
are the same everywhere. Why six rounds, and how it was tested: docs/decisions/0014.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from math import isqrt
from typing import final

import numpy as np
import torch
from torch import Tensor

from outvote.axes import Columns, Pairs, Rows
from outvote.ops.door import backend
from outvote.ops.process import CPU, lazy, mapped

NUM_ROUNDS = 6
# Up to here all orders are equally likely, and sorting takes less than a millisecond.
LARGEST_SORTED = 8_192
LARGEST_SIZE = 2**50
# Cells of the matrix are numbered with 31 bits, and with more where they are asked for in parts.
LARGEST_AT_ONCE = 2**31 - 2**16
# Shorter steps fit the cache of a core better, but then two cores were hardly faster than one.
AT_ONCE = 1 << 18
HALF = np.uint64(32)


def draw_order(size: int, seed: int) -> "TableOrder | KeyedOrder":
    """Draw the random order of `size` things of a seed of at most 64 bits."""
    if size <= LARGEST_SORTED:
        return TableOrder.draw(size, seed)
    return KeyedOrder(size, seed)


def check_at_once(size: int) -> None:
    """Raise unless all positions of so many things can be had at once."""
    if size > LARGEST_AT_ONCE:
        raise ValueError(
            f"an order of {size} coordinates is too large to be had at once, at most "
            f"{LARGEST_AT_ONCE}; aggregate files, which are read in parts."
        )


@final
@dataclass(frozen=True, slots=True)
class TableOrder:
    """An order that is a table of all positions."""

    table: Tensor
    """The position of each thing, ``[size]`` int32 on the host."""

    @classmethod
    def of(cls, positions: np.ndarray) -> "TableOrder":
        """Return the order with these positions."""
        check_at_once(len(positions))
        return cls(torch.from_numpy(positions.astype(np.int32, copy=False)))

    @classmethod
    def draw(cls, size: int, seed: int) -> "TableOrder":
        """Draw the random order of a seed of at most 64 bits: random keys, sorted."""
        keys = np.random.Philox(key=seed).random_raw(size)
        positions = np.empty(size, np.int32)
        positions[np.argsort(keys, kind="stable")] = np.arange(size, dtype=np.int32)
        return cls.of(positions)

    def index(self, device: torch.device = CPU) -> Tensor:
        """Return the thing at each position, ``[size]`` int32."""
        return inverse(self.table).to(device)

    def positions(self, device: torch.device = CPU) -> Tensor:
        """Return the position of each thing, ``[size]`` int32."""
        return self.table.to(device)

    def positions_between(self, start: int, stop: int) -> np.ndarray:
        """Return the positions of the things from `start` up to, not with, `stop`, on the host."""
        between: np.ndarray = self.table[start:stop].numpy()
        return between


@final
@dataclass(frozen=True)
class KeyedOrder:
    """A random order of many things, given by a seed of at most 64 bits.

    Its table of shifts is drawn from the seed. Beyond `LARGEST_AT_ONCE` things there is only
    `positions_between`.
    """

    size: int
    seed: int
    num_rounds: int = NUM_ROUNDS
    num_rows: int = field(init=False, compare=False, repr=False)
    num_columns: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Lay out the matrix; fewer cells than one row has are beyond the last thing."""
        if not 1 <= self.size <= LARGEST_SIZE:
            raise ValueError(f"size must be from 1 to {LARGEST_SIZE}, got {self.size}.")
        num_rows = isqrt(self.size)
        object.__setattr__(self, "num_rows", num_rows)
        object.__setattr__(self, "num_columns", -(-self.size // num_rows))

    @lazy
    def table(self) -> Tensor:
        """The shifts of rows, columns, rows and so on, ``[rounds, columns]`` int32 on the host."""
        num_rows, num_columns = self.num_rows, self.num_columns
        raw = np.random.Philox(key=self.seed).random_raw(self.num_rounds * num_columns)
        bounds = np.resize(np.array([num_columns, num_rows], np.uint64), (self.num_rounds, 1))
        # The upper half as a fraction of the bound: uneven by one part in 2^32 / num_columns.
        drawn = ((raw.reshape(self.num_rounds, -1) >> HALF) * bounds) >> HALF
        return torch.from_numpy(drawn.astype(np.int32))

    def index(self, device: torch.device = CPU) -> Tensor:
        """Return the thing at each position, ``[size]`` int32, worked out on a device."""
        return inverse(self.positions(device))

    def positions(self, device: torch.device = CPU) -> Tensor:
        """Return the position of each thing, ``[size]`` int32."""
        check_at_once(self.size)
        if device.type == "cpu" and self.num_rounds == NUM_ROUNDS:
            return torch.from_numpy(self.positions_between(0, self.size))
        return self._walked(torch.arange(self.size, device=device)).int()

    def positions_between(self, start: int, stop: int) -> np.ndarray:
        """Return the positions of the things from `start` up to, not with, `stop`, on the host.

        Uses one core and memory for what it returns: files are read some coordinates at a time.
        """
        num_columns = self.num_columns
        first, last = start // num_columns, -(-stop // num_columns)
        kind = np.int32 if self.size <= LARGEST_AT_ONCE else np.int64
        cells = np.empty((last - first, num_columns), kind)
        step = max(1, min(last - first, AT_ONCE // num_columns))
        buffers = np.empty((3, step, num_columns), np.uint32)
        for row in range(first, last, step):
            _write_positions(self, row, cells[row - first : row - first + step], buffers)
        result = cells.reshape(-1)[start - first * num_columns : stop - first * num_columns]
        is_beyond = np.flatnonzero(result >= self.size)
        if len(is_beyond):
            beyond = torch.from_numpy(result[is_beyond]).long()
            result[is_beyond] = self._walked(beyond).numpy()
        return result

    def _walked(self, cells: Tensor) -> Tensor:
        """Move cells back by all rounds, and those beyond the last thing again until none is."""
        shifts = self.table.to(cells.device, non_blocking=True)
        cells = self._moved_back(cells, shifts)
        while bool((is_beyond := cells >= self.size).any()):
            cells = torch.where(is_beyond, self._moved_back(cells, shifts), cells)
        return cells

    def _moved_back(self, cells: Tensor, shifts: Tensor) -> Tensor:
        row, column = cells // self.num_columns, cells % self.num_columns
        for number in reversed(range(len(shifts))):
            if number % 2 == 0:
                column = (column - shifts[number][row]) % self.num_columns
            else:
                row = (row - shifts[number][column]) % self.num_rows
        return row * self.num_columns + column


def _write_positions(order: KeyedOrder, first: int, cells: np.ndarray, buffers: np.ndarray) -> None:
    """Write the positions of the cells of some rows from `first` on: the rounds moved back."""
    row, column, shift = some = buffers[:, : len(cells)]
    row_at, column_at, shift_at = torch.from_numpy(some.view(np.int32)).flatten(1)
    bounds = np.uint32(order.num_columns), np.uint32(order.num_rows)
    # The last round moves columns: all cells of a column by one shift, without a lookup.
    row[:] = np.arange(first, first + len(cells), dtype=np.uint32)[:, None]
    column[:] = np.arange(order.num_columns, dtype=np.uint32)
    shift[:] = order.table[-1].numpy()
    _move_back(row, shift, bounds[1])
    for number in reversed(range(len(order.table) - 1)):
        at, moved = (row_at, column) if number % 2 == 0 else (column_at, row)
        torch.index_select(order.table[number], 0, at, out=shift_at)
        _move_back(moved, shift, bounds[number % 2])
    if cells.dtype == np.int64:
        np.multiply(row, np.int64(order.num_columns), out=cells)
        cells += column
        return
    np.multiply(row, bounds[0], out=row)
    np.add(row, column, out=cells.view(np.uint32))


def _move_back(moved: np.ndarray, shift: np.ndarray, bound: np.uint32) -> None:
    """Subtract, modulo the bound; `shift` is written over."""
    np.subtract(moved, shift, out=moved)
    # Without a sign, what falls below 0 becomes huge, and the bound added makes it right.
    np.add(moved, bound, out=shift)
    np.minimum(moved, shift, out=moved)


def inverse(positions: Tensor) -> Tensor:
    """Return the thing at each position, int32."""
    index = torch.empty_like(positions)
    things = torch.arange(len(index), dtype=index.dtype, device=index.device)
    return index.scatter_(0, positions.long(), things)


Orders = Sequence[KeyedOrder | TableOrder]
Sizes = tuple[int, int, int, int]
"""(Number, width) of the groups that come first in the order, then of those of another width."""

# Sums over pairs beat reading the groups where there are few clients, and groups neither so few
# that sums wait for each other nor so many that they do not fit the cache.
MOST_CLIENTS, FEWEST_GROUPS, MOST_GROUPS, SHORTEST_GROUP = 9, 16, 1 << 14, 32


def in_order(rows: Rows, orders: Orders | Tensor) -> Columns:
    """Copy ``rows [runs, clients, dim]`` so that coordinates lie in a random order.

    There is an order for each run, or one for all; or an index of coordinates, ``[runs, k]``. The
    result is ``[runs, k, clients]``: groups are slices of it.
    """
    if not isinstance(orders, Tensor):
        kernel = backend("in_order", rows, rows.shape[-2])
        if kernel is not None and _fit_kernels(orders):
            copied: Columns = kernel(rows, orders)
            return copied
        orders = torch.stack([order.index(rows.device) for order in orders])
    runs, num_clients, _ = rows.shape
    result = rows.new_empty(runs, num_clients, orders.shape[-1])
    # One client's row stays in the cache of a core while it is read at random.
    clients = [slice(k, k + 1) for k in range(num_clients)] if rows.is_cpu else [slice(None)]

    def copy(own: tuple[int, slice]) -> None:
        index = orders[own[0] % len(orders)]
        torch.index_select(rows[own], -1, index, out=result[own])

    mapped(copy, list(product(range(runs), clients)), rows.device)
    columns: Columns = result.mT
    return columns


def groups_at(positions: np.ndarray, sizes: Sizes) -> np.ndarray:
    """Return the group of each position of an order that is cut so."""
    num_first, first, num_second, second = sizes
    groups: np.ndarray = positions // first
    if num_second:
        end = num_first * first
        groups = np.where(positions < end, groups, num_first + (positions - end) // second)
    return groups


def _fit_kernels(orders: Orders) -> bool:
    """Return whether kernels take these orders, whose cells they number with 31 bits."""
    return all(isinstance(order, KeyedOrder) and order.size <= LARGEST_AT_ONCE for order in orders)


def are_sums_faster(rows: Rows, num_groups: int) -> bool:
    """Return whether `pair_sums` takes less time than to copy such rows into groups."""
    return (
        rows.shape[-2] <= MOST_CLIENTS
        and FEWEST_GROUPS <= num_groups <= MOST_GROUPS
        and rows.shape[-1] >= SHORTEST_GROUP * num_groups
        and backend("pair_sums", rows, rows.shape[-2]) is not None
    )


def pair_sums(rows: Rows, orders: Orders, sizes: Sizes, start: int = 0) -> Pairs:
    """Return the squared distances in the groups, ``[runs, groups, clients, clients]``, float64.

    ``rows [runs, clients, width]`` are the coordinates from `start` on, as many as there are: sums
    of pieces add up. All are read in their own order, and the squared difference of each pair is
    added to its group. Nothing cancels, and nothing is copied.
    """
    kernel = backend("pair_sums", rows, rows.shape[-2])
    if kernel is not None and _fit_kernels(orders):
        found: Tensor = kernel(rows, orders, sizes, start)
        return found
    num_clients, width = rows.shape[-2:]
    num_groups = sizes[0] + sizes[2]
    values = rows.cpu().double()
    result = values.new_zeros(len(rows), num_groups, num_clients, num_clients)
    for run, own in enumerate(values):
        positions = orders[run % len(orders)].positions_between(start, start + width)
        groups = torch.from_numpy(groups_at(positions, sizes)).long()
        for i in range(1, num_clients):
            for j in range(i):
                squared = (own[i] - own[j]).square_()
                total = torch.bincount(groups, squared, minlength=num_groups)
                result[run, :, i, j] = result[run, :, j, i] = total
    return result.to(rows.device)
