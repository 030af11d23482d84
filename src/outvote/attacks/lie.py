"""LIE (a little is enough): a shift small enough to hide among the honest."""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from outvote.attacks.base import Attack
from outvote.attacks.context import SPREADS, AttackContext, in_range
from outvote.attacks.crafted import Forged
from outvote.attacks.parameters import check_number, check_sign
from outvote.attacks.reference_set import check_reference, more_notes, reference
from outvote.axes import PerCoordinate, Rows
from outvote.errors import check_choice


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LIE(Attack):
    r"""The honest mean, shifted by z standard deviations in every coordinate.

    $$ b = \mu - z \sigma $$

    Needs: the honest gradients. Differs from the paper: z is given (1.5 in the GAS paper; `alie`
    works it out). Others add the shift (sign=1), take the sample standard deviation
    (spread="sample"), or look at the attackers' own gradients too (reference_set="all"); the
    released code of GAS shifts by the variance (spread="variance"), which is next to nothing.
    Reference: Baruch et al., NeurIPS 2019.

    >>> LIE(z=1)([[1.0, 2.0], [3.0, 2.0]], num_byzantine=1)
    array([[1., 2.]])
    """

    name: ClassVar[str] = "lie"

    z: float = 1.5
    """How many standard deviations to shift by."""
    spread: str = "population"
    """"population" or "sample" standard deviation, or the "variance" in its place."""
    sign: int = -1
    """-1: against the standard deviation; 1: along it."""
    reference_set: str = "honest"
    """Whose mean and spread: "honest" clients, or "all" (with the attackers' own gradients)."""

    def __post_init__(self) -> None:
        """Check the parameters."""
        check_number("lie: z", self.z)
        check_lie("lie", self.spread, self.sign)
        check_reference("lie", self.reference_set)

    def needs_own(self) -> bool:
        """Tell whether the attackers' own gradients count."""
        return self.reference_set == "all"

    def craft(self, context: AttackContext) -> Forged:
        """Shift the mean."""
        seen = reference(context, self.reference_set)
        factor = torch.full((context.num_runs,), float(self.z), dtype=torch.float64)
        factor = factor.to(context.device)
        rows = shifted(seen.moments.mean, seen.spread(self.spread), self.sign * factor)
        return Forged(rows=rows, factor=factor, notes=more_notes(seen, context))


def check_lie(name: str, spread: str, sign: int) -> None:
    """Check what all forms of LIE share."""
    check_choice(f"{name}: spread", spread, SPREADS)
    check_sign(name, sign)


def shifted(mean: PerCoordinate, spread: PerCoordinate, factor: Tensor) -> Rows:
    """Return mean + factor * spread, one row per run."""
    # A factor beyond the range of the dtype would make NaN of a spread of 0.
    return torch.addcmul(mean, spread, in_range(factor, mean.dtype).unsqueeze(-1)).unsqueeze(1)
