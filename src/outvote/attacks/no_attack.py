"""No attack: the clients that could lie are honest."""

from dataclasses import dataclass
from typing import ClassVar, final

from outvote.attacks.base import Attack
from outvote.attacks.context import AttackContext
from outvote.attacks.crafted import Forged


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class NoAttack(Attack):
    r"""What the clients would have sent anyway.

    $$ b_i = g_i $$

    Needs: own (default: the honest mean). Differs from the paper: nothing.
    Reference: the control that every attack is compared with.

    >>> NoAttack()([[1.0, 2.0], [3.0, 2.0]], num_byzantine=1, own=[[5.0, 0.0]])
    array([[5., 0.]])
    """

    name: ClassVar[str] = "none"
    is_colluding: ClassVar[bool] = False

    def craft(self, context: AttackContext) -> Forged:
        """Send what one has."""
        return Forged(rows=context.own_rows)
