"""The line searches of attacks that know the defence, for many runs at once."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from outvote.attacks.attack import AttackOutput
from outvote.attacks.context import AttackContext, in_range
from outvote.axes import Rows
from outvote.ops.moments import norm
from outvote.ops.process import work_dtype

# Differences of two updates that are no more than rounding.
NOISE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class LineSearch:
    """How to look for the largest value: steps double while they help, then they shrink.

    `looks_left` also tries points below the best one, as El-Mhamdi et al. do; ByzFL does not.
    """

    evals: int
    delta: float
    ratio: float = 0.8
    highest: float
    looks_left: bool = True


def line_maximize(
    objective: Callable[[Tensor], Tensor], start: Tensor, search: LineSearch, noise: Tensor | float
) -> Tensor:
    """Return the best x >= 0 found per run; a tie, up to `noise`, stays with the earlier one."""
    best = start
    best_value = objective(start)
    tried = start
    delta = torch.full_like(start, search.delta)
    is_growing = torch.ones_like(start, dtype=torch.bool)
    for _ in range(search.evals - 1):
        tried = torch.where(is_growing, best + delta, _shrink(best, tried, delta, search))
        tried = tried.clamp(max=search.highest)
        value = objective(tried)
        is_better = value > best_value + noise
        best = torch.where(is_better, tried, best)
        best_value = torch.where(is_better, value, best_value)
        is_growing = is_growing & is_better
        delta = torch.where(is_growing, 2 * delta, search.ratio * delta)
    return best


def _shrink(best: Tensor, tried: Tensor, delta: Tensor, search: LineSearch) -> Tensor:
    """Propose a point on the other side of the best one, but never below 0."""
    if not search.looks_left:
        return best + delta
    left = tried - delta
    while bool(((left < 0) & (tried > 0)).any()):
        left = torch.where(left < 0, (left + tried) / 2, left)
    return torch.where(tried < best, tried + delta, left.clamp(min=0))


def strongest_factor(
    context: AttackContext, rows_for: Callable[[Tensor], Rows], search: LineSearch
) -> AttackOutput:
    """Send the rows whose factor takes the update furthest from the honest mean, per run."""

    def distance(factor: Tensor) -> Tensor:
        return context.distances(context.ask(rows_for(factor), "search")[0])

    # The defence is asked in the precision of the computation: updates are not rounded further.
    noise = NOISE * torch.finfo(work_dtype(context.gradients.dtype)).eps * norm(context.mean)
    factor = line_maximize(distance, context.per_run(0), search, noise)
    return AttackOutput(rows=rows_for(factor), factor=factor, num_evaluations=search.evals)


def scaled(factor: Tensor, vectors: Tensor) -> Tensor:
    """Multiply the vector of each run by its factor."""
    return in_range(factor, vectors.dtype).unsqueeze(-1) * vectors
