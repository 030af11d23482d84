"""Krum: the one client that lies closest to its neighbours."""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from outvote.axes import Pairs, PerClient
from outvote.rules import linalg
from outvote.rules.aggregation import Aggregation
from outvote.rules.base import AffineRule, RoundInfo
from outvote.rules.client_matrix import ClientMatrix
from outvote.rules.order import sum_of_smallest

HUGE = 1e300


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Krum(AffineRule):
    r"""The gradient of the client closest to its neighbours.

    $$ s_i = \sum_{j \in N_i} \|g_i - g_j\|^2, \quad |N_i| = n - f - 2, \qquad
       g_{\arg\min_i s_i} $$

    Needs: the distances between the clients. Tolerates: n >= 2f + 3.
    Differs from the paper: nothing; two clients have one neighbour each.
    Reference: Blanchard et al., NeurIPS 2017.

    >>> Krum()([[1.0], [1.1], [0.9], [1.0], [50.0]], num_byzantine=1)
    array([1.])
    """

    name: ClassVar[str] = "krum"

    num_neighbours: int | None = None
    """How many nearest clients count in the score; None: n - f - 2."""
    power: float = 2
    """The power of the distances in the score."""

    def __post_init__(self) -> None:
        """Check the parameters."""
        check_score_parameters(self.name, self.num_neighbours, self.power)

    def max_byzantine(self, num_clients: int) -> int:
        """Return the largest f with n >= 2f + 3."""
        return max(0, (num_clients - 3) // 2)

    def weigh(self, matrix: ClientMatrix, info: RoundInfo) -> Aggregation:
        """Give all the weight to the client with the smallest score."""
        neighbours = count_neighbours(self.num_neighbours, matrix, info)
        scores = krum_scores(matrix.squared_distances, neighbours, self.power)
        return Aggregation(
            weights=linalg.smallest(scores, 1).double(),
            scores=scores,
            notes=lowered("num_neighbours", self.num_neighbours, matrix, info, 1),
        )


def krum_scores(squared_distances: Pairs, num_neighbours: int, power: float) -> PerClient:
    """Add up the distances to the nearest clients, oneself excluded."""
    # A high power of a huge distance is not finite, and 0 times infinity is not 0.
    far = (
        squared_distances
        if power == 2
        else squared_distances.double().pow(power / 2).clamp(max=HUGE)
    )
    # The distance to oneself is exactly 0, so it is first in line and adds nothing.
    return sum_of_smallest(far, num_neighbours + 1)


def count_neighbours(asked: int | None, matrix: ClientMatrix, info: RoundInfo) -> int:
    """Return how many neighbours to count: n - f - 2, and at least one."""
    if asked is None:
        return max(1, matrix.num_clients - info.num_byzantine - 2)
    return min(asked, matrix.num_clients - 1)


def lowered(
    name: str, asked: int | None, matrix: ClientMatrix, info: RoundInfo, others: int
) -> tuple[str, ...]:
    """Return a note if a parameter asks for more clients than are left after some were rejected.

    `others` are the clients that cannot be asked for. If there never were enough, that is an error.
    """
    most = matrix.num_clients - others
    if asked is None or asked <= most:
        return ()
    if asked > info.num_received - others:
        raise ValueError(
            f"{name} must be at most {info.num_received - others} for {info.num_received} "
            f"clients, got {asked}; lower it or leave it out."
        )
    return (f"{name}={asked} is more than there are clients for; used {most}",)


def check_score_parameters(name: str, num_neighbours: int | None, power: float) -> None:
    """Raise a ValueError unless the parameters of the score make sense."""
    if num_neighbours is not None and num_neighbours < 1:
        raise ValueError(f"{name}: num_neighbours must be at least 1, got {num_neighbours}.")
    if not 0 < power < float("inf"):
        raise ValueError(f"{name}: power must be positive and finite, got {power}.")


def average_of(is_selected: Tensor, num_selected: int) -> PerClient:
    """Return equal weights for the selected clients."""
    return is_selected.to(torch.float64) / num_selected
