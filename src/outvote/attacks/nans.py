"""NaN: a client that sends no numbers at all."""

from dataclasses import dataclass
from typing import ClassVar, final

import torch

from outvote.attacks.base import Attack
from outvote.attacks.context import AttackContext
from outvote.attacks.crafted import Forged


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class NaNs(Attack):
    r"""NaN in every coordinate: a rule that lets one into a sum is done for.

    $$ b = \text{NaN} $$

    Needs: nothing. Differs from the paper: nothing. Reference: every server that was not tested.

    >>> NaNs()([[1.0, 2.0]], num_byzantine=1)
    array([[nan, nan]])
    """

    name: ClassVar[str] = "nan"
    sees_own: ClassVar[bool] = False
    sends_nonfinite: ClassVar[bool] = True

    def craft(self, context: AttackContext) -> Forged:
        """Send NaN."""
        return Forged(
            rows=context.gradients.new_full((context.num_runs, 1, context.dim), torch.nan)
        )
