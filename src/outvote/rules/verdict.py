"""The verdict on one round: the update, and who was kept."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Verdict:
    """What a rule decided in a round, and why.

    `scores`: the rule's own, else the distance to the update; the larger the more suspicious,
    infinite for rejected clients. `weights`: each client's share in the update (coordinate-wise
    rules: the share of coordinates where its value entered), None if the rule does not know them.
    `kept`, `dropped` and `rejected` name clients by row, or by the ids given as ``clients=``: kept
    have a positive weight, rejected sent something that is not finite.
    """

    update: Any
    scores: NDArray[np.float64]
    weights: NDArray[np.float64] | None
    clients: tuple[Hashable, ...]
    rejected: list[Any]
    num_byzantine: int
    base_num_byzantine: int
    num_groups: int | None = None
    seed: int = 0
    state: Any = None
    notes: tuple[str, ...] = field(default=())

    @property
    def kept(self) -> list[Any] | None:
        """The clients whose gradients are part of the update; None if that is not known."""
        if self.weights is None:
            return None
        return [c for c, weight in zip(self.clients, self.weights, strict=True) if weight > 0]

    @property
    def dropped(self) -> list[Any] | None:
        """The clients who sent something finite that the rule left out; None if not known."""
        if self.weights is None:
            return None
        out = set(self.rejected)
        pairs = zip(self.clients, self.weights, strict=True)
        return [client for client, weight in pairs if not weight > 0 and client not in out]
