"""The direction in which honest clients differ most, learnt over the rounds."""

from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from outvote.attacks.context import AttackContext
from outvote.attacks.products import along, weighted_sum
from outvote.attacks.statistics import tiles
from outvote.axes import PerClient, PerCoordinate
from outvote.precision import work_dtype
from outvote.threads import mapped


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MimicState:
    """What mimic remembers of each run: a direction, the mean so far, whom it copies."""

    direction: PerCoordinate
    mean: PerCoordinate
    num_rounds: Tensor
    target: Tensor

    @classmethod
    def fresh(cls, num_runs: int, dim: int, device: torch.device) -> "MimicState":
        """Return the memory of runs that have not seen a round yet."""
        zeros = torch.zeros(num_runs, dtype=torch.int64, device=device)
        nothing = torch.zeros(1, 1, device=device).expand(num_runs, dim)
        return cls(direction=nothing, mean=nothing, num_rounds=zeros, target=zeros - 1)

    def where(self, is_chosen: Tensor, other: "MimicState") -> "MimicState":
        """Return this memory for the runs that are marked, and another for the rest."""
        if bool(is_chosen.all()):
            return self

        def pick(name: str) -> Tensor:
            mine = getattr(self, name)
            theirs = getattr(other, name).to(mine.device, mine.dtype)
            return torch.where(is_chosen.view(-1, *[1] * (mine.dim() - 1)), mine, theirs)

        return MimicState(**{field.name: pick(field.name) for field in fields(self)})


def learn(
    context: AttackContext, is_used: Tensor, state: MimicState
) -> tuple[PerClient, MimicState]:
    """Take one step towards the main direction; the scores tell how far along it each client is.

    Two passes over the gradients: one for the inner products with the old direction, and one that
    makes each tile of the new direction and at once its inner products with the clients.
    """
    dtype = _dtype(context)
    rounds = state.num_rounds.to(context.device).unsqueeze(-1)
    share = (1 / (rounds.double() + 1)).to(dtype)
    old = _begun(context, state, dtype)
    mean = torch.lerp(state.mean.to(context.device, dtype), context.mean.to(dtype), share)
    weights, before = _along(context, is_used, dtype, mean, old)
    step, after, length = _step(context, is_used, dtype, mean, weights)
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
    """Return the old directions; a run that has none yet begins with a random one."""
    is_first = ((state.num_rounds == 0) & ~state.direction.any(dim=-1)).tolist()
    direction = state.direction.to(context.device, dtype)
    if not any(is_first):
        return direction
    direction = direction.clone(memory_format=torch.contiguous_format)
    stream = context.stream.fold_in("mimic")
    for run, is_new in enumerate(is_first):
        if is_new:
            direction[run].normal_(generator=stream.generator(run, context.device))
    return direction


def _along(
    context: AttackContext, is_used: Tensor, dtype: torch.dtype, mean: Tensor, old: Tensor
) -> tuple[PerClient, PerClient]:
    """Return the inner products of the old direction with g - mean (largest: 1) and with g."""

    def work(tile: tuple[slice, slice]) -> Tensor:
        runs, columns = tile
        values = _values(context, is_used, tile, dtype)
        towards = old[runs, columns]
        # The mean's own product, beside those of the clients.
        own = (mean[runs, columns] * towards).sum(dim=-1, keepdim=True)
        return torch.cat([along(values, towards), own], dim=-1).double()

    total = _summed(context, work, context.gradients.shape[1] + 1)
    found = total[:, :-1]
    away = torch.where(is_used, found - total[:, -1:], 0.0)
    largest = away.abs().amax(dim=-1, keepdim=True)
    return away / torch.where(largest > 0, largest, 1.0), found


def _step(
    context: AttackContext, is_used: Tensor, dtype: torch.dtype, mean: Tensor, weights: PerClient
) -> tuple[PerCoordinate, PerClient, Tensor]:
    """Return the weighted sum of g - mean, its inner products with g, and its length."""
    step = torch.empty_like(mean)
    given = weights.to(dtype)
    total_weight = given.sum(dim=-1, keepdim=True)

    def work(tile: tuple[slice, slice]) -> Tensor:
        runs, columns = tile
        values = _values(context, is_used, tile, dtype)
        part = weighted_sum(given[runs], values) - total_weight[runs] * mean[runs, columns]
        step[runs, columns] = part
        squares = part.double().square().sum(dim=-1, keepdim=True)
        return torch.cat([along(values, part).double(), squares], dim=-1)

    total = _summed(context, work, context.gradients.shape[1] + 1)
    return step, total[:, :-1], total[:, -1].sqrt()


def _values(
    context: AttackContext, is_used: Tensor, tile: tuple[slice, slice], dtype: torch.dtype
) -> Tensor:
    runs, columns = tile
    values = context.gradients[runs, :, columns].to(dtype)
    if context.is_honest is None:
        return values
    return values.masked_fill(~is_used[runs].unsqueeze(-1), 0)


def _summed(
    context: AttackContext, work: Callable[[tuple[slice, slice]], Tensor], size: int
) -> Tensor:
    cut = tiles(context.gradients)
    parts = mapped(work, cut, context.device)
    total = torch.zeros(context.num_runs, size, dtype=torch.float64, device=context.device)
    for (runs, _), part in zip(cut, parts, strict=True):
        total[runs] += part
    return total
