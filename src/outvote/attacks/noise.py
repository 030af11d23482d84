"""Noise: a client that adds noise to its gradient."""

from dataclasses import dataclass
from typing import ClassVar, final

from outvote.attacks.base import Attack
from outvote.attacks.context import AttackContext
from outvote.attacks.crafted import Forged
from outvote.attacks.parameters import check_number
from outvote.attacks.random_rows import normal_rows


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Noise(Attack):
    r"""Normal noise on top of the client's own gradient, independent for each attacker.

    $$ b_i = g_i + N(0, \sigma^2 I) $$

    Needs: own (default: the honest mean). Differs from the paper: nothing.
    Reference: Li et al., AAAI 2019 (RSA), among others.

    >>> Noise(sigma=0)([[1.0, 2.0]], num_byzantine=1, own=[[5.0, 6.0]])
    array([[5., 6.]])
    """

    name: ClassVar[str] = "noise"
    is_colluding: ClassVar[bool] = False
    is_random: ClassVar[bool] = True

    sigma: float = 0.5
    """The standard deviation of the noise."""

    def __post_init__(self) -> None:
        """Check the parameters."""
        check_number("noise: sigma", self.sigma, low=0)

    def craft(self, context: AttackContext) -> Forged:
        """Add what was drawn to what the attackers have."""
        rows = normal_rows(context, self.sigma).add_(context.own_rows)
        return Forged(rows=rows, is_fresh=True)
