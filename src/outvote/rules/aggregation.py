"""What a rule answers on some matrix."""

from dataclasses import dataclass, replace
from typing import Any

from outvote.axes import Mixture, PerClient, PerCoordinate


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregation:
    """A weighted average of the clients, or any other vector.

    `weights` alone means the average of the clients with these weights, which sum to 1.
    Where `vector` is given it is the answer, and `weights` (if any) only tell each client's share.
    """

    weights: PerClient | None = None
    vector: PerCoordinate | None = None
    scores: PerClient | None = None
    state: Any = None
    num_groups: int | None = None
    notes: tuple[str, ...] = ()

    def unmixed(self, mixture: Mixture) -> "Aggregation":
        """Tell the same answer in terms of the clients that were mixed."""
        if self.weights is None:
            return replace(self, scores=None)
        weights = (self.weights.unsqueeze(-2).double() @ mixture.double()).squeeze(-2)
        # The shares of a coordinate-wise rule do not sum to 1: one client is in many mixed ones.
        return replace(self, weights=weights.clamp(max=1), scores=None)
