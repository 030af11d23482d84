"""Inf: a client that sends infinity."""

from dataclasses import dataclass
from typing import ClassVar, final

import torch

from outvote.attacks.base import Attack
from outvote.attacks.context import AttackContext
from outvote.attacks.crafted import Forged


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Infs(Attack):
    r"""Infinity in every coordinate.

    $$ b = \infty $$

    Needs: nothing. Differs from the paper: nothing. Reference: every server that was not tested.

    >>> Infs()([[1.0, 2.0]], num_byzantine=1)
    array([[inf, inf]])
    """

    name: ClassVar[str] = "inf"
    sees_own: ClassVar[bool] = False
    sends_nonfinite: ClassVar[bool] = True

    def craft(self, context: AttackContext) -> Forged:
        """Send infinity."""
        return Forged(
            rows=context.gradients.new_full((context.num_runs, 1, context.dim), torch.inf)
        )
