"""The server's step: weights minus the update, with momentum, or by adaptive steps.

The simulator and the Flower strategy share it. Adam, Yogi and Adagrad are FedAdam, FedYogi and
FedAdagrad of Reddi et al., Adaptive Federated Optimization, ICLR 2021: Algorithm 2, without bias
correction, as there. The update of the rule is the gradient.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, final, get_args

import torch
from torch import Tensor, nn

from outvote.errors import check_choice, check_kind
from outvote.text import build

Optimizer = Literal["sgd", "adam", "yogi", "adagrad"]
Moments = Mapping[str, Tensor]
"""What the server carries from round to round, by name: each has the shape of the updates."""
STATE_NAMES = ("velocity", "first_moment", "second_moment")
USUAL: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedadam": {"optimizer": "adam", "learning_rate": 0.1},
    "fedyogi": {"optimizer": "yogi", "learning_rate": 0.1},
    "fedadagrad": {"optimizer": "adagrad", "learning_rate": 0.1, "beta1": 0.0},
}
"""The names of servers in texts, and their settings where the text has none."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """How the server applies an update."""

    learning_rate: float = 1.0
    """What the step is multiplied by; all but sgd need about 0.1 or less. Allowed: above 0."""
    momentum: float = 0.0
    """Of sgd: the share of the last step in this one. Allowed: from 0 to below 1."""
    optimizer: Optimizer = "sgd"
    """How the update becomes a step: as it is (sgd), or by the adaptive steps of FedAdam (adam),
    FedYogi (yogi) and FedAdagrad (adagrad)."""
    beta1: float = 0.9
    """Of all but sgd: the share of earlier updates in the first moment. Allowed: from 0 to below
    1."""
    beta2: float = 0.99
    """Of adam and yogi: the share of earlier updates in the second moment. Allowed: from 0 to below
    1."""
    epsilon: float = 1e-3
    """Of all but sgd: what is added to the root of the second moment, tau in the paper. Allowed:
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

    def __str__(self) -> str:
        """Return the text from which `make_server` makes this one."""
        kinds = {each.get("optimizer", "sgd"): name for name, each in USUAL.items()}
        name = kinds[self.optimizer]
        usual = Server(**USUAL[name])
        own = {each.name: getattr(self, each.name) for each in fields(self)}
        more = [f"{key}={each}" for key, each in own.items() if each != getattr(usual, key)]
        return f"{name}({', '.join(more)})" if more else name


def make_server(text: str | Server) -> Server:
    """Make a server from text such as "fedadam(learning_rate=0.01)".

    >>> make_server("fedavg(momentum=0.9)").momentum
    0.9
    """
    if isinstance(text, Server):
        return text
    table = dict.fromkeys(USUAL, Server)
    made: Server = build(text, kind="server optimizer", table=table, aliases={}, base=Server)
    usual = USUAL[text.partition("(")[0].strip().lower()]
    given = text.replace(" ", "")
    return replace(made, **{key: each for key, each in usual.items() if f"{key}=" not in given})


def step(
    server: Server, weights: Tensor, updates: Tensor, state: Moments
) -> tuple[Tensor, Moments]:
    """Return the new weights ``[runs, dim]`` and the new state; that of the first round is {}."""
    moved, new = direction(server, updates, state)
    return weights.sub(moved, alpha=server.learning_rate), new


def direction(server: Server, updates: Tensor, state: Moments) -> tuple[Tensor, Moments]:
    r"""Return the step for the learning rate 1, and the new state.

    $$ m_t = \beta_1 m_{t-1} + (1 - \beta_1) u_t, \quad s_t = m_t / (\sqrt{v_t} + \epsilon) $$

    with $m_0 = 0$ and $v_0 = \epsilon^2$, and without moments $s_t = u_t$ plus momentum.
    """
    if server.optimizer == "sgd":
        if server.momentum == 0:
            return updates, {}
        last = state.get("velocity")
        velocity = updates.clone() if last is None else last.mul(server.momentum).add_(updates)
        return velocity, {"velocity": velocity}
    first, second = state.get("first_moment"), state.get("second_moment")
    first = torch.zeros_like(updates) if first is None else first
    second = torch.full_like(updates, server.epsilon**2) if second is None else second
    first = torch.lerp(updates, first, server.beta1)
    second = SECOND_MOMENTS[server.optimizer](second, updates.square(), server.beta2)
    return first / (second.sqrt() + server.epsilon), {
        "first_moment": first,
        "second_moment": second,
    }


