"""RFA: a few steps of the smoothed Weiszfeld algorithm towards the geometric median."""

from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar, final

import torch
from torch import Tensor

from outvote.axes import PerClient
from outvote.errors import check_choice
from outvote.rules.client_matrix import ClientMatrix
from outvote.rules.mean import equal_weights
from outvote.rules.rule import AffineRule, Aggregation, RoundInfo, Traits


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RFA(AffineRule):
    r"""Average in which distant clients count less, reweighted a few times.

    $$ z_0 = \frac{1}{n} \sum_i g_i, \qquad \beta_i = \frac{1}{\max(\nu, \|g_i - z_t\|)}, \qquad
       z_{t+1} = \frac{\sum_i \beta_i g_i}{\sum_i \beta_i} $$

    Needs: the distances between the clients. Tolerates: n >= 2f + 1 (f is not used).
    Differs from the paper: data set sizes only as `sample_counts`, no early stop;
    start="zero" begins at the origin, as ByzFL does.
    Reference: Pillutla et al., IEEE TSP 2022.

    >>> RFA()([[1.0, 2.0], [1.5, 1.0], [0.5, 1.5], [2.0, 2.5], [-6.0, 8.0]]).round(3)
    array([0.981, 1.956])
    """

    name: ClassVar[str] = "rfa"

    num_iterations: int = 3
    """How often the clients are reweighted."""
    smoothing: float = 1e-6
    """Distances below this count as this."""
    start: str = "mean"
    """Where the iteration starts: the "mean" of the clients, or "zero"."""

    def __post_init__(self) -> None:
        check_choice("rfa: start", self.start, ("mean", "zero"))
        if self.num_iterations < 1:
            raise ValueError(f"rfa: num_iterations must be at least 1, got {self.num_iterations}.")
        if not 0 < self.smoothing < float("inf"):
            raise ValueError(f"rfa: smoothing must be positive and finite, got {self.smoothing}.")

    def max_byzantine(self, num_clients: int) -> int:
        """Return the largest f with n >= 2f + 1."""
        return max(0, (num_clients - 1) // 2)

    @property
    def traits(self) -> Traits:  # type: ignore[override]
        """Distances to the origin are computed from the values."""
        return _of_rfa(self.start == "zero")

    def weigh(self, matrix: ClientMatrix, info: RoundInfo) -> Aggregation:
        """Reweight the clients by their distance to the current average."""
        if self.start == "mean":
            start = equal_weights(matrix, info.counts)
            return Aggregation(
                weights=self._reweigh(matrix, start, matrix.num_clients, info.counts)
            )
        with_origin = matrix.with_point()
        weights = torch.zeros_like(equal_weights(with_origin))
        weights[..., -1] = 1
        weights = self._reweigh(with_origin, weights, matrix.num_clients, info.counts)
        return Aggregation(weights=weights[..., :-1])

    def _reweigh(
        self, matrix: ClientMatrix, weights: PerClient, num_real: int, counts: Tensor | None
    ) -> PerClient:
        for _ in range(self.num_iterations):
            far = matrix.distances_to(Aggregation(weights=weights))
            weights = 1 / far.clamp(min=self.smoothing)
            weights[..., num_real:] = 0
            if counts is not None:
                weights[..., :num_real] *= counts
            weights /= weights.sum(dim=-1, keepdim=True)
        return weights


@cache  # Asked for in every call, and several times where gas is around.
def _of_rfa(needs_values: bool) -> Traits:
    return replace(
        AffineRule.traits,
        uses_num_byzantine=False,
        needs_values=needs_values,
        uses_sample_counts=True,
    )
