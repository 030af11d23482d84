"""Zero: a client that has nothing to say."""

from dataclasses import dataclass
from typing import ClassVar, final

from outvote.attacks.base import Attack
from outvote.attacks.context import AttackContext
from outvote.attacks.crafted import Forged


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Zero(Attack):
    r"""All zeros.

    $$ b = 0 $$

    Needs: nothing. Differs from the paper: nothing. Reference: a free rider.

    >>> Zero()([[1.0, 2.0]], num_byzantine=1)
    array([[0., 0.]])
    """

    name: ClassVar[str] = "zero"
    sees_own: ClassVar[bool] = False

    def craft(self, context: AttackContext) -> Forged:
        """Send zeros."""
        return Forged(rows=context.gradients.new_zeros(context.num_runs, 1, context.dim))
