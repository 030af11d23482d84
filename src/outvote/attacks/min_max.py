"""Min-Max and Min-Sum: the largest shift with which the attackers are no outliers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from outvote.attacks.attack import Attack, AttackOutput
from outvote.attacks.context import AttackContext, in_range
from outvote.attacks.parameters import check_number, check_reference_set, check_sign
from outvote.axes import PerClient, PerCoordinate
from outvote.errors import check_choice
from outvote.ops.moments import Measured, Request, Toward, norm

DIRECTIONS: dict[str, Toward] = {
    "std": lambda mean, spread: spread,
    "sign": lambda mean, spread: mean.sign(),
    "unit-mean": lambda mean, spread: mean,
}
METHODS = ("closed-form", "search")
# Relative errors of squared lengths: a tile is summed in the precision of the work.
SLACK = {torch.float32: 2e-6, torch.float64: 1e-13}


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """Attackers at mean - gamma * scale * vector, and what was measured about the honest."""

    found: Measured
    vector: PerCoordinate
    scale: Tensor
    squared_length: Tensor
    rounding: float
    rounding_at_mean: Tensor

    def rows(self, gamma: Tensor) -> Tensor:
        """Return the row of each run."""
        factor = in_range(gamma * self.scale, self.vector.dtype).unsqueeze(-1)
        return torch.addcmul(self.found.mean, self.vector, factor, value=-1).unsqueeze(1)

    def shortened(self, reach: Tensor) -> Tensor:
        """Subtract what rounding may add, so that the rows that are sent keep the constraint."""
        slack = SLACK[self.vector.dtype]
        return (reach * (1 - slack - self.rounding) - self.rounding_at_mean).clamp(min=0)


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
    sees_own: ClassVar[bool] = False

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
        _check(self)

    def craft(self, context: AttackContext) -> AttackOutput:
        """Go as far as the constraint allows."""
        course = set_course(self, context, pairs=True)
        gamma = self.factor(course)
        return AttackOutput(rows=course.rows(gamma), factor=gamma)

    def factor(self, course: Course) -> Tensor:
        """Return the largest gamma: each client bounds it by a root, and the least one counts."""
        found, a = course.found, course.squared_length.unsqueeze(-1)
        reach = course.shortened(largest_pair(found.products, found.squared_norms).sqrt())
        slack: Tensor = reach.square().unsqueeze(-1) - found.squared_norms
        along: Tensor = course.scale.unsqueeze(-1) * found.along

        def is_feasible(gamma: Tensor) -> Tensor:
            g = gamma.unsqueeze(-1)
            return (a * g.square() + 2 * along * g <= slack).all(dim=-1)

        can_move = (course.squared_length > 0) & (slack >= 0).all(dim=-1)
        if self.method == "search":
            start = torch.full_like(course.squared_length, float(self.gamma_init))
            return torch.where(can_move, search_gamma(is_feasible, start, self.tolerance), 0.0)
        root = (along.square() + a * slack.clamp(min=0)).sqrt()
        # Of the two forms of the root, the one that does not cancel.
        ahead = slack / torch.where(along > 0, along + root, 1.0)
        behind = (root - along) / torch.where(a > 0, a, 1.0)
        gamma = torch.where(along > 0, ahead, behind).amin(dim=-1).clamp(0, self.max_gamma)
        return torch.where(can_move, gamma, 0.0)


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
    sees_own: ClassVar[bool] = False

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
        _check(self)
        check_choice("min-sum: limit", self.limit, ("max", "min"))

    def craft(self, context: AttackContext) -> AttackOutput:
        """Go as far as the constraint allows."""
        course = set_course(self, context, pairs=False)
        gamma = self.factor(course)
        return AttackOutput(rows=course.rows(gamma), factor=gamma)

    def factor(self, course: Course) -> Tensor:
        """Return the largest gamma; the distances to the mean cancel on both sides."""
        norms, is_used = course.found.squared_norms, course.found.is_used
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


def _check(attack: MinMax | MinSum) -> None:
    name = attack.name
    check_choice(f"{name}: direction", attack.direction, DIRECTIONS)
    check_sign(name, attack.sign)
    check_choice(f"{name}: spread", attack.spread, ("population", "sample"))
    check_choice(f"{name}: method", attack.method, METHODS)
    check_number(f"{name}: gamma_init", attack.gamma_init, low=0, above=True)
    check_number(f"{name}: tolerance", attack.tolerance, low=1e-12)
    check_reference_set(name, attack.reference_set)
    check_number(f"{name}: max_gamma", attack.max_gamma, low=0, above=True)


def set_course(attack: MinMax | MinSum, context: AttackContext, *, pairs: bool) -> Course:
    """Measure the honest clients, and along the direction."""
    context = context.with_reference_set(attack.reference_set)
    toward = DIRECTIONS[attack.direction]
    request = Request(
        spread=True,
        norms=True,
        products=pairs,
        toward=toward if pairs else None,
        is_exact=True,
    )
    found = context.measured(request)
    vector = toward(found.mean, found.spread)
    length, mean_length = norm(vector), norm(found.mean)
    scale = torch.ones_like(length)
    if attack.direction == "unit-mean":
        # A mean close to 0 has no direction.
        shortest = torch.finfo(vector.dtype).tiny ** 0.5
        scale = torch.where(length > shortest, 1 / length, 0.0)
    elif attack.direction == "std" and attack.spread == "sample":
        scale = found.sample_factor()
    scale = -attack.sign * scale
    # Rounded in the computation (mean, shift) and when sent; subnormals are rounded to a grid.
    sent = torch.finfo(context.gradients.dtype)
    rounding = 2 * torch.finfo(vector.dtype).eps
    if context.gradients.dtype != vector.dtype:
        rounding += sent.eps / 2
    grid = context.dim**0.5 * sent.smallest_normal * sent.eps
    return Course(
        found=found,
        vector=vector,
        scale=scale,
        squared_length=(scale * length).square(),
        rounding=rounding,
        rounding_at_mean=rounding * mean_length + grid,
    )


def search_gamma(
    is_feasible: Callable[[Tensor], Tensor], start: Tensor, tolerance: float
) -> Tensor:
    """Return the last feasible gamma of the halving search of the original authors, per run."""
    gamma, step, feasible = start, start, torch.zeros_like(start)
    # Steps that are lost in rounding lead nowhere, however small a tolerance is asked for.
    while bool(
        (
            is_open := ((feasible - gamma).abs() > tolerance)
            & ((gamma + step != gamma) | (gamma - step != gamma))
        ).any()
    ):
        is_fine = is_feasible(gamma)
        feasible = torch.where(is_open & is_fine, gamma, feasible)
        step = step / 2
        gamma = torch.where(is_open, torch.where(is_fine, gamma + step, gamma - step), gamma)
    return feasible


def largest_pair(products: Tensor, squared_norms: PerClient) -> Tensor:
    """Return the largest squared distance between two honest clients.

    From inner products around the mean: rounding of small distances does not matter for the
    largest. A client left out counts as one at the mean, which is never the furthest.
    """
    pairs = squared_norms.unsqueeze(-1) + squared_norms.unsqueeze(-2) - 2 * products
    return pairs.flatten(1).amax(dim=-1).clamp(min=0)
