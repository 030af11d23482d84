"""The plain mean: what federated averaging does, and what one liar can move anywhere."""

from dataclasses import dataclass
from typing import ClassVar, final

import torch

from outvote.rules.aggregation import Aggregation
from outvote.rules.base import AffineRule, RoundInfo
from outvote.rules.client_matrix import ClientMatrix


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
    uses_num_byzantine: ClassVar[bool] = False

    def max_byzantine(self, num_clients: int) -> int:
        """Return 0: one liar moves the mean anywhere."""
        del num_clients
        return 0

    def guess(self, rows: torch.Tensor) -> torch.Tensor | None:
        """Return the mean: a NaN or an infinity in a row is one in the mean too."""
        # Of float64, numbers that are finite but too large to square are refused as well.
        return None if rows.dtype == torch.float64 else rows.mean(dim=0, dtype=torch.float32)

    def weigh(self, matrix: ClientMatrix, info: RoundInfo) -> Aggregation:
        """Give every client the same weight."""
        del info
        return Aggregation(weights=equal_weights(matrix))


def equal_weights(matrix: ClientMatrix) -> torch.Tensor:
    """Return the weight 1/n for every client."""
    shape = (*matrix.batch, matrix.num_clients)
    return torch.full(shape, 1 / matrix.num_clients, dtype=torch.float64, device=matrix.device)
