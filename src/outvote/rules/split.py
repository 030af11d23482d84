"""Ways to cut the coordinates into groups.

A split holds blocks of groups, ``[runs, groups, width]`` coordinate indices, one per width, so that
groups of one width are worked on together.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil

import numpy as np
import torch
from torch import Tensor

from outvote.rules import linalg
from outvote.rules.client_matrix import ClientMatrix
from outvote.rules.doubts import Doubts
from outvote.rules.reorder import Block, PlacedBlock, open_reader

SPLITS = ("balanced", "ceil", "contiguous", "by-layer")


@dataclass(frozen=True, slots=True)
class Split:
    """A partition of the coordinates of every run."""

    blocks: tuple[Block | PlacedBlock, ...]

    @property
    def num_groups(self) -> int:
        """How many groups there are."""
        return sum(block.shape[1] for block in self.blocks)


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
        blocks.append(Block(order[:, :end].view(len(order), num_first, first)))
    if num_second:
        blocks.append(Block(order[:, end:].view(len(order), num_second, second)))
    return Split(tuple(blocks))


def explicit(groups: Sequence[Sequence[int]], dim: int, device: torch.device) -> Split:
    """Check and take a partition that the caller gives."""
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
    return Split(tuple(Block(stack.unsqueeze(0)) for stack in stacks))


def by_layer(sizes: tuple[int, ...] | None, dim: int, device: torch.device) -> Split:
    """Make one group of each named tensor."""
    if sizes is None or sum(sizes) != dim:
        raise ValueError(
            'split="by-layer" needs gradients with names, a list of dicts of arrays, got a matrix; '
            "pass dicts, or split='balanced'."
        )
    order = torch.arange(dim, device=device).split(list(sizes))
    by_width: dict[int, list[Tensor]] = {}
    for group in order:
        if len(group):
            by_width.setdefault(len(group), []).append(group)
    return Split(tuple(Block(torch.stack(same).unsqueeze(0)) for same in by_width.values()))


def slabs(
    matrix: ClientMatrix,
    split: Split,
    doubts: Doubts | None = None,
    *,
    needs_values: bool = True,
) -> Iterator[ClientMatrix]:
    """Yield the groups as matrix ``[runs, groups, width, clients]``, some at a time.

    With `doubts`, what cannot be trusted is not recomputed but counted there (see `linalg`). Where
    distances are enough, only n x n matrices must fit the cache.
    """
    if len(matrix.batch) > 1:
        yield from _slabs_of_groups(matrix, split)
        return
    open_block = open_reader(matrix.columns, matrix.turned)
    for block in split.blocks:
        num_groups, width = block.shape[1:]
        step = min(num_groups, groups_at_once(matrix, width, needs_values=needs_values))
        reader = open_block(block)
        for start in range(0, num_groups, step):
            stop = min(num_groups, start + step)
            yield ClientMatrix(
                partial(reader.read, start, stop),
                torch.Size([matrix.batch[0], stop - start, width, matrix.num_clients]),
                like=reader.columns,
                centre=matrix.centre,
                # Distances in narrow groups are taken from the values, which are read anyway.
                products=(
                    reader.products(start, stop, matrix.centre)
                    if width > matrix.num_clients
                    else None
                ),
                scratch=partial(reader.room, stop - start, "scratch"),
                twins=matrix.twins,
                doubts=doubts,
            )


def groups_at_once(matrix: ClientMatrix, width: int, *, needs_values: bool) -> int:
    """Return how many groups fit the cache, with their values and their n x n matrices."""
    num_clients = matrix.num_clients
    room = linalg.tile_values(matrix.columns)
    is_wide = width > num_clients
    matrices = linalg.MATRICES_TILE.get(matrix.device.type, room // 4) // num_clients**2
    values = room // (num_clients * width)
    if is_wide and not needs_values and matrix.device.type == "cpu":
        values = matrices
    return max(1, min(matrices, values) // matrix.batch[0])


def _slabs_of_groups(matrix: ClientMatrix, split: Split) -> Iterator[ClientMatrix]:
    """Split what is itself a group: the same positions in every group of a run."""
    for block in split.blocks:
        for start in range(block.shape[1]):
            index = block.index[:, start].long()
            inner = matrix.at_coordinates(index.expand(matrix.batch[0], -1))
            yield ClientMatrix(inner.columns.unsqueeze(-3))
