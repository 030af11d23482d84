"""DnC (divide and conquer): drop the clients that stick out along the top singular direction."""

from dataclasses import dataclass
from math import ceil
from typing import ClassVar, final

import torch

from outvote.axes import PerClient
from outvote.ops.eigen import leading_projections
from outvote.ops.order import average_of_smallest, smallest
from outvote.rules.client_matrix import ClientMatrix
from outvote.rules.rule import AffineRule, Aggregation, RoundInfo, Traits
from outvote.seeding import RandomStream


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DnC(AffineRule):
    r"""Average without the clients that lie farthest out along the top singular direction.

    $$ C = S - \bar S, \quad v = \text{top right singular vector of } C, \quad
       s_i = \langle C_i, v \rangle^2, \qquad \text{drop the } \lceil c f \rceil
       \text{ largest } s_i $$

    S is a random sample of b coordinates; what all iterations keep is averaged.
    Needs: the distances between the clients on a sample of coordinates. Tolerates: c f < n.
    Differs from the paper: c = 1 (the GAS paper prints 4), coordinates drawn without replacement.
    Reference: Shejwalkar and Houmansadr, NDSS 2021.

    >>> DnC()([[1.0, 2.0], [1.5, 1.0], [0.5, 1.5], [2.0, 2.5], [-6.0, 8.0]], num_byzantine=1)
    array([1.25, 1.75])
    """

    name: ClassVar[str] = "dnc"
    traits = Traits(needs_values=True)

    num_iterations: int = 1
    """How many samples of coordinates are looked at."""
    num_coordinates: int = 10_000
    """How many coordinates a sample has (all, if there are fewer)."""
    removal_factor: float = 1.0
    """How many clients are dropped for each Byzantine one."""

    def __post_init__(self) -> None:
        if self.num_iterations < 1:
            raise ValueError(f"dnc: num_iterations must be at least 1, got {self.num_iterations}.")
        if self.num_coordinates < 1:
            raise ValueError(
                f"dnc: num_coordinates must be at least 1, got {self.num_coordinates}."
            )
        if not 0 < self.removal_factor < float("inf"):
            raise ValueError(
                f"dnc: removal_factor must be positive and finite, got {self.removal_factor}."
            )

    def max_byzantine(self, num_clients: int) -> int:
        """Return the largest f <= n - 1 with c f < n."""
        return max(0, min(num_clients - 1, ceil(num_clients / self.removal_factor - 1e-9) - 1))

    def weigh(self, matrix: ClientMatrix, info: RoundInfo) -> Aggregation:
        """Average what every iteration keeps."""
        removed = ceil(self.removal_factor * info.num_byzantine - 1e-9)
        num_kept = matrix.num_clients - min(removed, matrix.num_clients - 1)
        scores = self._scores(matrix, info.stream)
        if len(scores) == 1:
            return Aggregation(weights=average_of_smallest(scores[0], num_kept), scores=scores[0])
        is_kept = torch.stack([smallest(s, num_kept) for s in scores]).all(dim=0)
        total = torch.stack(scores).sum(dim=0)
        # Different samples may leave nobody: then those with the smallest total score stay.
        is_empty = ~is_kept.any(dim=-1, keepdim=True)
        is_kept = torch.where(is_empty, smallest(total, num_kept), is_kept)
        return Aggregation(
            weights=is_kept.double() / is_kept.sum(dim=-1, keepdim=True),
            scores=total,
        )

    def _scores(self, matrix: ClientMatrix, stream: RandomStream) -> list[PerClient]:
        streams = [stream.fold_in(f"dnc-{iteration}") for iteration in range(self.num_iterations)]
        if self.num_coordinates >= matrix.dim:
            # All iterations look at the same: they must not differ in how they round.
            scores = outlier_scores(matrix, streams[0])
            return [matrix.same_for_copies(scores)] * self.num_iterations
        return [matrix.same_for_copies(self._of_sample(matrix, own)) for own in streams]

    def _of_sample(self, matrix: ClientMatrix, stream: RandomStream) -> PerClient:
        drawn = stream.samples(matrix.dim, self.num_coordinates, matrix.device)
        return outlier_scores(matrix.at_coordinates(drawn.long()), stream)


def outlier_scores(matrix: ClientMatrix, stream: RandomStream) -> PerClient:
    """Return the squared projections on the top singular direction, around the mean."""
    gram = -0.5 * matrix.squared_distances.double() if matrix.is_narrow else matrix.gram
    centred = gram - gram.mean(dim=-1, keepdim=True)
    centred = centred - centred.mean(dim=-2, keepdim=True)
    centred = 0.5 * (centred + centred.mT)
    # Scaled to 1: the solver squares numbers that may be as large as 1e76.
    scale = (
        centred.abs().amax(dim=(-2, -1), keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
    )
    return leading_projections(centred / scale, scale.squeeze(-1), stream)
