"""An aggregation rule of your own: `rule = "my_rule.py:MyRule"` in outvote.toml."""

from dataclasses import dataclass

import outvote as ov
import torch
from torch import Tensor


@dataclass(frozen=True)
class MyRule(ov.VectorRule):
    """Average of the n - f clients nearest to the coordinate-wise median."""

    # Parameters are fields with a default: "my_rule.py:MyRule(order=1.0)".
    order: float = 2.0
    """Which norm measures distances: 2 is Euclidean, 1 sums absolute differences."""

    def __post_init__(self) -> None:
        """Refuse wrong parameters; the message is printed before any run starts."""
        if self.order < 1:
            raise ValueError(f"order must be at least 1, got {self.order}.")

    def max_byzantine(self, num_clients: int) -> int:
        """Return how many Byzantine clients among so many the rule tolerates."""
        return (num_clients - 1) // 2

    def aggregate(self, rows: Tensor, num_byzantine: int) -> tuple[Tensor, Tensor]:
        """Return the update [dim], and the share [clients] that each client has in it.

        `rows` is [clients, dim]: what the clients sent, without rows that have NaN or
        infinity.
        """
        # torch.median takes the lower of two middle values; this takes their mean.
        median = (rows.median(dim=0).values - (-rows).median(dim=0).values) / 2
        distances = torch.linalg.vector_norm(rows - median, ord=self.order, dim=1)
        kept = distances.argsort(stable=True)[: len(rows) - num_byzantine]
        weights = torch.zeros_like(distances).index_fill(0, kept, 1 / len(kept))
        return weights @ rows, weights
