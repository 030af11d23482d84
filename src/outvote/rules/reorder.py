"""Copying coordinates in a random order, which is where a random split spends its time.

Reading single numbers at random is slow. With many clients it pays to turn the matrix once, so that
one coordinate of all clients is one short copy; with few, to read row by row, each row being small
enough for the cache.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from outvote.axes import Columns, Pairs
from outvote.rules import cuda
from outvote.rules.linalg import work_dtype
from outvote.rules.threads import in_pieces

FEW_CLIENTS = 12
TURNED_AT_ONCE = 4096


@dataclass(frozen=True, slots=True)
class ByClient:
    """Reads the coordinates client after client; groups lie as ``[runs, groups, clients, width]``."""

    columns: Columns

    def room(self, num_groups: int, width: int) -> Columns:
        """Allocate room for some groups, clients last in shape but not in memory."""
        runs, _, num_clients = self.columns.shape
        shape = (runs, num_groups, num_clients, width)
        return self.columns.new_empty(shape, dtype=work_dtype(self.columns.dtype)).mT

    def products(self, index: Tensor, centre: Tensor) -> None:
        """Return no shortcut to the Gram matrices: they are made from the copied groups."""
        del index, centre

    def take(self, index: Tensor, out: Columns) -> Columns:
        """Copy the coordinates `index` [runs, groups, width]."""
        rows = self.columns.mT
        num_clients = rows.shape[1]
        for run, matrix in enumerate(rows):
            order = index[run % len(index)]
            target = out[run].mT.transpose(0, 1)

            def copy(piece: slice, matrix: Tensor = matrix, order: Tensor = order) -> None:
                some = order[piece]
                taken = matrix.index_select(1, some.reshape(-1))
                target[:, piece] = taken.view(num_clients, *some.shape)  # noqa: B023

            in_pieces(copy, len(order), num_clients * order.shape[1])
        return out


@dataclass(frozen=True, slots=True)
class ByCoordinate:
    """Reads all clients of a coordinate at once; groups lie as ``[runs, groups, width, clients]``."""

    columns: Columns

    def room(self, num_groups: int, width: int) -> Columns:
        """Allocate room for some groups."""
        runs, _, num_clients = self.columns.shape
        if self.columns.device.type != "cpu":
            width = 0  # A GPU's allocator has memory at hand.
        return self.columns.new_empty(runs, num_groups, width, num_clients)

    def products(self, index: Tensor, centre: Tensor) -> Callable[[], Pairs] | None:
        """Return a way to the Gram matrices of the groups that does not copy them, if there is."""
        if not cuda.can_multiply(self.columns, index):
            return None
        return lambda: cuda.grouped_gram(self.columns, index, centre)

    def take(self, index: Tensor, out: Columns) -> Columns:
        """Copy the coordinates `index` [runs, groups, width]."""
        if self.columns.device.type != "cpu":
            taken = [
                matrix.index_select(0, index[run % len(index)].reshape(-1))
                for run, matrix in enumerate(self.columns)
            ]
            return (taken[0].unsqueeze(0) if len(taken) == 1 else torch.stack(taken)).view(
                len(taken), *index.shape[1:], -1
            )
        for run, matrix in enumerate(self.columns):
            order, target = index[run % len(index)].reshape(-1), out[run].flatten(0, 1)
            source, where, room = matrix.numpy(), order.numpy(), target.numpy()

            def copy(
                piece: slice,
                source: np.ndarray = source,
                where: np.ndarray = where,
                room: np.ndarray = room,
            ) -> None:
                np.take(source, where[piece], axis=0, out=room[piece], mode="clip")

            in_pieces(copy, len(where), matrix.shape[-1])
        return out


def order_source(columns: Columns) -> ByClient | ByCoordinate:
    """Choose the way to read ``columns [runs, dim, clients]`` in a random order."""
    if columns.device.type == "cpu" and columns.shape[-1] <= FEW_CLIENTS:
        return ByClient(columns)
    return ByCoordinate(clients_last(columns))


def clients_last(columns: Columns) -> Columns:
    """Copy so that what all clients sent for one coordinate lies side by side."""
    work = work_dtype(columns.dtype)
    if columns.is_contiguous() and columns.dtype == work:
        return columns
    if cuda.is_usable(columns, columns.shape[-1]):
        return cuda.clients_last(columns)
    if columns.device.type != "cpu":
        return columns.to(work).contiguous()
    # numpy asks for large pages, which torch does not: page faults would double the time.
    target = np.empty(columns.shape, np.float64 if work == torch.float64 else np.float32)
    if columns.dtype != work:
        return torch.from_numpy(target).copy_(columns)
    for to, source in zip(target, columns.numpy(), strict=True):

        def turn(piece: slice, to: np.ndarray = to, source: np.ndarray = source) -> None:
            for start in range(piece.start, piece.stop, TURNED_AT_ONCE):
                part = slice(start, min(piece.stop, start + TURNED_AT_ONCE))
                to[part] = source[part]

        in_pieces(turn, *source.shape)
    return torch.from_numpy(target)
