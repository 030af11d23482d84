"""Splits of the coordinates into groups.

A split holds blocks of groups, ``[runs, groups, width]`` coordinates, one block per width, so that
groups of one width are computed together. A random split depends on the seed and the number of
coordinates alone: it is the same on every device (see `keyed_order`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from outvote.errors import check_choice, check_kind
from outvote.lazy import lazy
from outvote.ops import client_kernels
from outvote.ops.client_kernels import Positions
from outvote.ops.keyed_order import KeyedOrder, SortedOrder, draw_order
from outvote.seeding import RandomStream

if TYPE_CHECKING:
    from outvote.axes import Columns
    from outvote.rules.client_matrix import ClientMatrix
    from outvote.rules.rule import RoundInfo

SPLITS = ("balanced", "ceil", "contiguous", "by-layer", "by-layer-random")
RANDOM = SPLITS[:2]
"""Those that cut one random order of all coordinates."""
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


class IndexBlock:
    """Groups of coordinates of one width: ``index [runs, groups, width]``."""

    def __init__(
        self, index: Tensor | Callable[[], Tensor], shape: torch.Size | None = None
    ) -> None:
        """Take the coordinates, or a way to get them and the shape that they will have."""
        self._index = index
        self.shape = index.shape if isinstance(index, Tensor) else torch.Size(shape or ())

    @lazy
    def index(self) -> Tensor:
        """The coordinates of the groups."""
        return self._index if isinstance(self._index, Tensor) else self._index()

    @property
    def widths(self) -> tuple[tuple[int, int, int], ...]:
        """The first group of each width, the one after the last, and the width."""
        return ((0, *self.shape[1:]),)

    def positions(self, run: int, dim: int) -> Positions:
        """Return the position of each coordinate, counted over the groups (-1: none), no gaps."""
        index = self.index[run % len(self.index)].reshape(-1)
        position = torch.full((dim,), -1, dtype=torch.int32, device=index.device)
        position[index.long()] = torch.arange(len(index), dtype=torch.int32, device=index.device)
        return Positions(position, dim, 1)


class PositionBlock:
    """A balanced random split, given by orders from which a kernel works out positions.

    Groups are as wide as the largest; the last position of the smaller ones stays empty.
    """

    def __init__(
        self,
        orders: Sequence[SortedOrder | KeyedOrder],
        sizes: tuple[int, int, int, int],
        device: torch.device,
    ) -> None:
        """Take a random order for every run, and the sizes of the groups."""
        self.orders = orders
        self.tables = [table_on(order, device) for order in orders]
        self.num_large, large, self.num_small, small = sizes
        self.width = large if self.num_large else small
        self.small = small
        self.shape = torch.Size([len(orders), self.num_large + self.num_small, self.width])

    def positions(self, run: int, dim: int) -> Positions:
        """Return the position of each coordinate if none stayed empty, and where gaps come in."""
        run %= len(self.orders)
        return Positions(self.tables[run], self._end(dim), self.small, self.orders[run].num_columns)

    def _end(self, dim: int) -> int:
        is_mixed = self.num_large > 0 and self.num_small > 0
        return self.num_large * self.width if is_mixed else dim

    @property
    def widths(self) -> tuple[tuple[int, int, int], ...]:
        """The first group of each width, the one after the last, and the width."""
        num_groups = self.shape[1]
        if not 0 < self.num_large < num_groups:
            return ((0, num_groups, self.width),)
        return (0, self.num_large, self.width), (self.num_large, num_groups, self.small)

    @property
    def index(self) -> Tensor:
        """The coordinates of the groups, -1 for an empty position."""
        runs, num_groups, width = self.shape
        index = self.tables[0].new_full((runs, num_groups * width), -1)
        for run, order in enumerate(self.orders):
            position = order.positions(index.device)
            gaps = (position - self._end(len(position))).clamp(min=0) // self.small
            coordinates = torch.arange(len(position), dtype=index.dtype, device=index.device)
            index[run, (position + gaps).long()] = coordinates
        return index.view(self.shape)


def table_on(order: SortedOrder | KeyedOrder, device: torch.device) -> Tensor:
    """Bring the table of an order to a device; a GPU draws a keyed one itself."""
    if isinstance(order, KeyedOrder):
        shape = (order.num_rounds, order.num_columns)
        table = torch.empty(shape, dtype=torch.int32, device=device)
        if client_kernels.can_draw(table):
            client_kernels.draw_shifts(order.seed, order.num_rows, table)
            return table
    return order.table.to(device, non_blocking=True)


class RandomCut(NamedTuple):
    """Random orders of the coordinates, and the sizes of the groups that they are cut into."""

    orders: Sequence[SortedOrder | KeyedOrder]
    sizes: tuple[int, int, int, int]

    @property
    def num_groups(self) -> int:
        """How many groups there are."""
        return self.sizes[0] + self.sizes[2]

    def groups_between(self, run: int, start: int, stop: int) -> np.ndarray:
        """Return the group of each coordinate from `start` up to, not with, `stop`."""
        order = self.orders[run % len(self.orders)]
        return groups_at(order.positions_between(start, stop), self.sizes)


@dataclass(frozen=True, slots=True)
class Split:
    """A partition of the coordinates of every run."""

    blocks: tuple[IndexBlock | PositionBlock, ...]
    note: str = ""
    """Where the number of groups is not what was asked for, and the caller may not expect it."""
    random_cut: RandomCut | None = None
    """What the blocks were made from, if that was one random order of all coordinates and their
    index is not listed yet."""

    @property
    def num_groups(self) -> int:
        """How many groups there are."""
        return sum(block.shape[1] for block in self.blocks)

    @property
    def largest_width(self) -> int:
        """How many coordinates the largest group has."""
        return max(block.shape[-1] for block in self.blocks)


def draw_split(matrix: "ClientMatrix", how: str, num_groups: int, info: "RoundInfo") -> Split:
    """Cut a random order of the coordinates (or their own order) into groups."""
    num_groups = min(num_groups, matrix.dim)
    if how in BY_LAYER:
        sizes = checked_sizes(how, info.layer_sizes, matrix.dim)
        if how == "by-layer":
            return by_layer(sizes, matrix.dim, matrix.device)
        return by_layer_random(sizes, num_groups, info, matrix.device)
    if how == "contiguous":
        order = torch.arange(matrix.dim, device=matrix.device).unsqueeze(0)
        return cut(order, balanced_sizes(matrix.dim, num_groups))
    if (
        how == "balanced"
        and matrix.device.type != "cpu"
        and len(matrix.batch) == 1
        and client_kernels.is_usable(matrix.columns, matrix.num_clients)
    ):
        return scattered_split(matrix.columns, num_groups, info.stream)
    sizes = (ceil_sizes if how == "ceil" else balanced_sizes)(matrix.dim, num_groups)
    return _cut_later(draw_orders(matrix.dim, info.stream), sizes, matrix.device)


def scattered_split(columns: "Columns", num_groups: int, stream: RandomStream) -> Split:
    """Cut a random order into groups for a GPU, which writes at random faster than it reads."""
    dim = columns.shape[-2]
    sizes = balanced_sizes(dim, min(num_groups, dim))
    return Split((PositionBlock(draw_orders(dim, stream), sizes, columns.device),))


def draw_orders(dim: int, stream: RandomStream) -> list[SortedOrder | KeyedOrder]:
    """Draw the random order of the coordinates of every run."""
    return [_drawn(dim, seed) for seed in stream.fold_in("gas-split").derived()]


# Runs that differ in the rule alone have the same seed, and draw the same order in a round.
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


def cut(order: Tensor, sizes: tuple[int, int, int, int]) -> Split:
    """Cut an order of the coordinates ``[runs, dim]`` into consecutive groups."""
    num_first, first, num_second, second = sizes
    end = num_first * first
    blocks = []
    if num_first:
        blocks.append(IndexBlock(order[:, :end].view(len(order), num_first, first)))
    if num_second:
        blocks.append(IndexBlock(order[:, end:].view(len(order), num_second, second)))
    return Split(tuple(blocks))


def _cut_later(
    orders: Sequence[SortedOrder | KeyedOrder],
    sizes: tuple[int, int, int, int],
    device: torch.device,
) -> Split:
    """Cut random orders, which are listed when a block is first asked for its coordinates."""

    @lru_cache(maxsize=1)
    def listed() -> Split:
        index = [order.index(device) for order in orders]
        return cut(index[0].unsqueeze(0) if len(index) == 1 else torch.stack(index), sizes)

    shapes = [torch.Size([len(orders), *size]) for size in (sizes[:2], sizes[2:]) if size[0]]
    blocks = [
        IndexBlock(lambda k=k: listed().blocks[k].index, shape)  # type: ignore[misc]
        for k, shape in enumerate(shapes)
    ]
    return Split(tuple(blocks), random_cut=RandomCut(orders, sizes))


def groups_at(positions: np.ndarray, sizes: tuple[int, int, int, int]) -> np.ndarray:
    """Return the group of each position of an order that is cut so."""
    num_first, first, num_second, second = sizes
    groups: np.ndarray = positions // first
    if num_second:
        # The second groups are narrower: among the first this is too low, and then the other is.
        after = positions - num_first * first
        after //= second
        after += num_first
        np.maximum(groups, after, out=groups)
    return groups


def explicit_split(groups: Sequence[Sequence[int]], dim: int, device: torch.device) -> Split:
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
    flat = np.concatenate(arrays)
    if flat.size != dim or not np.array_equal(np.sort(flat), np.arange(dim)):
        raise ValueError(
            f"groups must hold each of the {dim} coordinates 0..{dim - 1} exactly once, got "
            f"{flat.size} indices, {len(np.unique(flat))} different, from {flat.min()} to "
            f"{flat.max()}; take the overlap out or add what is missing."
        )
    by_width: dict[int, list[np.ndarray]] = {}
    for array in arrays:
        by_width.setdefault(array.size, []).append(array)
    stacks = [torch.from_numpy(np.stack(same)).to(device) for same in by_width.values()]
    return Split(tuple(IndexBlock(stack.unsqueeze(0)) for stack in stacks))


def checked_sizes(how: str, sizes: tuple[int, ...] | None, dim: int) -> tuple[int, ...]:
    """Return the sizes of the layers, empty ones left out; raise unless they are known."""
    if sizes is None or sum(sizes) != dim:
        got = "none" if sizes is None else f"sizes of {sum(sizes)} coordinates for {dim}"
        raise ValueError(
            f"split='{how}' needs the sizes of the layers, got {got}; pass gradients with "
            "names (a list of dicts of arrays), layer_sizes=, or split='balanced'."
        )
    return tuple(size for size in sizes if size)


def by_layer(sizes: Sequence[int], dim: int, device: torch.device) -> Split:
    """Return one group for each layer."""
    groups = torch.arange(dim, device=device).split(list(sizes))
    return _of_widths([group.view(1, 1, -1) for group in groups])


def by_layer_random(
    sizes: tuple[int, ...], num_groups: int, info: "RoundInfo", device: torch.device
) -> Split:
    """Cut a random order of each layer's coordinates into groups: none crosses two layers."""
    stream = info.stream.fold_in("gas-split")
    pieces, start = [], 0
    shares = groups_of_layers(sizes, num_groups)
    for number, (size, own) in enumerate(zip(sizes, shares, strict=True)):
        seeds = stream.fold_in(f"layer-{number}").derived()
        order = torch.stack([draw_order(size, seed).index(device).long() for seed in seeds]) + start
        pieces += [block.index for block in cut(order, balanced_sizes(size, own)).blocks]
        start += size
    return Split(_of_widths(pieces).blocks, note_of_layers(sizes, num_groups))


def note_of_layers(sizes: tuple[int, ...], num_groups: int) -> str:
    """Return what to note where there are more layers than groups were asked for."""
    if num_groups >= len(sizes):
        return ""
    return f"gas: num_groups={num_groups} is fewer than the {len(sizes)} layers; used {len(sizes)}"


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


def _of_widths(pieces: Sequence[Tensor]) -> Split:
    """Put groups ``[runs, groups, width]`` of one width into one block."""
    by_width: dict[int, list[Tensor]] = {}
    for piece in pieces:
        by_width.setdefault(piece.shape[-1], []).append(piece)
    return Split(tuple(IndexBlock(torch.cat(same, dim=1)) for same in by_width.values()))
