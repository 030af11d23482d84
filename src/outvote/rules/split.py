"""Splits of the coordinates into groups: a random order (or their own) that is cut.

A random split depends on the seed and the number of coordinates alone: it is the same on every
device, in memory and in a stream (see `ops.keyed_order`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from outvote.errors import check_choice, check_kind
from outvote.ops.keyed_order import LARGEST_IN_PARTS, KeyedOrder, SortedOrder, draw_order

if TYPE_CHECKING:
    from outvote.rules.rule import RoundInfo

SPLITS = ("balanced", "ceil", "contiguous", "by-layer", "by-layer-random")
BY_LAYER = SPLITS[3:]
"""Those that need the sizes of the layers."""


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

    def __init__(self, orders: Sequence[KeyedOrder | SortedOrder], sizes: Sequence[int]) -> None:
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

    def listed(self) -> SortedOrder:
        """Return the same with a table of all positions."""
        return listed(self.positions_between(0, int(self.starts[-1])))


def listed(positions: np.ndarray) -> SortedOrder:
    """Return the order with these positions."""
    return SortedOrder(torch.from_numpy(positions.astype(np.int32)))


@dataclass(frozen=True, slots=True)
class OwnOrder:
    """The coordinates as they are."""

    size: int

    def positions_between(self, start: int, stop: int) -> np.ndarray:
        """Return the coordinates from `start` up to, not with, `stop`."""
        return np.arange(start, stop)

    def listed(self) -> SortedOrder:
        """Return the same with a table of all positions."""
        return listed(np.arange(self.size))


Order = KeyedOrder | SortedOrder | LayeredOrder | OwnOrder


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

    @property
    def largest_width(self) -> int:
        """How many coordinates the largest group has."""
        return int(np.diff(self.starts).max())

    @property
    def blocks(self) -> list[tuple[int, int, int]]:
        """The first group, the one after the last, and the width of groups of one width."""
        widths = np.diff(self.starts)
        cuts = [0, *(np.flatnonzero(np.diff(widths)) + 1).tolist(), len(widths)]
        return [(first, last, int(widths[first])) for first, last in pairwise(cuts)]

    def groups_between(self, start: int, stop: int) -> np.ndarray:
        """Return the group of each coordinate from `start` to `stop`, in the one run."""
        positions = self.orders[0].positions_between(start, stop)
        blocks = self.blocks
        if len(blocks) > 2:
            found: np.ndarray = np.searchsorted(self.starts[1:], positions, side="right")
            return found
        # Divisions instead of a search: the groups of one width, then those of the other.
        groups: np.ndarray = positions // positions.dtype.type(blocks[0][2])
        for first, _, width in blocks[1:]:
            end = int(self.starts[first])
            is_after = positions >= end
            groups[is_after] = first + (positions[is_after] - end) // width
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
    return Split(draw_orders(dim, info), starts)


def draw_orders(dim: int, info: "RoundInfo") -> list[Order]:
    """Draw the random order of the coordinates of every run."""
    return [_drawn(dim, seed) for seed in info.stream.fold_in("gas-split").derived()]


@lru_cache(maxsize=256)
def _drawn(dim: int, seed: int) -> Order:
    """Draw an order once: runs that differ in the rule alone have the same seed in a round."""
    return draw_order(dim, seed, largest=LARGEST_IN_PARTS)


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
    return Split([listed(positions)], starts)


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
            [draw_order(*each, largest=LARGEST_IN_PARTS) for each in zip(sizes, own, strict=True)],
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
