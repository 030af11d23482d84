"""Bit flip (sign flip): train honestly, send the opposite."""

from dataclasses import dataclass
from typing import ClassVar, final

from outvote.attacks.attack import Attack, AttackOutput
from outvote.attacks.context import AttackContext


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class BitFlip(Attack):
    r"""The opposite of what the client would have sent.

    $$ b_i = -g_i $$

    Needs: own (default: the honest mean). Differs from the paper: nothing.
    Reference: Karimireddy et al., ICLR 2022; the source that the GAS paper cites calls it sign
    flip.

    >>> BitFlip()([[1.0, 2.0], [3.0, 2.0]], num_byzantine=1, own=[[5.0, -1.0]])
    array([[-5.,  1.]])
    """

    name: ClassVar[str] = "bit-flip"
    is_colluding: ClassVar[bool] = False

    def craft(self, context: AttackContext) -> AttackOutput:
        """Negate every attacker's own gradient."""
        return AttackOutput(rows=-context.own_rows)
