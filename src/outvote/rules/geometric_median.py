"""The geometric median, to convergence."""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from outvote.axes import Pairs, PerClient
from outvote.rules.answer import Answer
from outvote.rules.base import AffineRule, Facts
from outvote.rules.mean import equal_weights
from outvote.rules.points import Points

TINY = 1e-150


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class GeometricMedian(AffineRule):
    r"""The point with the smallest sum of distances to the clients.

    $$ \arg\min_z \sum_i \|g_i - z\| $$

    Needs: the distances between the clients. Tolerates: n >= 2f + 1 (f is not used).
    Differs from the paper: Weiszfeld's iteration, with a test whether a client's own gradient is
    the median, where the iteration would crawl. Not unique for an even number on one line.
    Reference: Weiszfeld, 1937; Chen et al., 2017.

    >>> GeometricMedian()([[1.0, 2.0], [1.5, 1.0], [0.5, 1.5], [2.0, 2.5], [-6.0, 8.0]])
    array([1., 2.])
    """

    name: ClassVar[str] = "geometric-median"
    uses_num_byzantine: ClassVar[bool] = False

    tolerance: float = 1e-13
    """Stop when no client's weight changes by more than this share of it."""
    max_iterations: int = 1000
    """Stop after so many steps at the latest."""

    def __post_init__(self) -> None:
        """Check the parameters."""
        if not 0 < self.tolerance < 1:
            raise ValueError(
                f"geometric-median: tolerance must be between 0 and 1, got {self.tolerance}."
            )
        if self.max_iterations < 1:
            raise ValueError(
                f"geometric-median: max_iterations must be at least 1, got {self.max_iterations}."
            )

    def max_byzantine(self, num_clients: int) -> int:
        """Return the largest f with n >= 2f + 1."""
        return max(0, (num_clients - 1) // 2)

    def weigh(self, points: Points, facts: Facts) -> Answer:
        """Iterate, then put all weight on a client that is the median itself."""
        del facts
        is_client, client = median_client(points.squared_distances)
        weights = equal_weights(points)
        if not bool(is_client.all()):
            weights = self._iterate(points, weights)
        alone = torch.zeros_like(weights).scatter_(-1, client.unsqueeze(-1), 1.0)
        return Answer(weights=torch.where(is_client.unsqueeze(-1), alone, weights))

    def _iterate(self, points: Points, weights: PerClient) -> PerClient:
        for _ in range(self.max_iterations):
            far = points.distances_to(Answer(weights=weights)).clamp(min=TINY)
            # Relative to the nearest client, so that the reciprocals cannot overflow.
            closeness = far.amin(dim=-1, keepdim=True) / far
            updated = closeness / closeness.sum(dim=-1, keepdim=True)
            # Relative to each weight: a liar at 1e30 matters as long as its weight is above 1e-30.
            change = ((updated - weights).abs() / updated).amax()
            weights = updated
            if bool(change <= self.tolerance):
                break
        return weights


def median_client(squared_distances: Pairs) -> tuple[Tensor, Tensor]:
    r"""Tell whether the client with the smallest sum of distances is the geometric median.

    It is if the unit vectors from the others add up to less than its multiplicity:
    $$ \Big\| \sum_{j: g_j \ne g_k} \frac{g_k - g_j}{\|g_k - g_j\|} \Big\| < |\{j: g_j = g_k\}| $$
    """
    distances = squared_distances.sqrt()
    client = distances.sum(dim=-1).argmin(dim=-1)
    row = client.view(*client.shape, 1, 1).expand(*client.shape, 1, distances.shape[-1])
    far = distances.gather(-2, row).squeeze(-2)
    is_same = far == 0
    closeness = torch.where(is_same, 0, 1 / far.masked_fill(is_same, 1))
    # <g_k - g_i, g_k - g_j> by the law of cosines, scaled to unit vectors before it can overflow.
    left, right = closeness.unsqueeze(-1), closeness.unsqueeze(-2)
    ratio = far.unsqueeze(-1) * right
    cosines = 0.5 * (
        torch.where(is_same.unsqueeze(-1), 0, ratio)
        + torch.where(is_same.unsqueeze(-2), 0, ratio.mT)
        - distances * left * (distances * right)
    )
    pull = cosines.masked_fill(is_same.unsqueeze(-1) | is_same.unsqueeze(-2), 0)
    squared_pull = pull.sum(dim=-1).sum(dim=-1)
    multiplicity = is_same.sum(dim=-1)
    return squared_pull.clamp(min=0) < multiplicity.square() * (1 - 1e-9), client
