"""The groups of a stream: sums group by group, while coordinates come in the order of the files.

Inner products and squared distances are added up in one pass; a rule that needs the values of
groups gets as many at a time as fit the memory.
"""

from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outvote.axes import Columns, PerClient
from outvote.ops.process import CPU, exact_products
from outvote.rules.client_matrix import ClientMatrix
from outvote.rules.groups import Groups, Measure, OwnOrder, Reduce, Split
from outvote.rules.values import InMemory, Stream

# A tile of so many values is put in the order of the groups by one core.
TILE_VALUES = 1 << 22
# Longer sums over a group are rounded too often in float32; those of parts are added in float64.
SUMMED_AT_ONCE = 2500
# What is read of groups is copied, sorted and subtracted from: so many times its size.
NUM_COPIES = 4

Rows = Tensor
"""Values ``[clients, coordinates]``."""


class StreamedGroups(Groups):
    """The coordinates of a stream in groups."""

    def total(
        self, measure: Measure, *, needs_values: bool | None = True, reduce: Reduce | None = None
    ) -> PerClient:
        """Return the sum over all groups, see `Groups`."""
        matrix = self.matrix
        num_clients, width = matrix.num_clients, self.split.largest_width
        with exact_products(CPU):
            if reduce is not None and self._fits(num_clients):
                to_result = partial(self._squares_to_result, reduce)
                squared = self._added_up(to_result, _sums, (num_clients,))
                total = squared.sqrt().sum(dim=0).unsqueeze(0)
                return matrix.same_for_copies(total)
            products = None
            if needs_values is False and width > num_clients and self._fits(num_clients**2):
                shape = (num_clients, num_clients)
                products = self._added_up(self._centred, _products, shape)
            parts = []
            for first, last, width in self.split.blocks:
                step = self._at_once(width)
                for start in range(first, last, step):
                    some = (start, min(last, start + step), width)
                    parts.append(self._of_some(measure, some, products))
            return matrix.same_for_copies(torch.stack(parts).sum(dim=0))

    @property
    def _stream(self) -> Stream:
        stream = self.matrix.values
        assert isinstance(stream, Stream)
        return stream

    def _fits(self, numbers_per_group: int) -> bool:
        return 8 * self.num_groups * numbers_per_group <= self._stream.max_bytes

    def _at_once(self, width: int) -> int:
        """Return how many groups fit the memory, with their values and n x n matrices."""
        num_clients = self.matrix.num_clients
        values = width * num_clients * self.matrix.work_dtype.itemsize * NUM_COPIES
        return max(1, self._stream.max_bytes // (values + 40 * num_clients**2))

    # Sums in the order of the files.

    def _added_up(
        self,
        prepare: Callable[[Rows], tuple[Rows, Tensor]],
        finish: Callable[[Tensor], Tensor],
        shape: tuple[int, ...],
    ) -> Tensor:
        """Return the sums over every group, ``[groups, *shape]``.

        Less a vector, the values of some coordinates of a group, ``[parts, clients, width]``, have
        the sums that `finish` returns; `prepare` returns the values and the vector.
        """
        total = torch.zeros(self.num_groups, *shape, dtype=torch.float64)
        stream, lock = self._stream, Lock()

        def add(read: Columns, index: slice) -> None:
            values, middle = prepare(stream.change(read, index)[0].mT)
            apart = values.new_zeros(len(values), values.shape[1] + 1)
            torch.sub(values, middle, out=apart[:, :-1])
            order, owner = parts_of(self.split.groups_between(index.start, index.stop))
            parts = apart.index_select(1, order.flatten()).unflatten(1, order.shape)
            found = finish(parts.transpose(0, 1)).double()
            with lock:
                total.index_add_(0, owner, found)

        for _ in stream.over_tiles(add, TILE_VALUES):
            pass
        return stream.everywhere(total)

    def _widened(self, rows: Rows) -> Rows:
        return rows.double() if self.matrix.is_wide else rows.to(self.matrix.work_dtype)

    def _centred(self, rows: Rows) -> tuple[Rows, Tensor]:
        values = self._widened(rows)
        return values, values[int(self.matrix.centre)]

    def _squares_to_result(self, reduce: Reduce, rows: Rows) -> tuple[Rows, Tensor]:
        middle = reduce(rows.mT.unsqueeze(0))[0]
        if not bool(middle.isfinite().all()):
            raise ValueError("a rule gave NaN or infinity for finite gradients; mend the rule.")
        values = self._widened(rows)
        return values, middle.to(values)

    # Groups that are read.

    def _of_some(
        self, measure: Measure, some: tuple[int, int, int], products: Tensor | None
    ) -> PerClient:
        """Measure groups of one width; their values are read when they are needed."""
        matrix, (first, last, width) = self.matrix, some
        known: dict[str, Any] = {
            "centre": matrix.centre,
            "originals": matrix.originals,
            "is_wide": matrix.is_wide,
            "largest_norm": matrix.largest_norm,
        }
        if products is None:
            values = InMemory(self._read_values(first, last).mT.unsqueeze(0))
            starts = self.split.starts[first : last + 1] - self.split.starts[first]
            split = Split([OwnOrder(values.shape[-2])], starts)
            return Groups(ClientMatrix(values, **known), split, 0).total(measure)
        own = products[first:last].unsqueeze(0)
        shape = torch.Size([1, last - first, width, matrix.num_clients])
        return measure(
            ClientMatrix(
                InMemory(partial(self._values, first, last), shape, matrix.work_dtype),
                products=lambda: own,
                **known,
            )
        )

    def _values(self, first: int, last: int) -> Columns:
        rows: Rows = self._read_values(first, last).unflatten(1, (last - first, -1))
        return rows.permute(1, 2, 0).unsqueeze(0)

    def _read_values(self, first: int, last: int) -> Rows:
        """Read some groups in one pass, ``[clients, groups * width]``."""
        start, stop = int(self.split.starts[first]), int(self.split.starts[last])
        stream, order = self._stream, self.split.orders[0]
        result = torch.zeros(self.matrix.num_clients, stop - start, dtype=self.matrix.work_dtype)

        def put(read: Columns, index: slice) -> None:
            positions = order.positions_between(index.start, index.stop)
            where = np.flatnonzero((positions >= start) & (positions < stop))
            target = positions[where] - start
            for own, values in zip(result.numpy(), stream.change(read, index)[0].mT, strict=True):
                own[target] = values.numpy().take(where)

        for _ in stream.over_tiles(put, TILE_VALUES):
            pass
        return stream.everywhere(result)


def _products(parts: Tensor) -> Tensor:
    return torch.matmul(parts, parts.mT)


def _sums(parts: Tensor) -> Tensor:
    return parts.square_().sum(dim=-1)


def parts_of(groups: np.ndarray) -> tuple[Tensor, Tensor]:
    """Cut coordinates whose groups are given into parts: of one group each, and of one width.

    Return the coordinates of every part, ``[parts, width]``, filled up with the coordinate behind
    the last, and the group of every part. A group that is about as wide as the others is one part.
    """
    first = int(groups.min()) if len(groups) else 0
    own = groups - first
    counts = np.bincount(own, minlength=1)
    # Short keys are sorted by their digits, without comparisons.
    order = np.argsort(own.astype(np.uint16) if len(counts) <= 1 << 16 else own, kind="stable")
    usual = 2 * len(own) // len(counts) + 64
    width = max(1, min(int(counts.max()), usual, SUMMED_AT_ONCE))
    num_parts = -(-counts // width)
    # A coordinate is behind the first position of its group's first part by its rank in the group.
    skipped = (num_parts.cumsum() - num_parts) * width - (counts.cumsum() - counts)
    index = np.full(int(num_parts.sum()) * width, len(own))
    index[np.arange(len(own)) + np.repeat(skipped, counts)] = order
    owner = np.repeat(np.arange(first, first + len(counts)), num_parts)
    return torch.from_numpy(index).view(-1, width), torch.from_numpy(owner)
