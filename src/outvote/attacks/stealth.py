"""How far attackers may go along a direction and still be no outliers: Min-Max and Min-Sum."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from outvote.attacks.context import AttackContext, in_range, norm
from outvote.attacks.parameters import check_number, check_sign
from outvote.attacks.statistics import Measured, Toward, Wanted
from outvote.axes import PerClient, PerCoordinate
from outvote.errors import check_choice

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
        """Take off what rounding may add, so that the rows that are sent keep within reach."""
        slack = SLACK[self.vector.dtype]
        return (reach * (1 - slack - self.rounding) - self.rounding_at_mean).clamp(min=0)


def check_stealth(name: str, direction: str, sign: int, spread: str, method: str) -> None:
    """Check what Min-Max and Min-Sum share."""
    check_choice(f"{name}: direction", direction, DIRECTIONS)
    check_sign(name, sign)
    check_choice(f"{name}: spread", spread, ("population", "sample"))
    check_choice(f"{name}: method", method, METHODS)


def check_search(name: str, gamma_init: float, tolerance: float) -> None:
    """Check the parameters of the search for gamma."""
    check_number(f"{name}: gamma_init", gamma_init, low=0, above=True)
    check_number(f"{name}: tolerance", tolerance, low=1e-12)


def set_course(
    context: AttackContext, direction: str, sign: int, spread: str, *, pairs: bool
) -> Course:
    """Measure the honest clients, and along the direction."""
    toward = DIRECTIONS[direction]
    wanted = Wanted(
        spread=True,
        norms=True,
        products=pairs,
        toward=toward if pairs else None,
        is_exact=True,
    )
    found = context.measured(wanted)
    assert found.spread is not None
    vector = toward(found.mean, found.spread)
    length, mean_length = norm(vector), norm(found.mean)
    scale = torch.ones_like(length)
    if direction == "unit-mean":
        # A mean that is next to nothing has no direction.
        shortest = torch.finfo(vector.dtype).tiny ** 0.5
        scale = torch.where(length > shortest, 1 / length, 0.0)
    elif direction == "std" and spread == "sample":
        scale = found.sample_factor()
    scale = -sign * scale
    # Rounded in the work (mean, shift) and when sent; the tiniest numbers are rounded to a grid.
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

    Read off inner products around the mean: what rounding takes from small distances is no matter
    for the largest. A client left out counts as one at the mean, which is never the furthest.
    """
    pairs = squared_norms.unsqueeze(-1) + squared_norms.unsqueeze(-2) - 2 * products
    return pairs.flatten(1).amax(dim=-1).clamp(min=0)
