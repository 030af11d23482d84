"""Zero: a client that has nothing to say."""

from dataclasses import dataclass
from typing import ClassVar, final

from outvote.attacks.base import Attack
from outvote.attacks.crafted import Forged
from outvote.attacks.scene import Scene


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

    def craft(self, scene: Scene) -> Forged:
        """Send zeros."""
        return Forged(rows=scene.gradients.new_zeros(scene.num_runs, 1, scene.dim))
