"""Groups of coordinates: a random order (or their own) that is cut, read some groups at a time.

A random split depends on the seed and the number of coordinates alone: it is the same on every
device, in memory and in a stream. What is measured on groups is added up.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from math import ceil
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from outvote.axes import Columns, Pairs, PerClient, PerCoordinate
from outvote.errors import check_choice, check_kind
from outvote.ops.groups import (
    KeyedOrder,
    Sizes,
    TableOrder,
    are_sums_faster,
    draw_order,
    groups_at,
    in_order,
    pair_sums,
)
from outvote.ops.pairs import SHORTEST_NORM
from outvote.ops.process import free_cores, mapped, once
from outvote.rules.client_matrix import ClientMatrix
from outvote.rules.values import InMemory, Stream

if TYPE_CHECKING:
    from outvote.rules.rule import RoundInfo


SPLITS = ("balanced", "ceil", "contiguous", "by-layer", "by-layer-random")
BY_LAYER = SPLITS[3:]
"""Those that need the sizes of the layers."""

Measure = Callable[[ClientMatrix], PerClient]
Reduce = Callable[[Columns], PerCoordinate]

# The values of groups that one core works on, and of their n x n matrices, which are worked on in
# many small steps, each with its price.
VALUES_AT_ONCE = {"cpu": 1 << 22, "cuda": 1 << 28}
MATRICES_AT_ONCE = {"cpu": 1 << 19, "cuda": 1 << 26}
# Work on so many values takes long enough to end the threads of torch, which spin, before it.
MANY_VALUES = 1 << 22


def check_split(rule: Any, how: str, num_groups: int) -> None:
    """Raise unless gas can split so around a rule."""
    check_choice("gas: split", how, SPLITS)
    check_kind("gas: num_groups", num_groups, int)
    if num_groups < 1:
        raise ValueError(f"gas: num_groups must be at least 1, got {num_groups}.")
    while hasattr(rule, "rule"):
        inside = getattr(rule, "split", "")
        if inside in BY_LAYER:
            raise ValueError(
                f"gas: a gas(..., split={inside}) inside sees groups of coordinates, not "
                f"layers; use split={inside} in the outer gas, or another split inside."
            )
        rule = rule.rule


class LayeredOrder:
    """A random order within each layer; the layers stay one after the other."""

    def __init__(self, orders: Sequence[KeyedOrder | TableOrder], sizes: Sequence[int]) -> None:
        """Take the order of each layer, and its size."""
        self.orders = orders
        self.starts = np.concatenate([[0], np.cumsum(sizes)])

    def positions_between(self, start: int, stop: int) -> np.ndarray:
        """Return the positions of the coordinates from `start` up to, not with, `stop`."""
        found, number = [], int(np.searchsorted(self.starts, start, side="right")) - 1
        while start < stop:
            first, end = int(self.starts[number]), min(stop, int(self.starts[number + 1]))
            own = self.orders[number].positions_between(start - first, end - first)
            found.append(own.astype(np.int64) + first)
            start, number = end, number + 1
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def listed(self) -> TableOrder:
        """Return the same with a table of all positions."""
        return TableOrder.of(self.positions_between(0, int(self.starts[-1])))


@dataclass(frozen=True, slots=True)
class OwnOrder:
    """The coordinates as they are."""

    size: int

    def positions_between(self, start: int, stop: int) -> np.ndarray:
        """Return the coordinates from `start` up to, not with, `stop`."""
        return np.arange(start, stop)

    def listed(self) -> TableOrder:
        """Return the same with a table of all positions."""
        return TableOrder.of(np.arange(self.size))


Order = KeyedOrder | TableOrder | LayeredOrder | OwnOrder


@dataclass(frozen=True, slots=True)
class Split:
    """A partition of the coordinates: an order of every run that is cut into groups."""

    orders: Sequence[Order]
    """One, or one for every run."""
    starts: np.ndarray
    """Where each group starts in the order, and the end, ``[groups + 1]``."""
    note: str = ""
    """Where the number of groups is not what was asked for, and the caller may not expect it."""

    @property
    def num_groups(self) -> int:
        """How many groups there are."""
        return len(self.starts) - 1

    def listed_orders(self) -> list[KeyedOrder | TableOrder]:
        """Return the orders, those of neighbours as tables of all positions."""
        orders: list[KeyedOrder | TableOrder] = []
        for order in self.orders:
            if isinstance(order, KeyedOrder | TableOrder):
                orders.append(order)
            else:
                orders.append(order.listed())
        return orders

    @property
    def largest_width(self) -> int:
        """How many coordinates the largest group has."""
        return int(np.diff(self.starts).max())

    @property
    def blocks(self) -> list[tuple[int, int, int]]:
        """The first group, the one after the last, and the width of groups of one width."""
        widths = np.diff(self.starts)
        cuts = [0, *(np.flatnonzero(np.diff(widths)) + 1).tolist(), len(widths)]
        firsts, lasts = cuts[:-1], cuts[1:]
        return list(zip(firsts, lasts, widths[firsts].tolist(), strict=True))

    @property
    def sizes(self) -> Sizes | None:
        """The number and width of the first groups and of the others; None: widths differ more."""
        blocks = self.blocks
        if len(blocks) > 2:
            return None
        (_, num_first, first), (_, end, second) = blocks[0], blocks[-1]
        return num_first, first, end - num_first, second

    def groups_between(self, start: int, stop: int) -> np.ndarray:
        """Return the group of each coordinate from `start` to `stop`, in the one run."""
        positions = self.orders[0].positions_between(start, stop)
        sizes = self.sizes
        if sizes is not None:  # Divisions instead of a search.
            return groups_at(positions, sizes)
        groups: np.ndarray = np.searchsorted(self.starts[1:], positions, side="right")
        return groups


def draw_split(dim: int, how: str, num_groups: int, info: "RoundInfo") -> Split:
    """Cut a random order of the coordinates (or their own order) into groups."""
    num_groups = min(num_groups, dim)
    if how in BY_LAYER:
        sizes = checked_sizes(how, info.layer_sizes, dim)
        if how == "by-layer":
            return Split([OwnOrder(dim)], np.concatenate([[0], np.cumsum(sizes)]))
        return by_layer_random(sizes, num_groups, info)
    starts = starts_of(*(ceil_sizes if how == "ceil" else balanced_sizes)(dim, num_groups))
    if how == "contiguous":
        return Split([OwnOrder(dim)], starts)
    seeds = info.stream.fold_in("gas-split").derived()
    return Split(list(map(partial(_drawn, dim), seeds)), starts)


def explicit_split(groups: Sequence[Sequence[int]], dim: int) -> Split:
    """Check a partition given by the caller."""
    try:
        arrays = [np.asarray(group) for group in groups]
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"groups must be a list of lists of coordinate indices, got {type(groups).__name__}: "
            f"{error}"
        ) from error
    if not arrays or any(array.ndim != 1 or array.size == 0 for array in arrays):
        raise ValueError(
            "groups must be non-empty lists of coordinate indices, got an empty or nested group."
        )
    if any(array.dtype.kind not in "iu" for array in arrays):
        raise TypeError("groups must hold integers (coordinate indices).")
    arrays.sort(key=len)
    flat = np.concatenate(arrays)
    if flat.size != dim or not np.array_equal(np.sort(flat), np.arange(dim)):
        raise ValueError(
            f"groups must hold each of the {dim} coordinates 0..{dim - 1} exactly once, got "
            f"{flat.size} indices, {len(np.unique(flat))} different, from {flat.min()} to "
            f"{flat.max()}; take the overlap out or add what is missing."
        )
    positions = np.empty(dim, np.int32)
    positions[flat] = np.arange(dim, dtype=np.int32)
    starts = np.concatenate([[0], np.cumsum([len(array) for array in arrays])])
    return Split([TableOrder.of(positions)], starts)


class Groups:
    """The coordinates of a matrix in groups."""

    def __init__(self, matrix: ClientMatrix, split: Split, num_asked: int) -> None:
        """Take the matrix, its split, and how many groups were asked for."""
        self.matrix, self.split, self.num_asked = matrix, split, num_asked
        self.num_groups = len(split.starts) - 1
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
        return total if self.matrix.originals is None else self.matrix.same_for_copies(total)

    def chunks(self, *, distances_do: bool = False) -> Iterator[ClientMatrix]:
        """Yield the groups as matrices ``[runs, groups, width, clients]``, some at a time.

        `distances_do`: the caller needs only the distances. Then no values are read if the
        distances can be worked out without them.
        """
        matrix = self.matrix
        distances = self._pair_sums() if distances_do else None
        if distances is None:
            _ = self.columns_in_order  # By all cores, before each of them asks for some.
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
        matrix, sizes = self.matrix, self.split.sizes
        orders = [order for order in self.split.orders if isinstance(order, KeyedOrder)]
        is_random = len(orders) == len(self.split.orders)
        if len(matrix.batch) > 1 or not is_random or sizes is None:
            return None
        if not are_sums_faster(matrix.rows, self.num_groups):
            return None
        found = pair_sums(matrix.rows, orders, sizes)
        largest = found.amax(dim=(-2, -1))
        is_fine = bool((largest >= SHORTEST_NORM).all() and (largest < torch.inf).all())
        return found if is_fine else None

    def _read(self, start: int, stop: int, width: int) -> Columns:
        """Return the values of some groups of one width."""
        first = int(self.split.starts[start])
        some = self.columns_in_order[..., first : first + (stop - start) * width, :]
        groups: Tensor = some.unflatten(-2, (stop - start, width))
        return groups

    @once
    def columns_in_order(self) -> Columns:
        """All values in the order of the groups."""
        columns = self.matrix.columns
        if isinstance(self.split.orders[0], OwnOrder):
            return columns
        orders = self.split.listed_orders()
        if len(self.matrix.batch) == 1:
            return in_order(columns.mT, orders)
        # What is split is itself a group: the same positions in every group of a run.
        index = torch.stack([order.index(columns.device) for order in orders]).long()
        return self.matrix.values.at(index.expand(len(columns), -1))


# Once: runs that differ in the rule alone have the same seed in a round.
_drawn = lru_cache(maxsize=256)(draw_order)


def balanced_sizes(dim: int, num_groups: int) -> tuple[int, int, int, int]:
    """Return (number, width) of the larger groups, then of the smaller: exactly `num_groups`."""
    width, num_large = divmod(dim, num_groups)
    return num_large, width + 1, num_groups - num_large, width


def ceil_sizes(dim: int, num_groups: int) -> tuple[int, int, int, int]:
    """Return (number, width) of full groups of ``ceil(dim / num_groups)``, then of the rest.

    There can be far fewer than `num_groups` (as in the code that the authors released).
    """
    width = ceil(dim / num_groups)
    num_full, rest = divmod(dim, width)
    return num_full, width, int(rest > 0), rest


def starts_of(num_first: int, first: int, num_second: int, second: int) -> np.ndarray:
    """Return where groups of two widths start, and the end."""
    widths = np.full(num_first + num_second, second, np.int64)
    widths[:num_first] = first
    return np.concatenate([[0], widths.cumsum()])


def checked_sizes(how: str, sizes: tuple[int, ...] | None, dim: int) -> tuple[int, ...]:
    """Return the sizes of the layers, empty ones left out; raise unless they are known."""
    if sizes is None or sum(sizes) != dim:
        got = "none" if sizes is None else f"sizes of {sum(sizes)} coordinates for {dim}"
        raise ValueError(
            f"split='{how}' needs the sizes of the layers, got {got}; pass gradients with "
            "names (a list of dicts of arrays), layer_sizes=, or split='balanced'."
        )
    return tuple(size for size in sizes if size)


def by_layer_random(sizes: tuple[int, ...], num_groups: int, info: "RoundInfo") -> Split:
    """Cut a random order of each layer's coordinates into groups: none crosses two layers."""
    stream = info.stream.fold_in("gas-split")
    shares = groups_of_layers(sizes, num_groups)
    seeds = [stream.fold_in(f"layer-{number}").derived() for number in range(len(sizes))]
    orders = [
        LayeredOrder(
            [draw_order(*each) for each in zip(sizes, own, strict=True)],
            sizes,
        )
        for own in zip(*seeds, strict=True)
    ]
    ends, first = [np.zeros(1, np.int64)], 0
    for size, own in zip(sizes, shares, strict=True):
        ends.append(first + starts_of(*balanced_sizes(size, own))[1:])
        first += size
    note = ""
    if num_groups < len(sizes):
        note = (
            f"gas: num_groups={num_groups} is fewer than the {len(sizes)} layers; used {len(sizes)}"
        )
    return Split(orders, np.concatenate(ends), note)


@lru_cache(maxsize=256)  # The same in every round.
def groups_of_layers(sizes: tuple[int, ...], num_groups: int) -> tuple[int, ...]:
    """Return how many of the groups each layer has: at least one, and widths as equal as can be.

    Layers that are narrower than a group have one. The others share the rest in proportion to their
    sizes, rounded down, and what is left goes, one by one, to where groups are widest.
    """
    found = [1] * len(sizes)
    wide = list(range(len(sizes)))
    while True:
        left = num_groups - (len(sizes) - len(wide))
        total = sum(sizes[k] for k in wide)
        narrow = [k for k in wide if sizes[k] * left <= total]
        if not narrow or len(narrow) == len(wide):
            break
        wide = [k for k in wide if k not in narrow]
    if left <= len(wide):
        return tuple(found)
    for k in wide:
        found[k] = max(1, sizes[k] * left // total)
    for _ in range(num_groups - sum(found)):
        found[max(wide, key=lambda k: (sizes[k] / found[k], -k))] += 1
    return tuple(found)
