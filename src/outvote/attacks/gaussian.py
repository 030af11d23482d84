"""Gaussian: a client that sends noise."""

from dataclasses import dataclass
from typing import ClassVar, final

from outvote.attacks.base import Attack
from outvote.attacks.context import AttackContext
from outvote.attacks.crafted import Forged
from outvote.attacks.parameters import check_number
from outvote.attacks.random_rows import normal_rows


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Gaussian(Attack):
    r"""Normal noise instead of a gradient, independent for each attacker.

    $$ b_i \sim N(0, \sigma^2 I) $$

    Needs: nothing. Differs from the paper: sigma is 1, 200 in the Krum paper.
    Reference: Blanchard et al., NeurIPS 2017.

    >>> Gaussian(sigma=200)([[1.0, 2.0]], num_byzantine=3, seed=0).shape
    (3, 2)
    """

    name: ClassVar[str] = "gaussian"
    sees_own: ClassVar[bool] = False
    is_colluding: ClassVar[bool] = False
    is_random: ClassVar[bool] = True

    sigma: float = 1.0
    """The standard deviation of the noise."""

    def __post_init__(self) -> None:
        """Check the parameters."""
        check_number("gaussian: sigma", self.sigma, low=0)

    def craft(self, context: AttackContext) -> Forged:
        """Draw the rows."""
        return Forged(rows=normal_rows(context, self.sigma), is_fresh=True)
