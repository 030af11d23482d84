"""The largest shift with which a rule still keeps the attackers, over stream of its randomness."""

import torch
from torch import Tensor

from outvote.attacks.context import AttackContext
from outvote.attacks.lie import shifted
from outvote.axes import PerCoordinate, Rows


class Trials:
    """Asks the defence about rows, always on the same stream, and counts."""

    def __init__(self, context: AttackContext, num_draws: int, num_allowed: int) -> None:
        """Take the number of stream, and in how many of them an attacker may be dropped."""
        self.context, self.num_draws, self.num_allowed = context, num_draws, num_allowed
        self.num_evaluations = 0

    def strength(self, rows: Rows) -> Tensor:
        """Return how far the update is from the honest mean, on average over the stream."""
        return self._ask(rows, gives_up=False)[1]

    def are_kept(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Tell per run whether the attackers are kept often enough, and their strength if so."""
        return self._ask(rows, gives_up=True)

    def _ask(self, rows: Rows, *, gives_up: bool) -> tuple[Tensor, Tensor]:
        context = self.context
        num_failures = torch.zeros(context.num_runs, device=context.device)
        total = torch.zeros(context.num_runs, dtype=torch.float64, device=context.device)
        for draw in range(self.num_draws):
            opinion = context.judge(rows, f"draw-{draw}", wants_kept=gives_up)
            self.num_evaluations += 1
            total += context.distances(opinion.updates)
            if opinion.is_kept is not None:
                num_failures += ~opinion.is_kept
            # Decided: no further draw can make up for these failures.
            if gives_up and bool((num_failures > self.num_allowed).all()):
                break
        return num_failures <= self.num_allowed, total / self.num_draws


class Best:
    """The strongest rows offered so far, run by run."""

    def __init__(self, context: AttackContext) -> None:
        """Begin with the honest mean."""
        self.rows = context.mean.unsqueeze(1)
        self.factor = torch.zeros(context.num_runs, dtype=torch.float64, device=context.device)
        self.strength = torch.full_like(self.factor, -torch.inf)
        self.names = ["mean"] * context.num_runs

    def offer(self, name: str, rows: Rows, factor: Tensor, strength: Tensor) -> None:
        """Take the rows where they are stronger."""
        is_better = strength > self.strength
        self.rows = torch.where(is_better.view(-1, 1, 1), rows, self.rows)
        self.factor = torch.where(is_better, factor, self.factor)
        self.strength = torch.where(is_better, strength, self.strength)
        self.names = [
            name if better else old
            for better, old in zip(is_better.tolist(), self.names, strict=True)
        ]

    def notes(self) -> tuple[str, ...]:
        """Tell what was chosen."""
        factors = self.factor.tolist()
        return tuple(
            f"sent {name} with the factor {factor:.4g}"
            for name, factor in dict.fromkeys(zip(self.names, factors, strict=True))
        )


def largest_kept_shift(
    trials: Trials, vector: PerCoordinate, highest: float, num_steps: int
) -> tuple[Tensor, Tensor]:
    """Double the shift until the attackers are dropped, then bisect; return shift and strength."""
    mean = trials.context.moments.mean
    low = torch.zeros(len(mean), dtype=torch.float64, device=mean.device)
    strength = torch.full_like(low, -torch.inf)
    high = torch.full_like(low, highest)
    shift = torch.full_like(low, min(1.0, highest))
    is_open = torch.ones_like(low, dtype=torch.bool)
    # Every run counts its own steps, so that it ends where it would alone.
    steps_left = torch.full_like(low, num_steps)
    while bool((is_open | (steps_left > 0)).any()):
        is_kept, found = trials.are_kept(shifted(mean, vector, -shift))
        is_on = is_open | (steps_left > 0)
        steps_left = torch.where(is_open, steps_left, steps_left - 1)
        is_new = is_on & is_kept
        low = torch.where(is_new, shift, low)
        strength = torch.where(is_new, found, strength)
        high = torch.where(is_on & ~is_kept, shift, high)
        is_open &= is_kept & (shift < highest)
        steps_left = torch.where(low >= highest, 0.0, steps_left)
        shift = torch.where(is_open, (2 * shift).clamp(max=highest), (low + high) / 2)
    return low, strength
