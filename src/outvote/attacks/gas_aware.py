"""GAS-aware: the attack that knows the rule and everything else but the server's random split."""

from dataclasses import dataclass
from math import ceil
from typing import ClassVar, final

import torch
from torch import Tensor

from outvote.attacks.attack import CHOSEN, Attack, AttackOutput
from outvote.attacks.context import AttackContext
from outvote.attacks.ipm import IPM, OptimalIPM
from outvote.attacks.lie import LIE, OptimalLIE, shifted
from outvote.attacks.min_max import MinMax
from outvote.attacks.parameters import check_count, check_number
from outvote.axes import PerCoordinate, Rows
from outvote.ops.moments import norm

PLAIN: dict[str, Attack] = {
    "lie": LIE(),
    "min-max": MinMax(),
    "ipm": IPM(),
    "ipm(epsilon=0.1)": IPM(epsilon=0.1),
}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class GASAware(Attack):
    r"""The largest shift that the rule still keeps, in the direction that hurts most.

    $$ b = \mu - s v, \quad v \in \{\sigma, \mu, \text{sign}(\mu)\}, \qquad
       \max s : P(\text{all attackers are kept}) \ge 0.9 $$

    The probability is over the rule's randomness, by `draws` of the attackers' own; s is bracketed
    and bisected. These shifts, LIE, Min-Max, IPM and the optimal forms compete: the attackers send
    the one that takes the update furthest from the honest mean on average over the draws. If a
    rule keeps everybody, max_shift is the limit. If a rule does not report whom it keeps, the
    shifts are left out, and a note reports it.
    Needs: the honest gradients and a rule.
    Differs from the paper: there is none. Reference: this library; the directions are those of
    Baruch et al. (NeurIPS 2019), Xie et al. (UAI 2020), Shejwalkar & Houmansadr (NDSS 2021).

    >>> from outvote.attacks.attack_spec import make_attack
    >>> make_attack("gas-aware(draws=8)")
    GASAware(draws=8, success=0.9, max_shift=100.0, steps=7)
    """

    name: ClassVar[str] = "gas-aware"
    sees_own: ClassVar[bool] = False
    needs_kept: ClassVar[bool] = True
    is_random: ClassVar[bool] = True

    draws: int = 16
    """How many draws of the rule's randomness to try each shift on."""
    success: float = 0.9
    """The share of the draws in which all attackers must be kept."""
    max_shift: float = 100.0
    """The largest shift, in standard deviations (or means) per coordinate."""
    steps: int = 7
    """How often the bracket around the largest shift is halved."""

    def __post_init__(self) -> None:
        check_count("gas-aware: draws", self.draws)
        check_number("gas-aware: success", self.success, low=0, high=1)
        check_number("gas-aware: max_shift", self.max_shift, low=0, above=True)
        check_count("gas-aware: steps", self.steps, low=0)

    def needs_rule(self) -> bool:
        """The search asks a rule."""
        return True

    def craft(self, context: AttackContext) -> AttackOutput:
        """Try all directions and the plain attacks, and send the strongest."""
        allowed = self.draws - ceil(self.success * self.draws - 1e-9)
        trials = Trials(context, self.draws, allowed)
        best = Best(context)
        mean = context.moments.mean
        for name, vector in directions(context).items():
            found = largest_kept_shift(trials, vector, self.max_shift, self.steps)
            if found is None:
                break
            shift, strength = found
            best.offer(name, shifted(mean, vector, -shift), shift, strength)
        searches = {
            "optimal-lie": OptimalLIE(max_factor=self.max_shift),
            "optimal-ipm": OptimalIPM(max_factor=self.max_shift),
        }
        for name, attack in {**PLAIN, **searches}.items():
            output = attack.craft(context)
            trials.num_evaluations += output.num_evaluations
            best.offer(name, output.rows, output.factor, trials.strength(output.rows))
        return AttackOutput(
            rows=best.rows,
            factor=best.factor,
            notes=(*best.notes(), *trials.notes),
            num_evaluations=trials.num_evaluations,
        )


def directions(context: AttackContext) -> dict[str, PerCoordinate]:
    """Return what is subtracted from the mean; the signs are scaled to the norm of the spread."""
    mean, spread = context.moments.mean, context.spread("population")
    size: Tensor = (norm(spread) / context.dim**0.5).to(mean.dtype).unsqueeze(-1)
    return {"std": spread, "mean": mean, "sign": torch.sign(mean) * size}


class Trials:
    """Asks the defence about rows, always with the same draws, and counts.

    In `num_allowed` of the draws an attacker may be dropped.
    """

    def __init__(self, context: AttackContext, num_draws: int, num_allowed: int) -> None:
        self.context, self.num_draws, self.num_allowed = context, num_draws, num_allowed
        self.num_evaluations = 0
        self.notes: tuple[str, ...] = ()

    def strength(self, rows: Rows) -> Tensor:
        """Return the distance of the update to the honest mean, on average over the draws."""
        distances = (self._ask(rows, draw)[0] for draw in range(self.num_draws))
        return sum(distances, self.context.per_run(0)) / self.num_draws

    def are_kept(self, rows: Rows) -> tuple[Tensor, Tensor] | None:
        """Return per run whether the attackers are kept often enough, and their strength if so.

        None: the defence does not report whom it keeps.
        """
        num_failures, total = self.context.per_run(0), self.context.per_run(0)
        for draw in range(self.num_draws):
            distance, is_kept = self._ask(rows, draw)
            if is_kept is None:
                self.notes = ("the defence does not report whom it keeps: no shift was searched",)
                return None
            total += distance
            num_failures += ~is_kept
            # Decided: no further draw can make up for these failures.
            if bool((num_failures > self.num_allowed).all()):
                break
        return num_failures <= self.num_allowed, total / self.num_draws

    def _ask(self, rows: Rows, draw: int) -> tuple[Tensor, Tensor | None]:
        updates, is_kept = self.context.ask(rows, f"draw-{draw}")
        self.num_evaluations += 1
        return self.context.distances(updates), is_kept


class Best:
    """The strongest rows offered so far, run by run."""

    def __init__(self, context: AttackContext) -> None:
        self.rows = context.mean.unsqueeze(1)
        self.factor = context.per_run(0)
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
        """Return what was chosen."""
        factors = self.factor.tolist()
        return tuple(
            f"{CHOSEN}{name} with the factor {factor:.4g}"
            for name, factor in dict.fromkeys(zip(self.names, factors, strict=True))
        )


def largest_kept_shift(
    trials: Trials, vector: PerCoordinate, highest: float, num_steps: int
) -> tuple[Tensor, Tensor] | None:
    """Double the shift until the attackers are dropped, then bisect; return shift and strength."""
    mean, low = trials.context.moments.mean, trials.context.per_run(0)
    strength = torch.full_like(low, -torch.inf)
    high = torch.full_like(low, highest)
    shift = torch.full_like(low, min(1.0, highest))
    is_open = torch.ones_like(low, dtype=torch.bool)
    # Every run counts its own steps, so that a batch ends where each run would.
    steps_left = torch.full_like(low, num_steps)
    while bool((is_open | (steps_left > 0)).any()):
        answer = trials.are_kept(shifted(mean, vector, -shift))
        if answer is None:
            return None
        is_kept, found = answer
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
