"""Copying coordinates in a random order, which is where a random split spends its time.

Reading single numbers at random is slow. With many clients it pays to turn the matrix once, so that
one coordinate of all clients is one short copy; with few, to read row by row, each row being small
enough for the cache; on a GPU, to read in order and write at random.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from threading import local
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from outvote.axes import Columns, Pairs
from outvote.fresh import fresh
from outvote.lazy import lazy
from outvote.precision import exact_products, work_dtype
from outvote.rules import cuda, linalg
from outvote.threads import mapped

Result = TypeVar("Result")
FEW_CLIENTS = 12
TURNED_AT_ONCE = 512
# Pieces enough for a core that comes late to find something left.
NUM_TURNED_PIECES = 16


class Block:
    """Groups of coordinates of one width: ``index [runs, groups, width]``."""

    def __init__(self, index: Tensor) -> None:
        """Take the coordinates of the groups."""
        self.index = index
        self.shape = index.shape

    def places(self, run: int, dim: int) -> tuple[Tensor, int, int]:
        """Return where each coordinate goes, counted over the groups (-1: nowhere), and no gaps."""
        index = self.index[run % len(self.index)].reshape(-1)
        place = torch.full((dim,), -1, dtype=torch.int32, device=index.device)
        place[index.long()] = torch.arange(len(index), dtype=torch.int32, device=index.device)
        return place, dim, 1


class PlacedBlock:
    """A balanced random split, told by where each coordinate goes (`order` read backwards).

    Groups are as wide as the largest; the last place of the smaller ones stays empty.
    """

    def __init__(self, order: Tensor, sizes: tuple[int, int, int, int]) -> None:
        """Take a random place for every coordinate of every run, and the sizes of the groups."""
        self.order = order
        self.num_large, large, self.num_small, small = sizes
        self.width = large if self.num_large else small
        self.small = small
        self.shape = torch.Size([len(order), self.num_large + self.num_small, self.width])

    def places(self, run: int, dim: int) -> tuple[Tensor, int, int]:
        """Return where each coordinate goes if no place stayed empty, and where gaps come in.

        From the place `end` on, every `small` coordinates are followed by an empty place.
        """
        is_mixed = self.num_large > 0 and self.num_small > 0
        end = self.num_large * self.width if is_mixed else dim
        return self.order[run % len(self.order)], end, self.small

    @property
    def index(self) -> Tensor:
        """The coordinates of the groups, -1 for an empty place."""
        runs, num_groups, width = self.shape
        index = self.order.new_full((runs, num_groups * width), -1)
        for run in range(runs):
            dim = self.order.shape[1]
            place, end, small = self.places(run, dim)
            where = (place + (place - end).clamp(min=0) // small).long()
            index[run, where] = torch.arange(dim, dtype=index.dtype, device=index.device)
        return index.view(self.shape)


class Reader(ABC):
    """Reads groups of coordinates from all clients of the runs."""

    def __init__(self, columns: Columns, block: Block | PlacedBlock) -> None:
        """Take the values ``[runs, dim, clients]`` and the groups to read."""
        self.columns = columns
        self.block = block
        self._rooms = local()

    @abstractmethod
    def read(self, start: int, stop: int, room: str = "values") -> Columns:
        """Return the values of some groups; they last until the same thread reads into the room."""

    @abstractmethod
    def new_room(self, num_groups: int) -> Columns:
        """Allocate memory for the values of some groups."""

    def products(self, start: int, stop: int, centre: Tensor) -> Callable[[], Pairs]:
        """Return a way to the inner products of some groups that needs no room for all values."""
        return partial(self._multiply, start, stop, centre)

    def _multiply(self, start: int, stop: int, centre: Tensor) -> Pairs:
        num_clients = self.columns.shape[-1]
        shape = (self.columns.shape[0], stop - start, num_clients, num_clients)
        work = work_dtype(self.columns.dtype)
        result = torch.empty(shape, dtype=work, device=self.columns.device)
        per_group = num_clients * self.block.shape[-1] * shape[0]
        step = max(1, linalg.tile_values(self.columns) // per_group)

        def multiply(first: int) -> None:
            last = min(stop, first + step)
            # In rooms of its own: the rule may still hold values of the whole slab.
            values = self.read(first, last, "to multiply")
            middle = linalg.of_client(values, centre)
            centred = linalg.subtract(values, middle, self.room(last - first, "centred"))
            result[:, first - start : last - start] = linalg.with_itself(centred)

        with exact_products():
            mapped(multiply, range(start, stop, step), self.columns.device)
        return result

    def room(self, num_groups: int, which: str) -> Columns:
        """Return memory of this thread's own that may be written over: fresh pages cost time."""
        kept: Tensor | None = getattr(self._rooms, which, None)
        if kept is None or kept.shape[1] < num_groups:
            kept = self.new_room(num_groups)
            setattr(self._rooms, which, kept)
        return kept[:, :num_groups]


