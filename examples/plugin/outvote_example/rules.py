"""The rule `smallest-ball`."""

from dataclasses import dataclass

import torch

import outvote as ov


@dataclass(frozen=True)
class SmallestBall(ov.AffineRule):
    """Average of the n - f clients in the smallest ball around one client that holds a majority.

    Needs: the distances between the clients. Tolerates: n >= 2f + 1.
    """

    name = "smallest-ball"

    def max_byzantine(self, num_clients: int) -> int:
        """Return the largest f with n >= 2f + 1."""
        return max(0, (num_clients - 1) // 2)

    def weigh(self, matrix: ov.ClientMatrix, info: ov.RoundInfo) -> ov.Aggregation:
        """Give the clients nearest to the centre equal weights."""
        distances = matrix.squared_distances
        radius = distances.sort(dim=-1).values[..., matrix.num_clients // 2]
        centre = radius.argmin(dim=-1, keepdim=True).unsqueeze(-1)
        scores = distances.take_along_dim(centre, dim=-2).squeeze(-2)
        num_kept = matrix.num_clients - info.num_byzantine
        kept = scores.argsort(dim=-1, stable=True)[..., :num_kept]
        weights = torch.zeros_like(scores).scatter_(-1, kept, 1 / num_kept)
        return ov.Aggregation(weights=weights, scores=scores)
