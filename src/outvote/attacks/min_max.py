"""Min-Max: as far away as the furthest two honest clients are from each other."""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from outvote.attacks.base import Attack
from outvote.attacks.context import AttackContext
from outvote.attacks.crafted import Forged
from outvote.attacks.parameters import check_number
from outvote.attacks.reference_set import check_reference, more_notes, reference
from outvote.attacks.stealth import (
    Course,
    check_search,
    check_stealth,
    largest_pair,
    search_gamma,
    set_course,
)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MinMax(Attack):
    r"""The largest shift that is no further from any honest client than two of them are apart.

    $$ b = \mu - \gamma \sigma, \qquad
       \max \gamma : \max_i \|b - g_i\| \le \max_{i,j} \|g_i - g_j\| $$

    Needs: the honest gradients. Differs from the paper: gamma in closed form, which is what their
    search (method="search") tends to, and no more than max_gamma, which is as far as that gets;
    the rows that are sent keep the constraint in spite of rounding.
    Reference: Shejwalkar & Houmansadr, NDSS 2021.

    >>> MinMax()([[1.0, 2.0], [3.0, 2.0]], num_byzantine=1).round(5)
    array([[1., 2.]])
    """

    name: ClassVar[str] = "min-max"

    direction: str = "std"
    """The standard deviation ("std"), the "sign" of the mean, or the "unit-mean"."""
    sign: int = -1
    """-1: against the direction; 1: along it."""
    spread: str = "population"
    """"population" or "sample" standard deviation."""
    method: str = "closed-form"
    """"closed-form", or the "search" of the paper, which stays a little below."""
    max_gamma: float = 20.0
    """The largest gamma of the closed form."""
    gamma_init: float = 10.0
    """Where the search starts."""
    tolerance: float = 1e-5
    """Where the search stops."""
    reference_set: str = "honest"
    """Among whom to hide: "honest" clients, or "all" (with the attackers' own gradients)."""

    def __post_init__(self) -> None:
        """Check the parameters."""
        check_stealth(self.name, self.direction, self.sign, self.spread, self.method)
        check_search(self.name, self.gamma_init, self.tolerance)
        check_reference(self.name, self.reference_set)
        check_number("min-max: max_gamma", self.max_gamma, low=0, above=True)

    def needs_own(self) -> bool:
        """Tell whether the attackers' own gradients count."""
        return self.reference_set == "all"

    def craft(self, context: AttackContext) -> Forged:
        """Go as far as the constraint allows."""
        seen = reference(context, self.reference_set)
        course = set_course(seen, self.direction, self.sign, self.spread, pairs=True)
        gamma = self.factor(course)
        rows = course.rows(gamma)
        return Forged(rows=rows, factor=gamma, notes=more_notes(seen, context))

    def factor(self, course: Course) -> Tensor:
        """Return the largest gamma: each client bounds it by a root, and the least one counts."""
        found, a = course.found, course.squared_length.unsqueeze(-1)
        assert found.squared_norms is not None
        assert found.products is not None
        assert found.along is not None
        reach = course.shortened(largest_pair(found.products, found.squared_norms).sqrt())
        room = reach.square().unsqueeze(-1) - found.squared_norms
        along = course.scale.unsqueeze(-1) * found.along

        def is_feasible(gamma: Tensor) -> Tensor:
            g = gamma.unsqueeze(-1)
            return (a * g.square() + 2 * along * g <= room).all(dim=-1)

        can_move = (course.squared_length > 0) & (room >= 0).all(dim=-1)
        if self.method == "search":
            start = torch.full_like(course.squared_length, float(self.gamma_init))
            return torch.where(can_move, search_gamma(is_feasible, start, self.tolerance), 0.0)
        root = (along.square() + a * room.clamp(min=0)).sqrt()
        # Of the two forms of the root, the one that does not cancel.
        ahead = room / torch.where(along > 0, along + root, 1.0)
        behind = (root - along) / torch.where(a > 0, a, 1.0)
        gamma = torch.where(along > 0, ahead, behind).amin(dim=-1).clamp(0, self.max_gamma)
        return torch.where(can_move, gamma, 0.0)
