"""Min-Sum: no further from the honest clients in sum than one of them is from the others."""

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
    search_gamma,
    set_course,
)
from outvote.errors import check_choice


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MinSum(Attack):
    r"""The largest shift whose squared distances sum to no more than those of some honest client.

    $$ b = \mu - \gamma \sigma, \qquad
       \max \gamma : \sum_i \|b - g_i\|^2 \le \max_i \sum_j \|g_i - g_j\|^2
       \iff \gamma \|\sigma\| \le \max_i \|g_i - \mu\| $$

    Needs: the honest gradients. Differs from the paper: gamma in closed form, which is what their
    search (method="search") tends to; the rows that are sent keep the constraint in spite of
    rounding. The authors' code takes the least sum on the right (limit="min").
    Reference: Shejwalkar & Houmansadr, NDSS 2021.

    >>> MinSum()([[1.0, 2.0], [3.0, 2.0]], num_byzantine=1).round(5)
    array([[1., 2.]])
    """

    name: ClassVar[str] = "min-sum"

    direction: str = "std"
    """The standard deviation ("std"), the "sign" of the mean, or the "unit-mean"."""
    sign: int = -1
    """-1: against the direction; 1: along it."""
    spread: str = "population"
    """"population" or "sample" standard deviation."""
    limit: str = "max"
    """The "max" of the honest clients' sums, or the "min"."""
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
        check_number("min-sum: max_gamma", self.max_gamma, low=0, above=True)
        check_choice("min-sum: limit", self.limit, ("max", "min"))

    def needs_own(self) -> bool:
        """Tell whether the attackers' own gradients count."""
        return self.reference_set == "all"

    def craft(self, context: AttackContext) -> Forged:
        """Go as far as the constraint allows."""
        seen = reference(context, self.reference_set)
        course = set_course(seen, self.direction, self.sign, self.spread, pairs=False)
        gamma = self.factor(course)
        rows = course.rows(gamma)
        return Forged(rows=rows, factor=gamma, notes=more_notes(seen, context))

    def factor(self, course: Course) -> Tensor:
        """Return the largest gamma; the distances to the mean cancel on both sides."""
        norms, is_used = course.found.squared_norms, course.found.is_used
        assert norms is not None
        if self.limit == "max":
            reach = norms.amax(dim=-1)
        else:
            reach = (norms if is_used is None else norms.where(is_used, torch.inf)).amin(dim=-1)
            reach = reach.where(reach.isfinite(), 0.0)
        reach = course.shortened(reach.sqrt())
        length = course.squared_length.sqrt()
        if self.method == "search":
            start = torch.full_like(length, float(self.gamma_init))
            gamma = search_gamma(lambda g: g * length <= reach, start, self.tolerance)
        else:
            gamma = (reach / torch.where(length > 0, length, 1.0)).clamp(max=self.max_gamma)
        return torch.where(length > 0, gamma, 0.0)
