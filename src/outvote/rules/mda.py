"""MDA (minimum-diameter averaging): the n - f clients that lie closest together."""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from outvote.rules.client_matrix import ClientMatrix
from outvote.rules.rule import AffineRule, Aggregation, RoundInfo


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MDA(AffineRule):
    r"""Average of the n - f clients whose largest distance to each other is smallest.

    $$ \arg\min_{|S| = n - f} \max_{i, j \in S} \|g_i - g_j\| $$

    Needs: the distances between the clients. Tolerates: n >= 2f + 1.
    Differs from the paper: nothing; not all subsets are tried, the search is still exact (drop f
    clients so that no pair is farther apart than a bound), first in lexicographic order on ties.
    Reference: El-Mhamdi et al., 2018; Rousseeuw, 1985.

    >>> MDA()([[1.0], [2.0], [3.0], [900.0]], num_byzantine=1)
    array([2.])
    """

    name: ClassVar[str] = "mda"

    max_steps: int = 2_000_000
    """Give up with a ValueError after so many steps of the search (for one group of clients)."""

    def __post_init__(self) -> None:
        if self.max_steps < 1:
            raise ValueError(f"mda: max_steps must be at least 1, got {self.max_steps}.")

    def max_byzantine(self, num_clients: int) -> int:
        """Return the largest f with n >= 2f + 1."""
        return max(0, (num_clients - 1) // 2)

    def weigh(self, matrix: ClientMatrix, info: RoundInfo) -> Aggregation:
        """Average the tightest subset."""
        distances = matrix.squared_distances
        matrices = distances.reshape(-1, *distances.shape[-2:])
        kept = torch.stack(
            [tightest_subset(matrix, info.num_byzantine, self.max_steps) for matrix in matrices]
        )
        num_kept = matrix.num_clients - info.num_byzantine
        weights = (kept.double() / num_kept).view(*matrix.batch, matrix.num_clients)
        return Aggregation(weights=weights.to(distances.device))


def tightest_subset(squared_distances: Tensor, num_dropped: int, max_steps: int) -> Tensor:
    """Mark the n - f clients with the smallest diameter, the first such set on ties."""
    matrix = squared_distances.cpu().numpy()
    num_clients = len(matrix)
    bounds = sorted({0.0, *matrix.flatten().tolist()})
    search = _Search(max_steps)
    low, high = 0, len(bounds) - 1
    while low < high:
        middle = (low + high) // 2
        if search.can_drop(_too_far(matrix > bounds[middle]), num_dropped):
            high = middle
        else:
            low = middle + 1
    dropped = search.last_in_order(_too_far(matrix > bounds[low]), num_dropped)
    kept = [not dropped >> client & 1 for client in range(num_clients)]
    return torch.tensor(kept, device="cpu")


def _too_far(is_far: Tensor) -> list[int]:
    """Return, for every client, the bits of the clients that it cannot be kept with."""
    return [sum(1 << int(other) for other in row.nonzero()[0]) for row in is_far]


class _Search:
    """Vertex cover by branching: of two clients too far apart, one must go."""

    def __init__(self, max_steps: int) -> None:
        self.steps_left = max_steps

    def can_drop(self, too_far: list[int], num_dropped: int, gone: int = 0) -> bool:
        """Return whether dropping `num_dropped` more clients leaves no pair too far apart."""
        self.steps_left -= 1
        if self.steps_left < 0:
            raise ValueError(
                "mda: the search for the tightest subset took too many steps; "
                "raise max_steps, lower num_byzantine, or use another rule."
            )
        degrees = [
            0 if gone >> client & 1 else (far & ~gone).bit_count()
            for client, far in enumerate(too_far)
        ]
        busiest = max(range(len(degrees)), key=degrees.__getitem__)
        if degrees[busiest] == 0:
            return True
        # Even dropping the busiest clients cannot settle more pairs than this.
        if num_dropped == 0 or sum(degrees) > 2 * num_dropped * degrees[busiest]:
            return False
        if self.can_drop(too_far, num_dropped - 1, gone | 1 << busiest):
            return True
        others = too_far[busiest] & ~gone
        num_others = degrees[busiest]
        return num_others <= num_dropped and self.can_drop(
            too_far, num_dropped - num_others, gone | others
        )

    def last_in_order(self, too_far: list[int], num_dropped: int) -> int:
        """Return the bits of the clients to drop so that the kept are first in their order."""
        gone = kept = 0
        for client in range(len(too_far)):
            if gone >> client & 1:
                continue
            forced = too_far[client] & ~gone
            num_left = num_dropped - gone.bit_count() - forced.bit_count()
            if (
                forced & kept == 0
                and num_left >= 0
                and self.can_drop(too_far, num_left, gone | forced)
            ):
                kept |= 1 << client
                gone |= forced
            else:
                gone |= 1 << client
        return self._fill(gone, len(too_far), num_dropped)

    @staticmethod
    def _fill(gone: int, num_clients: int, num_dropped: int) -> int:
        """Drop the last clients too if fewer than asked for had to go."""
        for client in reversed(range(num_clients)):
            if gone.bit_count() >= num_dropped:
                break
            gone |= 1 << client
        return gone
