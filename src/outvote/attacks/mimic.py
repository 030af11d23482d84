"""Mimic: all attackers copy one honest client, so that the others are under-represented."""

from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Tensor

from outvote.attacks.attack import Attack, AttackOutput
from outvote.attacks.context import AttackContext
from outvote.attacks.parameters import check_count
from outvote.axes import PerClient, PerCoordinate, Rows
from outvote.errors import check_kind
from outvote.ops.moments import Tile, along, summed, weighted_sum
from outvote.ops.process import work_dtype


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Mimic(Attack):
    r"""A copy of one honest client: a given one, or the one furthest along the main spread.

    $$ b = g_k, \qquad k = \arg\max_i \langle g_i, z \rangle, \quad
       z \leftarrow \text{unit}\Big(\tfrac{t}{t+1} z + \tfrac{1}{t+1} \text{unit}
       \sum_i \langle g_i - \mu, z \rangle (g_i - \mu)\Big) $$

    Needs: the honest gradients; with client=none also the state of the last round. Differs from
    the paper: if the client is not there, another one is copied. A client is known by its row
    among the honest ones. Reference: Karimireddy et al., ICLR 2022.

    >>> Mimic(client=1)([[1.0, 2.0], [3.0, 2.0]], num_byzantine=2)
    array([[3., 2.],
           [3., 2.]])
    """

    name: ClassVar[str] = "mimic"
    sees_own: ClassVar[bool] = False
    depends_on_order: ClassVar[bool] = True

    client: int | None = 0
    """The honest client to copy; None: learn it."""
    warmup: int = 100
    """After so many rounds the learnt client stays the same."""

    def __post_init__(self) -> None:
        check_kind("mimic: client", self.client, int | None)
        if self.client is not None:
            check_count("mimic: client", self.client, low=0)
        check_count("mimic: warmup", self.warmup)

    @property
    def is_random(self) -> bool:  # type: ignore[override]
        """Learning begins with a random direction."""
        return self.client is None

    @property
    def has_state(self) -> bool:  # type: ignore[override]
        """A given client needs no state."""
        return self.client is None

    def craft(self, context: AttackContext) -> AttackOutput:
        """Copy one honest client."""
        seen = context.trusted
        is_used = seen.used_rows
        clients = numbered(context, seen.gradients.shape[1])
        if self.client is not None:
            target = torch.full((seen.num_runs,), int(self.client), device=seen.device)
            count = is_used.sum(dim=-1).clamp(min=1)
            is_other = (is_used.cumsum(-1) - 1 == (target % count).unsqueeze(-1)) & is_used
            row = present(target, clients, is_used, is_other.double())
            return AttackOutput(rows=rows_at(seen, row))
        scores, state = learn(seen, read_state(context))
        is_learning = state.num_rounds <= self.warmup
        wanted = torch.where(is_learning, -1, state.target)
        row = present(wanted, clients, is_used, scores)
        target = clients.gather(-1, row.unsqueeze(-1)).squeeze(-1)
        target = torch.where(is_learning, target, state.target)
        return AttackOutput(rows=rows_at(seen, row), state=replace(state, target=target))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MimicState:
    """What mimic keeps of a run, ``[1, ...]`` each: direction, mean so far, whom it copies."""

    direction: PerCoordinate
    mean: PerCoordinate
    num_rounds: Tensor
    target: Tensor


def read_state(context: AttackContext) -> MimicState:
    """Check the state; without one the run is in its first round."""
    state = context.state
    if state is None:
        zero = torch.zeros(1, dtype=torch.int64, device=context.device)
        nothing = torch.zeros(1, 1, device=context.device).expand(1, context.dim)
        return MimicState(direction=nothing, mean=nothing, num_rounds=zero, target=zero - 1)
    if not isinstance(state, MimicState):
        kind = type(state).__name__
        raise ValueError(f"mimic: state must be what the last round returned, got {kind}.")  # noqa: TRY004
    if tuple(state.direction.shape) != (1, context.dim):
        raise ValueError(
            f"mimic: state must have the {context.dim} coordinates of the gradients, got the shape "
            f"{tuple(state.direction.shape)}; begin without a state."
        )
    return state


def numbered(context: AttackContext, num_rows: int) -> Tensor:
    """Return the sender of each row; without ids, honest clients are counted, diverged ones too."""
    ids = context.clients
    if ids is None:
        ids = context.used_rows.cumsum(dim=-1) - 1
    # The attackers' own gradients may have been added; they have no id.
    more = torch.arange(num_rows - ids.shape[1], device=context.device)
    more = more if context.clients is None else torch.full_like(more, -2)
    return torch.cat([ids.to(context.device), more.expand(len(ids), -1)], dim=1)