class ByClient(Reader):
    """Reads client after client; the groups lie as ``[runs, groups, clients, width]``."""

    def __init__(self, columns: Columns, block: Block | PlacedBlock) -> None:
        """Copy all groups: a client's row stays in the cache while it is read at random."""
        super().__init__(columns, block)
        runs, _, num_clients = columns.shape
        num_groups, width = block.shape[1:]
        self.values = _large_pages(columns, runs, num_clients, num_groups * width)
        halves = [
            (run, k, half) for run in range(runs) for k in range(num_clients) for half in (0, 1)
        ]
        mapped(self._copy, halves)

    def _copy(self, where: tuple[int, int, int]) -> None:
        run, client, half = where
        order = self.block.index[run % len(self.block.index)].reshape(-1)
        piece = slice(0, len(order) // 2) if half == 0 else slice(len(order) // 2, len(order))
        order = order[piece]
        source, target = self.columns[run, :, client], self.values[run, client, piece]
        if source.dtype == target.dtype:
            torch.index_select(source, 0, order, out=target)
        else:
            target.copy_(source.index_select(0, order))

    def new_room(self, num_groups: int) -> Columns:
        """Allocate memory for the values of some groups."""
        runs, num_clients, _ = self.values.shape
        return self.values.new_empty(runs, num_groups, num_clients, self.block.shape[-1]).mT

    def read(self, start: int, stop: int, room: str = "values") -> Columns:
        """View the values of some groups."""
        del room
        width = self.block.shape[-1]
        some = self.values[..., start * width : stop * width]
        groups: Tensor = some.unflatten(-1, (-1, width))
        return groups.permute(0, 2, 3, 1)


class ByCoordinate(Reader):
    """Reads all clients of a coordinate at once; the groups lie as they are shaped."""

    def new_room(self, num_groups: int) -> Columns:
        """Allocate memory for the values of some groups."""
        runs, _, num_clients = self.columns.shape
        return self.columns.new_empty(runs, num_groups, self.block.shape[-1], num_clients)

    def read(self, start: int, stop: int, room: str = "values") -> Columns:
        """Copy the values of some groups."""
        out = self.room(stop - start, room)
        for run, matrix in enumerate(self.columns):
            order = self.block.index[run % len(self.block.index), start:stop].reshape(-1)
            target = out[run].flatten(0, 1)
            if matrix.device.type == "cpu":
                np.take(matrix.numpy(), order.numpy(), axis=0, out=target.numpy(), mode="clip")
            else:
                torch.index_select(matrix, 0, order, out=target)
        return out


class OnGpu(Reader):
    """Reads everything in order, and writes each coordinate where its group wants it."""

    def new_room(self, num_groups: int) -> Columns:
        """Allocate nothing: a GPU's allocator has memory at hand."""
        return self.columns.new_empty(1, num_groups, 0, 0)

    @lazy
    def values(self) -> Columns:
        """All groups."""
        return cuda.scattered(self.columns, self.block)

    def read(self, start: int, stop: int, room: str = "values") -> Columns:
        """View the values of some groups."""
        del room
        return self.values[:, start:stop, :, : self.columns.shape[-1]]

    @lazy
    def _centred(self) -> Columns:
        return cuda.scattered(self.columns, self.block, self._centre)

    def products(self, start: int, stop: int, centre: Tensor) -> Callable[[], Pairs]:
        """Multiply groups that were centred while they were copied."""
        self._centre = centre
        num_clients = self.columns.shape[-1]
        return lambda: linalg.exact_gram(self._centred[:, start:stop])[
            ..., :num_clients, :num_clients
        ]


def open_reader(
    columns: Columns, turned: Columns | None = None
) -> Callable[[Block | PlacedBlock], Reader]:
    """Choose the way to read ``columns [runs, dim, clients]``; call it with a block of groups.

    `turned` are the same values with the clients last in memory, where somebody has them.
    """
    num_clients = columns.shape[-1]
    if cuda.is_usable(columns, num_clients):
        return partial(OnGpu, columns)
    if columns.device.type == "cpu" and num_clients <= FEW_CLIENTS:
        return partial(ByClient, columns)
    return partial(ByCoordinate, clients_last(columns) if turned is None else turned)


def clients_last(columns: Columns) -> Columns:
    """Copy so that what all clients sent for one coordinate lies side by side."""
    work = work_dtype(columns.dtype)
    if columns.is_contiguous() and columns.dtype == work:
        return columns
    if columns.device.type != "cpu":
        return columns.to(work).contiguous()
    if columns.dtype != work:
        return _large_pages(columns, *columns.shape).copy_(columns)
    target, pieces = turning(columns)
    mapped(run, pieces)
    return target


def turning(columns: Columns) -> tuple[Columns, list[Callable[[], None]]]:
    """Return memory for the values with the clients last, and the pieces of work that fill it."""
    target = _large_pages(columns, *columns.shape)
    dim = columns.shape[1]
    cuts = [dim * k // NUM_TURNED_PIECES for k in range(NUM_TURNED_PIECES + 1)]
    return target, [
        partial(_turn, source, to, slice(start, stop))
        for to, source in zip(target.numpy(), columns.numpy(), strict=True)
        for start, stop in pairwise(cuts)
    ]


def is_turned_first(columns: Columns) -> bool:
    """Tell whether these values will be copied clients last before groups are read."""
    return (
        columns.device.type == "cpu"
        and columns.dim() == 3
        and columns.shape[-1] > FEW_CLIENTS
        and columns.dtype == work_dtype(columns.dtype)
        and not columns.is_contiguous()
    )


def run(work: Callable[[], Result]) -> Result:
    """Do a piece of work."""
    return work()


def _large_pages(like: Tensor, *shape: int) -> Tensor:
    return fresh(shape, work_dtype(like.dtype), like.device)


def _turn(source: np.ndarray, target: np.ndarray, piece: slice) -> None:
    for start in range(piece.start, piece.stop, TURNED_AT_ONCE):
        part = slice(start, min(piece.stop, start + TURNED_AT_ONCE))
        target[part] = source[part]
