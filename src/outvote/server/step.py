"""The server's step: weights minus the update, with momentum if wanted."""

from dataclasses import dataclass
from typing import final

from torch import Tensor


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """How the server applies an update."""

    learning_rate: float = 1.0
    momentum: float = 0.0

    def __post_init__(self) -> None:
        """Check the settings."""
        if not 0 < self.learning_rate < float("inf"):
            raise ValueError(
                f"server: learning_rate must be positive and finite, got {self.learning_rate}."
            )
        if not 0 <= self.momentum < 1:
            raise ValueError(f"server: momentum must be from 0 to below 1, got {self.momentum}.")


def step(
    server: Server, weights: Tensor, updates: Tensor, velocity: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Return the new weights ``[runs, dim]`` and the new velocity (None without momentum)."""
    if server.momentum == 0:
        return weights.sub(updates, alpha=server.learning_rate), None
    moved = updates.clone() if velocity is None else velocity.mul(server.momentum).add_(updates)
    return weights.sub(moved, alpha=server.learning_rate), moved