def present(target: Tensor, clients: Tensor, is_used: Tensor, instead: Tensor) -> Tensor:
    """Return the row of the target per run, or of the best score if it is not there."""
    is_target = (clients == target.unsqueeze(-1)) & is_used
    scores = torch.where(is_used, instead, -torch.inf)
    return torch.where(is_target.any(-1), is_target.double().argmax(-1), scores.argmax(-1))


def rows_at(context: AttackContext, row: Tensor) -> Tensor:
    """Copy one row of each run; zeros if there is none to copy."""
    runs = torch.arange(context.num_runs, device=context.device)
    rows = context.gradients[runs, row].unsqueeze(1)
    return rows.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


def learn(context: AttackContext, state: MimicState) -> tuple[PerClient, MimicState]:
    """Take one step towards the main direction; a score is how far along it a client is.

    Two passes over the gradients: one for the inner products with the old direction, and one that
    makes each tile of the new direction and at once its inner products with the clients.
    """
    dtype = _dtype(context)
    rounds = state.num_rounds.to(context.device).unsqueeze(-1)
    share = (1 / (rounds.double() + 1)).to(dtype)
    old = _begun(context, state, dtype)
    mean = torch.lerp(state.mean.to(context.device, dtype), context.mean.to(dtype), share)
    weights, before = _along(context, mean, old)
    step, after, length = _step(context, mean, weights)
    length = torch.where(length > 0, length, 1.0)
    scores = (1 - share) * before + share * after / length.unsqueeze(-1)
    direction = torch.lerp(old, step / length.unsqueeze(-1).to(dtype), share)
    size = torch.linalg.vector_norm(direction, dim=-1, keepdim=True)
    direction = direction / torch.where(size > 0, size, 1.0)
    state = MimicState(
        direction=direction,
        mean=mean,
        num_rounds=state.num_rounds.to(context.device) + 1,
        target=state.target.to(context.device),
    )
    return scores, state


def _dtype(context: AttackContext) -> torch.dtype:
    """Inner products of large or tiny numbers need float64."""
    if context.gradients.dtype == torch.float64:
        return torch.float64
    size = float(context.mean.abs().amax())
    return work_dtype(context.gradients.dtype) if 1e-12 < size < 1e12 else torch.float64


def _begun(context: AttackContext, state: MimicState, dtype: torch.dtype) -> PerCoordinate:
    """Return the old direction; a run that has none yet begins with a random one."""
    direction = state.direction.to(context.device, dtype)
    if int(state.num_rounds) or bool(direction.any()):
        return direction
    generator = context.stream.fold_in("mimic").generator(0, context.device)
    return torch.empty_like(direction, memory_format=torch.contiguous_format).normal_(
        generator=generator
    )


def _along(context: AttackContext, mean: Tensor, old: Tensor) -> tuple[PerClient, PerClient]:
    """Return the inner products of the old direction with g - mean (largest: 1) and with g."""

    def work(values: Rows, tile: Tile) -> Tensor:
        towards = old[tile]
        # The mean's own product, beside those of the clients.
        own = (mean[tile] * towards).sum(dim=-1, keepdim=True)
        return torch.cat([along(values, towards), own], dim=-1).double()

    total = summed(context.gradients, context.is_counted, mean.dtype, work)
    found = total[:, :-1]
    away = torch.where(context.used_rows, found - total[:, -1:], 0.0)
    largest = away.abs().amax(dim=-1, keepdim=True)
    return away / torch.where(largest > 0, largest, 1.0), found


def _step(
    context: AttackContext, mean: Tensor, weights: PerClient
) -> tuple[PerCoordinate, PerClient, Tensor]:
    """Return the weighted sum of g - mean, its inner products with g, and its length."""
    step = torch.empty_like(mean)
    given = weights.to(mean.dtype)
    total_weight = given.sum(dim=-1, keepdim=True)

    def work(values: Rows, tile: Tile) -> Tensor:
        runs = tile[0]
        part = weighted_sum(given[runs], values) - total_weight[runs] * mean[tile]
        step[tile] = part
        squares = part.double().square().sum(dim=-1, keepdim=True)
        return torch.cat([along(values, part).double(), squares], dim=-1)

    total = summed(context.gradients, context.is_counted, mean.dtype, work)
    return step, total[:, :-1], total[:, -1].sqrt()
