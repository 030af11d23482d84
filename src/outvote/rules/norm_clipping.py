"""Norm clipping: no gradient is longer than a given norm."""

from dataclasses import dataclass
from typing import ClassVar, final

from outvote.rules.client_matrix import ClientMatrix
from outvote.rules.rule import Aggregation, RoundInfo, Rule, Traits


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class NormClipping(Rule):
    r"""Mean of the gradients, each shortened to a largest norm.

    $$ \frac{1}{n} \sum_i g_i \min\Big(1, \frac{c}{\|g_i\|}\Big) $$

    Needs: the norms. Tolerates: n >= 2f + 1 (f is not used; the influence of a client is bounded,
    not removed). Differs from the paper: nothing. Reference: Sun et al., 2019.

    >>> NormClipping(max_norm=2.0)([[1.0], [2.0], [500.0]]).round(3)
    array([1.667])
    """

    name: ClassVar[str] = "norm-clipping"
    traits = Traits(uses_num_byzantine=False, uses_sample_counts=True, can_stream=True)

    max_norm: float = 2.0
    """Longer gradients are shortened to this norm."""

    def __post_init__(self) -> None:
        if not 0 < self.max_norm < float("inf"):
            raise ValueError(
                f"norm-clipping: max_norm must be positive and finite, got {self.max_norm}."
            )

    def max_byzantine(self, num_clients: int) -> int:
        """Return the largest f with n >= 2f + 1."""
        return max(0, (num_clients - 1) // 2)

    def compute(self, matrix: ClientMatrix, info: RoundInfo) -> Aggregation:
        """Weigh every client by how much its norm is too long."""
        norms = matrix.norms
        weights = (self.max_norm / norms.clamp(min=1e-300)).clamp(max=1.0)
        if info.counts is None:
            weights = weights / matrix.num_clients
        else:
            weights = weights * (info.counts / info.counts.sum())
        return Aggregation(
            vector=matrix.vector(Aggregation(weights=weights)), weights=weights, scores=norms
        )
