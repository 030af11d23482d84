"""Local SGD: its settings, and one step of it."""

from dataclasses import dataclass
from math import isfinite
from typing import Any, final

import torch
from torch import Tensor

from outvote.errors import check_kind
from outvote.kernels import is_for_kernels, load_kernels

# torch's own clipping guards against a norm of 0 with the same number.
TINY = 1e-6


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSGD:
    """SGD with momentum, weight decay and clipping, started afresh in every round."""

    learning_rate: float = 0.1
    momentum: float = 0.5
    weight_decay: float = 1e-4
    max_norm: float | None = 2.0
    """The norm that the gradient of every step is clipped to; None: no clipping."""
    batch_size: int = 64
    num_epochs: int = 1
    """How often a client goes through its samples in a round."""
    num_steps: int | None = None
    """How many batches a client takes in a round, instead of epochs."""
    client_momentum: float = 0.0
    """The share of what a client sent the last time it took part in what it sends now."""
    schedule: tuple[tuple[int, float], ...] = ()
    """Pairs (round, learning rate): from that round on, counted from 1."""
    augment: bool = False
    """Shift every image by up to four pixels and mirror half of them."""

    def __post_init__(self) -> None:
        """Check the settings."""
        for name in ("learning_rate", "momentum", "weight_decay", "client_momentum"):
            _check_number(name, getattr(self, name), 0.0)
        if self.client_momentum >= 1:
            raise ValueError(f"client_momentum must be below 1, got {self.client_momentum}.")
        if self.max_norm is not None and not self.max_norm > 0:
            raise ValueError(f"max_norm must be positive, or none, got {self.max_norm}.")
        for name in ("batch_size", "num_epochs"):
            _check_count(name, getattr(self, name))
        if self.num_steps is not None:
            _check_count("num_steps", self.num_steps)
        for pair in self.schedule:
            _check_count("schedule: the round", pair[0])
            _check_number("schedule: the learning rate", pair[1], 0.0)

    def learning_rate_at(self, number: int) -> float:
        """Return the learning rate of a round, counted from 1."""
        rate = self.learning_rate
        for start, later in sorted(self.schedule):
            rate = later if number >= start else rate
        return rate


def _check_number(name: str, value: float, least: float) -> None:
    check_kind(name, value, float)
    if not (isfinite(value) and value >= least):
        raise ValueError(f"{name} must be finite and at least {least:g}, got {value}.")


def _check_count(name: str, value: int) -> None:
    check_kind(name, value, int)
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}.")


def _kernels() -> Any:
    return load_kernels("outvote.kernels.sgd_step_triton")


@torch.no_grad()
def take_step(
    weights: Tensor,
    gradients: Tensor,
    velocities: Tensor,
    copy: Tensor | None,
    training: LocalSGD,
    learning_rate: float,
) -> None:
    """Change ``weights`` and ``velocities [models, dim]`` in place; `gradients` may be overwritten.

    `copy` receives the new weights in the precision of the products, where that is another.
    """
    if is_for_kernels(weights) and _kernels() is not None:
        _kernels().take_step(weights, gradients, velocities, copy, training, learning_rate)
        return
    step = gradients.to(weights.dtype)
    if training.max_norm is not None:
        norms = torch.linalg.vector_norm(step, dim=1, keepdim=True)
        step = step.mul_((training.max_norm / (norms + TINY)).clamp(max=1.0))
    step.add_(weights, alpha=training.weight_decay)
    velocities.mul_(training.momentum).add_(step)
    weights.sub_(velocities, alpha=learning_rate)
    if copy is not None:
        copy.copy_(weights)
