"""ALIE: LIE with the shift that the original authors work out from the numbers of clients."""

from dataclasses import dataclass
from math import floor
from statistics import NormalDist
from typing import ClassVar, final

import torch

from outvote.attacks.base import Attack
from outvote.attacks.context import AttackContext
from outvote.attacks.crafted import Forged
from outvote.attacks.lie import check_lie, shifted
from outvote.attacks.reference_set import check_reference, more_notes, reference


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ALIE(Attack):
    r"""LIE with the z at which enough honest clients lie further out than the attackers.

    $$ b = \mu - z \sigma, \quad z = \Phi^{-1}\Big(\frac{n - f - s}{n - f}\Big), \quad
       s = \lfloor n/2 + 1 \rfloor - f $$

    Needs: the honest gradients. Differs from the paper: z is kept finite where attackers are a
    majority, and not below 0; it is 0, which is no attack, for 1 of 5 and 2 of 10.
    Reference: Baruch et al., NeurIPS 2019.

    >>> round(ALIE().inspect([[0.0], [2.0]] * 20, num_byzantine=10).factor, 3)
    0.253
    """

    name: ClassVar[str] = "alie"

    spread: str = "population"
    """"population" or "sample" standard deviation, or the "variance" in its place."""
    sign: int = -1
    """-1: against the standard deviation; 1: along it."""
    reference_set: str = "honest"
    """Whose mean and spread: "honest" clients, or "all" (with the attackers' own gradients)."""

    def __post_init__(self) -> None:
        """Check the parameters."""
        check_lie("alie", self.spread, self.sign)
        check_reference("alie", self.reference_set)

    def needs_own(self) -> bool:
        """Tell whether the attackers' own gradients count."""
        return self.reference_set == "all"

    def craft(self, context: AttackContext) -> Forged:
        """Shift the mean by as many standard deviations as the numbers of clients allow."""
        honest = [int(count) for count in context.honest_counts.tolist()]
        pairs = zip(honest, context.num_byzantine, strict=True)
        z = [hiding_z(h + f, f) for h, f in pairs]
        factor = torch.tensor(z, dtype=torch.float64, device=context.device)
        seen = reference(context, self.reference_set)
        rows = shifted(seen.moments.mean, seen.spread(self.spread), self.sign * factor)
        return Forged(rows=rows, factor=factor, notes=more_notes(seen, context))


def hiding_z(num_clients: int, num_byzantine: int) -> float:
    """Return how many standard deviations are safe for so many attackers among so many clients."""
    num_honest = num_clients - num_byzantine
    if num_honest < 1:
        return 0.0
    num_supporters = floor(num_clients / 2 + 1) - num_byzantine
    # A majority needs no supporter; half a client keeps z finite.
    share = (num_honest - max(num_supporters, 0.5)) / num_honest
    return max(0.0, NormalDist().inv_cdf(share)) if share > 0 else 0.0
