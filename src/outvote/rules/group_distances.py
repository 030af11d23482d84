"""Distances in the groups of a random split, added up while coordinates come in their own order.

To read the groups one after another takes a random read for every value, and memory for a copy of
all values. With few clients there are few pairs: the squared difference of each is added to the sum
of the coordinate's group instead, in float64. Nothing cancels: no distance between two clients is
redone, and inner products may be worked out from the distances, whatever their sizes.
"""

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from outvote.axes import Pairs, Rows
from outvote.ops import native
from outvote.ops.distances import SHORTEST_NORM
from outvote.ops.threads import mapped
from outvote.rules.client_matrix import ClientMatrix
from outvote.rules.split import RandomCut, Split

# With more clients or groups, or fewer coordinates, reading the groups is as fast.
MOST_CLIENTS, MOST_GROUPS, FEWEST_COORDINATES = 9, 1 << 14, 1 << 19
# In fewer groups, sums wait for each other, with a kernel less than without.
FEWEST_GROUPS, FEWEST_WITH_KERNEL = 512, 16
# With a kernel: of shorter groups there are too many.
SHORTEST_GROUP = 32
# The differences of this many coordinates are squared before they are added up.
AT_ONCE = 1 << 16
NUM_PIECES = 4


def squared_distances(matrix: ClientMatrix, split: Split) -> Pairs | None:
    """Return the squared distances ``[runs, groups, clients, clients]``, float64.

    None where to read the groups is as fast, or where squares are too small or too large.
    """
    cut = split.random_cut
    if cut is None or matrix.device.type != "cpu" or not 1 < matrix.num_clients <= MOST_CLIENTS:
        return None
    has_kernel = native.can_read(matrix.rows, cut.orders)
    if not (_is_faster_by_kernel if has_kernel else _is_faster)(matrix, split):
        return None
    sums = _sums_by_kernel if has_kernel else _sums
    found = torch.stack(
        [
            _matrices(sums(rows, cut, run), matrix.num_clients)
            for run, rows in enumerate(matrix.rows)
        ]
    )
    largest = found.amax(dim=(-2, -1))
    is_fine = bool((largest >= SHORTEST_NORM).all() and (largest < torch.inf).all())
    return found if is_fine else None


def _is_faster(matrix: ClientMatrix, split: Split) -> bool:
    return FEWEST_GROUPS < split.num_groups <= MOST_GROUPS and matrix.dim >= max(
        FEWEST_COORDINATES, matrix.num_clients * split.num_groups
    )


def _is_faster_by_kernel(matrix: ClientMatrix, split: Split) -> bool:
    num_groups = split.num_groups
    return (
        FEWEST_WITH_KERNEL <= num_groups <= MOST_GROUPS
        and matrix.dim >= SHORTEST_GROUP * num_groups
    )


def _matrices(sums: Tensor, num_clients: int) -> Pairs:
    """Return sums of the pairs ``[groups, pairs]`` as ``[groups, clients, clients]``."""
    first, second = np.tril_indices(num_clients, -1)
    result = sums.new_zeros(len(sums), num_clients, num_clients)
    result[:, first, second] = sums
    result[:, second, first] = sums
    return result


def _sums_by_kernel(rows: Rows, cut: RandomCut, run: int) -> Tensor:
    return native.pair_sums(rows, cut.orders[run % len(cut.orders)], cut.sizes)


def _sums(rows: Rows, cut: RandomCut, run: int) -> Tensor:
    """Return the sums of the squared differences of one run, ``[groups, pairs]``."""
    dim = rows.shape[1]
    first, second = np.tril_indices(len(rows), -1)
    cuts = [dim * k // NUM_PIECES for k in range(NUM_PIECES + 1)]

    def add_up(piece: tuple[int, int]) -> Tensor:
        groups = torch.from_numpy(cut.groups_between(run, *piece))
        return _sums_of_piece(rows[:, slice(*piece)], groups, cut.num_groups, (first, second))

    total = torch.stack(mapped(add_up, list(pairwise(cuts)))).sum(dim=0)
    return torch.view_as_real(total).transpose(0, 1).flatten(1)[:, : len(first)]


def _sums_of_piece(
    rows: Rows, groups: Tensor, num_groups: int, pairs: tuple[np.ndarray, np.ndarray]
) -> Tensor:
    """Return the sums of some coordinates, ``[pairs / 2, groups]`` complex numbers.

    The sums of two pairs are one complex number: that halves the random accesses.
    """
    num_sums = -(-len(pairs[0]) // 2)
    total = torch.zeros(num_sums, num_groups, dtype=torch.complex128)
    buffer = torch.zeros(num_sums, AT_ONCE, 2, dtype=torch.float64)
    for own, some in zip(groups.split(AT_ONCE), rows.split(AT_ONCE, dim=1), strict=True):
        squared = _square(some.double(), buffer[:, : len(own)], pairs)
        total.scatter_add_(1, own.long().expand(num_sums, -1), squared)
    return total


def _square(rows: Rows, buffer: Tensor, pairs: tuple[np.ndarray, np.ndarray]) -> Tensor:
    values, apart = rows.numpy(), buffer.numpy()
    with np.errstate(over="ignore", under="ignore"):
        for k, (first, second) in enumerate(zip(*pairs, strict=True)):
            np.subtract(values[first], values[second], out=apart[k // 2, :, k % 2])
        np.square(apart, out=apart)
    return torch.view_as_complex(buffer)
