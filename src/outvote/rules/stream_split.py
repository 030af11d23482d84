"""Which group each coordinate of a stream is in: the split that is drawn in memory."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from outvote.ops.keyed_order import LARGEST_IN_PARTS, draw_order
from outvote.rules.split import (
    BY_LAYER,
    Split,
    balanced_sizes,
    ceil_sizes,
    checked_sizes,
    groups_of_layers,
    note_of_layers,
)

if TYPE_CHECKING:
    from outvote.rules.rule import RoundInfo


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
    return StreamSplit(draw_order(dim, seed, largest=LARGEST_IN_PARTS).positions_between, starts)


def _by_layer_random(sizes: tuple[int, ...], num_groups: int, info: "RoundInfo") -> StreamSplit:
    stream = info.stream.fold_in("gas-split")
    layers = np.concatenate([[0], np.cumsum(sizes)])
    orders, starts = [], [np.zeros(1, np.int64)]
    for number, own in enumerate(groups_of_layers(sizes, num_groups)):
        (seed,) = stream.fold_in(f"layer-{number}").derived()
        orders.append(draw_order(sizes[number], seed, largest=LARGEST_IN_PARTS))
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
