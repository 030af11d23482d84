"""Copying coordinates in a random order, which is where a random split spends its time.

Reading single numbers at random is slow. With many clients it pays to turn the matrix once, so that
one coordinate of all clients is one short copy; with few, to read row by row, each row being small
enough for the cache; on a GPU, to read in order and write at random.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor

from outvote.axes import Columns, Pairs
from outvote.rules import cuda, linalg
from outvote.rules.threads import in_pieces

FEW_CLIENTS = 12
TURNED_AT_ONCE = 4096


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


@dataclass(slots=True)
class Reader:
    """Reads groups of coordinates from all clients of the runs."""

    columns: Columns
    block: Block | PlacedBlock
    room: Columns

    @property
    def scratch(self) -> Columns:
        """Memory that may be written over while some groups are worked on."""
        return self.room[1]

    def products(self, start: int, stop: int, centre: Tensor) -> Callable[[], Pairs] | None:
        """Return a shorter way to the inner products of some groups than through their values."""
        del start, stop, centre


class ByClient(Reader):
    """Reads client after client; the groups lie as ``[runs, groups, clients, width]``."""

    def read(self, start: int, stop: int) -> Columns:
        """Copy the values of some groups."""
        out = self.room[0][:, : stop - start]
        for run, matrix in enumerate(self.columns.mT):
            order = self.block.index[run % len(self.block.index), start:stop]
            target = out[run].mT.transpose(0, 1)
            in_pieces(partial(_copy_rows, matrix, order, target), len(order), target[:, 0].numel())
        return out


class ByCoordinate(Reader):
    """Reads all clients of a coordinate at once; the groups lie as they are shaped."""

    def read(self, start: int, stop: int) -> Columns:
        """Copy the values of some groups."""
        out = self.room[0][:, : stop - start]
        for run, matrix in enumerate(self.columns):
            order = self.block.index[run % len(self.block.index), start:stop].reshape(-1)
            target = out[run].flatten(0, 1)
            if matrix.device.type != "cpu":
                torch.index_select(matrix, 0, order, out=target)
                continue
            copy = partial(_copy_coordinates, matrix.numpy(), order.numpy(), target.numpy())
            in_pieces(copy, len(order), matrix.shape[-1])
        return out


class OnGpu(Reader):
    """Reads everything in order, and writes each coordinate where its group wants it."""

    __slots__ = ("__dict__",)

    @cached_property
    def values(self) -> Columns:
        """All groups."""
        return cuda.scattered(self.columns, self.block)

    def read(self, start: int, stop: int) -> Columns:
        """View the values of some groups."""
        return self.values[:, start:stop, :, : self.columns.shape[-1]]

    def products(self, start: int, stop: int, centre: Tensor) -> Callable[[], Pairs]:
        """Multiply groups that were centred while they were copied."""
        if "centred" not in self.__dict__:
            self.__dict__["centred"] = cuda.scattered(self.columns, self.block, centre)
        some = self.__dict__["centred"][:, start:stop]
        num_clients = self.columns.shape[-1]
        return lambda: linalg.exact_gram(some)[..., :num_clients, :num_clients]


def _copy_rows(matrix: Tensor, order: Tensor, target: Tensor, piece: slice) -> None:
    some = order[piece]
    target[:, piece] = matrix.index_select(1, some.reshape(-1)).view(len(matrix), *some.shape)


def _copy_coordinates(
    source: np.ndarray, order: np.ndarray, target: np.ndarray, piece: slice
) -> None:
    np.take(source, order[piece], axis=0, out=target[piece], mode="clip")


def open_reader(
    columns: Columns,
) -> Callable[[Block | PlacedBlock, int], ByClient | ByCoordinate | OnGpu]:
    """Choose the way to read ``columns [runs, dim, clients]``; call it with a block and a step."""
    runs, _, num_clients = columns.shape
    work = linalg.work_dtype(columns.dtype)
    if cuda.is_usable(columns, num_clients):
        return lambda block, step: OnGpu(columns, block, columns.new_empty(2, runs, step, 0, 0))
    if columns.device.type == "cpu" and num_clients <= FEW_CLIENTS:
        return lambda block, step: ByClient(
            columns,
            block,
            columns.new_empty(2, runs, step, num_clients, block.shape[-1], dtype=work).mT,
        )
    turned = clients_last(columns)
    return lambda block, step: ByCoordinate(
        turned, block, turned.new_empty(2, runs, step, block.shape[-1], num_clients)
    )


def clients_last(columns: Columns) -> Columns:
    """Copy so that what all clients sent for one coordinate lies side by side."""
    work = linalg.work_dtype(columns.dtype)
    if columns.is_contiguous() and columns.dtype == work:
        return columns
    if columns.device.type != "cpu":
        return columns.to(work).contiguous()
    # numpy asks for large pages, which torch does not: page faults would double the time.
    target = np.empty(columns.shape, np.float64 if work == torch.float64 else np.float32)
    if columns.dtype != work:
        return torch.from_numpy(target).copy_(columns)
    for to, source in zip(target, columns.numpy(), strict=True):
        in_pieces(partial(_turn, source, to), *source.shape)
    return torch.from_numpy(target)


def _turn(source: np.ndarray, target: np.ndarray, piece: slice) -> None:
    for start in range(piece.start, piece.stop, TURNED_AT_ONCE):
        part = slice(start, min(piece.stop, start + TURNED_AT_ONCE))
        target[part] = source[part]
