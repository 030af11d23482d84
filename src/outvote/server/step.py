"""The server's step: weights minus the update, with momentum, or by adaptive steps.

Adam and Yogi are FedAdam and FedYogi of Reddi et al., Adaptive Federated Optimization, ICLR 2021:
Algorithm 2, without bias correction, as there. The update of the rule is the gradient.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, final, get_args

import torch
from torch import Tensor

from outvote.errors import check_choice, check_kind

Optimizer = Literal["sgd", "adam", "yogi"]
ServerState = Mapping[str, Tensor]
"""What the server carries from round to round, by name: each is ``[runs, dim]``."""
STATE_NAMES = ("velocity", "first_moment", "second_moment")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """How the server applies an update."""

    learning_rate: float = 1.0
    """What the step is multiplied by; adam and yogi need about 0.1 or less. Allowed: above 0."""
    momentum: float = 0.0
    """Of sgd: the share of the last step in this one. Allowed: from 0 to below 1."""
    optimizer: Optimizer = "sgd"
    """How the update becomes a step: as it is (sgd), or by the adaptive steps of FedAdam (adam) and
    FedYogi (yogi)."""
    beta1: float = 0.9
    """Of adam and yogi: the share of earlier updates in the first moment. Allowed: from 0 to below
    1."""
    beta2: float = 0.99
    """Of adam and yogi: the share of earlier updates in the second moment. Allowed: from 0 to below
    1."""
    epsilon: float = 1e-3
    """Of adam and yogi: what is added to the root of the second moment, tau in the paper. Allowed:
    above 0."""

    def __post_init__(self) -> None:
        """Check the settings."""
        check_choice("server: optimizer", self.optimizer, get_args(Optimizer))
        for name in ("learning_rate", "epsilon"):
            value = getattr(self, name)
            check_kind(f"server: {name}", value, float)
            if not 0 < value < float("inf"):
                raise ValueError(f"server: {name} must be positive and finite, got {value}.")
        for name in ("momentum", "beta1", "beta2"):
            value = getattr(self, name)
            check_kind(f"server: {name}", value, float)
            if not 0 <= value < 1:
                raise ValueError(f"server: {name} must be from 0 to below 1, got {value}.")
        if self.momentum > 0 and self.optimizer != "sgd":
            raise ValueError(
                f"server: momentum is for optimizer 'sgd', got {self.momentum} with "
                f"{self.optimizer!r}; set beta1 instead."
            )


def step(
    server: Server, weights: Tensor, updates: Tensor, state: ServerState
) -> tuple[Tensor, ServerState]:
    """Return the new weights ``[runs, dim]`` and the new state; that of the first round is {}."""
    if server.optimizer != "sgd":
        moved, first, second = adaptive_step(
            updates,
            state.get("first_moment"),
            state.get("second_moment"),
            beta1=server.beta1,
            epsilon=server.epsilon,
            next_second=partial(SECOND_MOMENTS[server.optimizer], beta2=server.beta2),
        )
        new: ServerState = {"first_moment": first, "second_moment": second}
    elif server.momentum > 0:
        last = state.get("velocity")
        moved = updates.clone() if last is None else last.mul(server.momentum).add_(updates)
        new = {"velocity": moved}
    else:
        moved, new = updates, {}
    return weights.sub(moved, alpha=server.learning_rate), new


def adaptive_step(
    update: Tensor,
    first: Tensor | None,
    second: Tensor | None,
    *,
    beta1: float,
    epsilon: float,
    next_second: Callable[[Tensor, Tensor], Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Return the step before the learning rate, and the new first and second moments.

    $$ m_t = \beta_1 m_{t-1} + (1 - \beta_1) u_t, \quad s_t = m_t / (\sqrt{v_t} + \epsilon) $$

    The moments are None in the first round: $m_0 = 0$ and $v_0 = \epsilon^2$. `next_second` makes
    $v_t$ of $v_{t-1}$ and $u_t^2$.
    """
    first = torch.zeros_like(update) if first is None else first
    second = torch.full_like(update, epsilon**2) if second is None else second
    first = torch.lerp(update, first, beta1)
    second = next_second(second, update.square())
    return first / (second.sqrt() + epsilon), first, second


def adam_second(second: Tensor, square: Tensor, beta2: float) -> Tensor:
    """Average the squares, recent ones first: v = beta2 v + (1 - beta2) u²."""
    return torch.lerp(square, second, beta2)


def yogi_second(second: Tensor, square: Tensor, beta2: float) -> Tensor:
    """Move towards the squares by a share of them: v = v - (1 - beta2) u² sign(v - u²)."""
    return second - (1 - beta2) * square * torch.sign(second - square)


SECOND_MOMENTS = {"adam": adam_second, "yogi": yogi_second}
