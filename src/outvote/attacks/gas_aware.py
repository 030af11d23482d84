"""GAS-aware: the attack that knows the rule and everything else but the server's random split."""

from dataclasses import dataclass
from math import ceil
from typing import ClassVar, final

import torch
from torch import Tensor

from outvote.attacks.base import Attack
from outvote.attacks.context import AttackContext, norm
from outvote.attacks.crafted import Forged
from outvote.attacks.ipm import IPM
from outvote.attacks.kept_shift import Best, Trials, largest_kept_shift
from outvote.attacks.lie import LIE, shifted
from outvote.attacks.min_max import MinMax
from outvote.attacks.optimal_ipm import OptimalIPM
from outvote.attacks.optimal_lie import OptimalLIE
from outvote.attacks.parameters import check_count, check_number
from outvote.axes import PerCoordinate

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
    and bisected. Of these shifts, of LIE, Min-Max and IPM, and of the optimal forms, the one is
    sent that takes the update furthest from the honest mean on average over the draws. If a rule
    keeps everybody, max_shift is the limit.
    Needs: the honest gradients, and a rule with `inspect`.
    Differs from the paper: there is none. Reference: this library; the directions are those of
    Baruch et al. (NeurIPS 2019), Xie et al. (UAI 2020), Shejwalkar & Houmansadr (NDSS 2021).

    >>> from outvote.attacks.spec import make_attack
    >>> make_attack("gas-aware(draws=8)")
    GASAware(draws=8, success=0.9, max_shift=100.0, steps=7)
    """

    name: ClassVar[str] = "gas-aware"
    sees_own: ClassVar[bool] = False
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
        """Check the parameters."""
        check_count("gas-aware: draws", self.draws)
        check_number("gas-aware: success", self.success, low=0, high=1)
        check_number("gas-aware: max_shift", self.max_shift, low=0, above=True)
        check_count("gas-aware: steps", self.steps, low=0)

    def needs_rule(self) -> bool:
        """Tell that the attack asks a rule."""
        return True

    def craft(self, context: AttackContext) -> Forged:
        """Try all directions and the plain attacks, and send the strongest."""
        allowed = self.draws - ceil(self.success * self.draws - 1e-9)
        trials = Trials(context, self.draws, allowed)
        best = Best(context)
        mean = context.moments.mean
        for name, vector in directions(context).items():
            shift, strength = largest_kept_shift(trials, vector, self.max_shift, self.steps)
            best.offer(name, shifted(mean, vector, -shift), shift, strength)
        for name, attack in {**PLAIN, **self._searches()}.items():
            forged = attack.craft(context)
            trials.num_evaluations += forged.num_evaluations
            assert forged.factor is not None
            best.offer(name, forged.rows, forged.factor, trials.strength(forged.rows))
        return Forged(
            rows=best.rows,
            factor=best.factor,
            notes=best.notes(),
            num_evaluations=trials.num_evaluations,
        )

    def _searches(self) -> dict[str, Attack]:
        return {
            "optimal-lie": OptimalLIE(max_factor=self.max_shift),
            "optimal-ipm": OptimalIPM(max_factor=self.max_shift),
        }


def directions(context: AttackContext) -> dict[str, PerCoordinate]:
    """Return what is subtracted from the mean; the signs are made as long as the spread."""
    mean, spread = context.moments.mean, context.spread("population")
    size: Tensor = (norm(spread) / context.dim**0.5).to(mean.dtype).unsqueeze(-1)
    return {"std": spread, "mean": mean, "sign": torch.sign(mean) * size}
