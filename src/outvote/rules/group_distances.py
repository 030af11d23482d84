"""Distances in the groups of a random split, added up while coordinates come in their own order.

To read the groups one after another takes a random read for every value, and memory for a copy of
all values. With few clients there are few pairs: the squared difference of each is added to the sum
of the coordinate's group instead. Nothing cancels: no distance between two clients is redone.
"""

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from outvote.axes import Pairs, Rows
from outvote.precision import work_dtype
from outvote.rules.client_matrix import ClientMatrix
from outvote.rules.distances import SHORTEST_NORM
from outvote.rules.split import Split
from outvote.threads import mapped

# With more clients or groups, or fewer coordinates, reading the groups is as fast.
MOST_CLIENTS, MOST_GROUPS, FEWEST_COORDINATES = 9, 1 << 14, 1 << 19
# The differences of this many coordinates are squared before they are added up.
AT_ONCE = 1 << 17
# Longer sums over a group are rounded too often in float32; those of parts are added in float64.
SUMMED_AT_ONCE = 256
NUM_PIECES = 4


def squared_distances(matrix: ClientMatrix, split: Split) -> Pairs | None:
    """Return the squared distances ``[runs, groups, clients, clients]``, float64.

    None where to read the groups is as fast, or where squares are too small or too large.
    """
    if not _is_faster(matrix, split):
        return None
    found = torch.stack(
        [_Sums(rows, split, run).matrices() for run, rows in enumerate(matrix.rows)]
    )
    largest = found.amax(dim=(-2, -1))
    is_fine = bool((largest >= SHORTEST_NORM).all() and (largest < torch.inf).all())
    return found if is_fine else None


def _is_faster(matrix: ClientMatrix, split: Split) -> bool:
    return (
        split.groups_between is not None
        and matrix.device.type == "cpu"
        and 1 < matrix.num_clients <= MOST_CLIENTS
        and AT_ONCE // SUMMED_AT_ONCE < split.num_groups <= MOST_GROUPS
        and matrix.dim >= max(FEWEST_COORDINATES, matrix.num_clients * split.num_groups)
    )


class _Sums:
    """The sums of the squared differences of one run."""

    def __init__(self, rows: Rows, split: Split, run: int) -> None:
        self.rows, self.split, self.run = rows, split, run
        self.first, self.second = np.tril_indices(len(rows), -1)
        # The sums of two pairs are one complex number: that halves the random accesses.
        self.num_sums = -(-len(self.first) // 2)

    def matrices(self) -> Pairs:
        """Return the squared distances ``[groups, clients, clients]``."""
        num_clients, dim = self.rows.shape
        cuts = [dim * k // NUM_PIECES for k in range(NUM_PIECES + 1)]
        total = torch.stack(mapped(self._add_up, list(pairwise(cuts)))).sum(dim=0)
        of_pairs = torch.view_as_real(total).transpose(0, 1).flatten(1)[:, : len(self.first)]
        result = of_pairs.new_zeros(len(of_pairs), num_clients, num_clients)
        result[:, self.first, self.second] = of_pairs
        result[:, self.second, self.first] = of_pairs
        return result

    def _add_up(self, piece: tuple[int, int]) -> Tensor:
        """Return the sums of some coordinates, ``[pairs / 2, groups]`` complex numbers."""
        assert self.split.groups_between is not None
        groups = torch.from_numpy(self.split.groups_between(self.run, *piece))
        total = torch.zeros(self.num_sums, self.split.num_groups, dtype=torch.complex128)
        buffer = torch.zeros(self.num_sums, AT_ONCE, 2, dtype=work_dtype(self.rows.dtype))
        rows = self.rows[:, slice(*piece)]
        for own, some in zip(groups.split(AT_ONCE), rows.split(AT_ONCE, dim=1), strict=True):
            squared = self._square(some.to(buffer.dtype), buffer[:, : len(own)])
            sums = torch.zeros(total.shape, dtype=squared.dtype)
            total += sums.scatter_add_(1, own.long().expand(self.num_sums, -1), squared)
        return total

    def _square(self, rows: Rows, buffer: Tensor) -> Tensor:
        values, apart = rows.numpy(), buffer.numpy()
        with np.errstate(over="ignore", under="ignore"):
            for k, (first, second) in enumerate(zip(self.first, self.second, strict=True)):
                np.subtract(values[first], values[second], out=apart[k // 2, :, k % 2])
            np.square(apart, out=apart)
        return torch.view_as_complex(buffer)
