"""The plain mean: what federated averaging does, which one Byzantine client can move anywhere."""

from dataclasses import dataclass
from typing import ClassVar, final

import torch

from outvote.rules.client_matrix import ClientMatrix
from outvote.rules.rule import AffineRule, Aggregation, RoundInfo, Traits


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Mean(AffineRule):
    r"""Average of all clients.

    $$ \frac{1}{n} \sum_i g_i $$

    Needs: nothing. Tolerates: no Byzantine client. Differs from the paper: nothing.
    Reference: McMahan et al., AISTATS 2017 (unweighted here).

    >>> Mean()([[1.0, 2.0], [3.0, 4.0]])
    array([2., 3.])
    """

    name: ClassVar[str] = "mean"
    traits = Traits(uses_num_byzantine=False)

    def max_byzantine(self, num_clients: int) -> int:
        """Return 0: one Byzantine client moves the mean anywhere."""
        del num_clients
        return 0

    def weigh(self, matrix: ClientMatrix, info: RoundInfo) -> Aggregation:
        """Give every client the same weight."""
        del info
        return Aggregation(weights=equal_weights(matrix))


def equal_weights(matrix: ClientMatrix, counts: torch.Tensor | None = None) -> torch.Tensor:
    """Return the weight 1/n for every client, or its share of the counts."""
    shape = (*matrix.batch, matrix.num_clients)
    if counts is not None:
        return (counts / counts.sum()).expand(shape).clone()
    return torch.full(shape, 1 / matrix.num_clients, dtype=torch.float64, device=matrix.device)