def _adam(second: Tensor, square: Tensor, beta2: float) -> Tensor:
    """Average the squares, recent ones first: v = beta2 v + (1 - beta2) u²."""
    return torch.lerp(square, second, beta2)


def _yogi(second: Tensor, square: Tensor, beta2: float) -> Tensor:
    """Move towards the squares by a share of them: v = v - (1 - beta2) u² sign(v - u²)."""
    return second - (1 - beta2) * square * torch.sign(second - square)


def _adagrad(second: Tensor, square: Tensor, beta2: float) -> Tensor:
    """Add the squares up: v = v + u²."""
    del beta2
    return second + square


SECOND_MOMENTS = {"adam": _adam, "yogi": _yogi, "adagrad": _adagrad}


@final
@dataclass(frozen=True, slots=True, eq=False)
class BufferKinds:
    """Which of a network's buffers are of a kind, one mark per number."""

    is_whole: Tensor
    """Whole numbers and truth values."""
    is_counter: Tensor
    """How many batches were seen."""
    is_variance: Tensor
    """Running variances."""

    @classmethod
    def of(cls, module: nn.Module, device: torch.device) -> "BufferKinds":
        """Read the kinds of a network's buffers, in their order."""
        whole, counters, variances = [], [], []
        for name, buffer in module.named_buffers():
            num = buffer.numel()
            whole += [not buffer.is_floating_point()] * num
            counters += [name.endswith("num_batches_tracked")] * num
            variances += [name.endswith("running_var")] * num
        marks = torch.tensor([whole, counters, variances], dtype=torch.bool, device=device)
        return cls(*marks)


def are_same(one: Tensor, two: Tensor) -> Tensor:
    """Mark where two tensors are equal, or both are NaN."""
    return (one == two) | (one.isnan() & two.isnan())


def merge_buffers(
    before: Tensor, sent: Tensor, is_kept: Tensor, *, selects: Tensor, kinds: BufferKinds
) -> Tensor:
    """Merge ``sent [runs, clients, buffers]`` into ``[runs, buffers]``.

    What no client changed stays as it was `before`, such as a mask of infinities. Where a run's
    rule selects clients: the mean over those. Where it does not: the coordinate-wise median of
    those with finite statistics. Counters: the maximum. If no client was kept, all count.
    """
    if sent.numel() == 0:
        return sent.new_empty(len(sent), 0)
    is_same = are_same(sent, before.unsqueeze(1))
    counted = is_kept | ~is_kept.any(dim=-1, keepdim=True)
    share = counted.to(sent.dtype) / counted.sum(dim=-1, keepdim=True)
    # NaN times 0 is NaN: clients that do not count are set to 0.
    mean = (torch.where(counted.unsqueeze(-1), sent, 0.0) * share.unsqueeze(-1)).sum(dim=1)
    is_finite = (sent.isfinite() | is_same).all(dim=-1, keepdim=True)
    median = torch.where(is_finite, sent, torch.nan).nanquantile(0.5, dim=1)
    merged = torch.where(selects.unsqueeze(-1), mean, median)
    merged = torch.where(kinds.is_whole, merged.round(), merged)
    merged = torch.where(kinds.is_counter, sent.amax(dim=1), merged)
    return torch.where(is_same.all(dim=1), before, merged)


def buffer_changes(before: Tensor, after: Tensor) -> Tensor:
    """Return ``before - after``, exactly 0 where a buffer did not change."""
    return torch.where(are_same(before, after), 0.0, before - after)


def move_buffers(buffers: Tensor, update: Tensor, kinds: BufferKinds) -> Tensor:
    """Apply the part of an update that belongs to ``buffers [runs, buffers]``.

    Whole numbers are rounded, counters and variances clamped at 0.
    """
    moved = buffers - update.to(buffers)
    moved = torch.where(kinds.is_whole, moved.round(), moved)
    moved = torch.where(kinds.is_counter | kinds.is_variance, moved.clamp(min=0), moved)
    return torch.where(update == 0, buffers, moved)
