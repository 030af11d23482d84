"""Groups of coordinates: read some at a time, and what is measured on them added up."""

from collections.abc import Callable, Iterator
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from outvote.axes import Columns, Pairs, PerClient, PerCoordinate
from outvote.ops.groups import are_sums_faster, in_order, pair_sums
from outvote.ops.keyed_order import KeyedOrder, SortedOrder
from outvote.ops.threads import free_cores, mapped, once
from outvote.rules.client_matrix import ClientMatrix
from outvote.rules.split import OwnOrder, Split, draw_split
from outvote.rules.values import InMemory, Stream

if TYPE_CHECKING:
    from outvote.rules.rule import RoundInfo

Measure = Callable[[ClientMatrix], PerClient]
Reduce = Callable[[Columns], PerCoordinate]

# The values of groups that one core works on, and of their n x n matrices, which are worked on in
# many small steps, each with its price.
VALUES_AT_ONCE = {"cpu": 1 << 22, "cuda": 1 << 28}
MATRICES_AT_ONCE = {"cpu": 1 << 19, "cuda": 1 << 26}
# Work on so many values takes long enough to end the threads of torch, which spin, before it.
MANY_VALUES = 1 << 22
# Squared distances below this have lost digits.
SHORTEST_NORM = 1e-30


class Groups:
    """The coordinates of a matrix in groups."""

    def __init__(self, matrix: ClientMatrix, split: Split, num_asked: int) -> None:
        """Take the matrix, its split, and how many groups were asked for."""
        self.matrix, self.split, self.num_asked = matrix, split, num_asked
        self.lock = Lock()

    @classmethod
    def of(cls, matrix: ClientMatrix, how: str, num_groups: int, info: "RoundInfo") -> "Groups":
        """Split a matrix."""
        split = info.split or draw_split(matrix.dim, how, num_groups, info)
        if isinstance(matrix.values, Stream):
            from outvote.rules.streamed_groups import StreamedGroups  # seldom needed

            return StreamedGroups(matrix, split, num_groups)
        if matrix.device.type == "cpu" and matrix.shape.numel() >= MANY_VALUES:
            free_cores()
        return cls(matrix, split, num_groups)

    @property
    def num_groups(self) -> int:
        """How many groups there are."""
        return self.split.num_groups

    @property
    def notes(self) -> tuple[str, ...]:
        """Whether the number of groups is not what was asked for."""
        dim = self.matrix.dim
        if self.split.note:
            return (self.split.note,)
        if self.num_asked <= dim or self.num_groups != dim:
            return ()
        return (f"gas: num_groups={self.num_asked} is more than the {dim} coordinates; used {dim}",)

    def total(
        self, measure: Measure, *, needs_values: bool | None = True, reduce: Reduce | None = None
    ) -> PerClient:
        """Return the sum over all groups of ``measure(groups) [runs, clients]``, a sum over some.

        `needs_values`: whether it needs the values of the groups, not only distances. `reduce`:
        what it measures distances to, if that is worked out coordinate by coordinate.
        """
        del reduce  # The groups are read anyway.
        parts = mapped(measure, self.chunks(distances_do=needs_values is False), self.matrix.device)
        wanted = [*self.matrix.batch, self.matrix.num_clients]
        if list(parts[0].shape) != wanted:
            raise ValueError(
                f"what is measured on groups must be added up over them, {wanted}, got "
                f"{list(parts[0].shape)}; return matrix.total_distances_to(aggregation)."
            )
        total = parts[0] if len(parts) == 1 else torch.stack(parts).sum(dim=0)
        return self.matrix.same_for_copies(total)

    def chunks(self, *, distances_do: bool = False) -> Iterator[ClientMatrix]:
        """Yield the groups as matrices ``[runs, groups, width, clients]``, some at a time.

        `distances_do`: no value of a group need be read where its distances are known otherwise.
        """
        matrix = self.matrix
        distances = self._pair_sums() if distances_do else None
        if distances is None:
            _ = self.values  # By all cores, before each of them asks for some.
        for first, last, width in self.split.blocks:
            step = self._at_once(width)
            for start in range(first, last, step):
                stop = min(last, start + step)
                shape = torch.Size([*matrix.batch, stop - start, width, matrix.num_clients])
                read = partial(self._read, start, stop, width)
                yield ClientMatrix(
                    InMemory(read, shape, matrix.values.dtype, matrix.device),
                    centre=matrix.centre,
                    squared_distances=None if distances is None else distances[:, start:stop],
                    originals=matrix.originals,
                    is_wide=matrix.is_wide,
                    largest_norm=matrix.largest_norm,
                )

    def _at_once(self, width: int) -> int:
        """Return how many groups are worked on at once, with their n x n matrices."""
        num_clients, kind = self.matrix.num_clients, self.matrix.device.type
        matrices = MATRICES_AT_ONCE.get(kind, 1 << 26) // num_clients**2
        values = VALUES_AT_ONCE.get(kind, 1 << 28) // (num_clients * width)
        return max(1, min(matrices, values) // self.matrix.batch.numel())

    def _pair_sums(self) -> Pairs | None:
        """Return the squared distances in all groups, where no group need be read for them."""
        matrix, blocks = self.matrix, self.split.blocks
        orders = [order for order in self.split.orders if isinstance(order, KeyedOrder)]
        is_random = len(orders) == len(self.split.orders) and len(blocks) <= 2
        if len(matrix.batch) > 1 or not is_random:
            return None
        if not are_sums_faster(matrix.rows, self.num_groups):
            return None
        (_, num_large, large), (_, end, small) = blocks[0], blocks[-1]
        found = pair_sums(matrix.rows, orders, (num_large, large, end - num_large, small))
        largest = found.amax(dim=(-2, -1))
        is_fine = bool((largest >= SHORTEST_NORM).all() and (largest < torch.inf).all())
        return found if is_fine else None

    def _read(self, start: int, stop: int, width: int) -> Columns:
        """Return the values of some groups of one width."""
        first = int(self.split.starts[start])
        some = self.values[..., first : first + (stop - start) * width, :]
        groups: Tensor = some.unflatten(-2, (stop - start, width))
        return groups

    @once
    def values(self) -> Columns:
        """All values in the order of the groups."""
        columns = self.matrix.columns
        if isinstance(self.split.orders[0], OwnOrder):
            return columns
        orders = [
            order if isinstance(order, KeyedOrder | SortedOrder) else order.listed()
            for order in self.split.orders
        ]
        if len(self.matrix.batch) == 1:
            return in_order(columns.mT, orders)
        # What is split is itself a group: the same positions in every group of a run.
        index = torch.stack([order.index(columns.device) for order in orders]).long()
        return self.matrix.values.at(index.expand(len(columns), -1))
