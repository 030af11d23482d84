"""Server optimisers: plain steps, momentum and adaptive steps from the update of a round.

They run after the rule, on its one update, which no single client controls.
Reference: Reddi et al., Adaptive Federated Optimization, ICLR 2021.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import isfinite
from typing import ClassVar, final

import torch
from torch import Tensor

from outvote.server.step import adam_second, adaptive_step, yogi_second
from outvote.text import build, to_text

OptimizerState = Mapping[str, Tensor]
"""What an optimiser carries from round to round; it is part of a checkpoint."""


class ServerOptimizer(ABC):
    """Turns the update of a rule into the step of the model."""

    name: ClassVar[str] = ""

    @abstractmethod
    def step(self, update: Tensor, state: OptimizerState) -> tuple[Tensor, OptimizerState]:
        """Return the step that is added to the model, and the new state."""

    def __str__(self) -> str:
        """Return the text from which `make_server_optimizer` builds this one."""
        return to_text(self, ServerOptimizer)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FedAvg(ServerOptimizer):
    """The update itself, times a learning rate; with momentum if wanted.

    >>> FedAvg(learning_rate=0.5).step(torch.ones(2), {})[0]
    tensor([0.5000, 0.5000])
    """

    name: ClassVar[str] = "fedavg"
    learning_rate: float = 1.0
    """What the step is multiplied by."""
    momentum: float = 0.0
    """The share of the last step in this one."""

    def __post_init__(self) -> None:
        _check(self)

    def step(self, update: Tensor, state: OptimizerState) -> tuple[Tensor, OptimizerState]:
        """Return the update, or the decaying sum of all updates, times the learning rate."""
        if self.momentum == 0:
            return update * self.learning_rate, {}
        velocity = update + self.momentum * state.get("velocity", torch.zeros_like(update))
        return velocity * self.learning_rate, {"velocity": velocity}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Adaptive(ServerOptimizer):
    """Steps that are shorter where earlier updates were large."""

    learning_rate: float = 0.1
    """What the step is multiplied by."""
    beta_1: float = 0.9
    """The share of earlier updates in the first moment."""
    tau: float = 1e-3
    """How large a coordinate must be to count; the smaller, the more adaptive."""

    def __post_init__(self) -> None:
        _check(self)

    def step(self, update: Tensor, state: OptimizerState) -> tuple[Tensor, OptimizerState]:
        """Return the mean of past updates over the root of their mean square."""
        step, first, second = adaptive_step(
            update,
            state.get("first"),
            state.get("second"),
            beta1=self.beta_1,
            epsilon=self.tau,
            next_second=self.second_moment,
        )
        return self.learning_rate * step, {"first": first, "second": second}

    @abstractmethod
    def second_moment(self, second: Tensor, square: Tensor) -> Tensor:
        """Update the second moment by the squares of an update."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FedAdagrad(_Adaptive):
    """Adaptive steps that only ever get shorter (Adagrad)."""

    name: ClassVar[str] = "fedadagrad"
    beta_1: float = 0.0
    """The share of earlier updates in the first moment."""

    def second_moment(self, second: Tensor, square: Tensor) -> Tensor:
        """Add the squares up."""
        return second + square


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FedAdam(_Adaptive):
    """Adaptive steps that forget old updates."""

    name: ClassVar[str] = "fedadam"
    beta_2: float = 0.99
    """The share of earlier updates in the second moment."""

    def second_moment(self, second: Tensor, square: Tensor) -> Tensor:
        """Average, recent squares first."""
        return adam_second(second, square, self.beta_2)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FedYogi(_Adaptive):
    """Adaptive steps that forget old updates slowly: one small update does not matter."""

    name: ClassVar[str] = "fedyogi"
    beta_2: float = 0.99
    """The share of earlier updates in the second moment."""

    def second_moment(self, second: Tensor, square: Tensor) -> Tensor:
        """Move towards the squares by a share of them."""
        return yogi_second(second, square, self.beta_2)


SERVER_OPTIMIZERS: dict[str, type[ServerOptimizer]] = {
    kind.name: kind for kind in (FedAvg, FedAdagrad, FedAdam, FedYogi)
}


def make_server_optimizer(text: str | ServerOptimizer) -> ServerOptimizer:
    """Build a server optimiser from text such as "fedadam(learning_rate=0.01)".

    >>> make_server_optimizer("fedavg(momentum=0.9)")
    FedAvg(learning_rate=1.0, momentum=0.9)
    """
    if isinstance(text, ServerOptimizer):
        return text
    made: ServerOptimizer = build(
        text, kind="server optimizer", table=SERVER_OPTIMIZERS, aliases={}, base=ServerOptimizer
    )
    return made


def _check(optimizer: FedAvg | _Adaptive) -> None:
    for each in fields(optimizer):
        value = getattr(optimizer, each.name)
        if each.name in ("learning_rate", "tau"):
            is_fine, wanted = isfinite(value) and value > 0, "positive and finite"
        else:
            is_fine, wanted = 0 <= value < 1, "from 0 to below 1"
        if not is_fine:
            raise ValueError(f"{optimizer.name}: {each.name} must be {wanted}, got {value}.")
