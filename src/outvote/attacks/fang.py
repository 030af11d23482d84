"""Fang: attacks made for the trimmed mean and for Krum."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from outvote.attacks.attack import Attack, AttackOutput
from outvote.attacks.context import AttackContext, in_range
from outvote.attacks.gaussian import random_rows
from outvote.attacks.line_search import scaled
from outvote.attacks.parameters import check_number
from outvote.axes import PerCoordinate
from outvote.errors import check_choice
from outvote.ops.moments import Measured, Request, fill_between, norm

Array = NDArray[np.float64]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Fang(Attack):
    r"""Just beyond the honest values, on the side that the honest mean points away from.

    $$ \text{trimmed-mean: } b_{ij} \sim U[b \min_k g_{kj}, \min_k g_{kj}] \text{ if } \mu_j > 0,
       \text{ else } U[\max_k g_{kj}, b \max_k g_{kj}]; \qquad
       \text{krum: } b = -\lambda \, \text{sign}(\mu) $$

    Where the bound is on the other side of zero, the far end is the bound divided by b. lambda is
    halved until Krum selects the attackers' row, or is at most threshold.
    Needs: the honest gradients. Differs from the paper: a mean of 0 counts as negative, and
    lambda starts from n - 2f - 2 neighbours (neighbours="paper": n - f - 2). The trimmed-mean form
    is for the median too. Reference: Fang et al., USENIX Security 2020.

    >>> rows = Fang()([[1.0, -2.0], [3.0, -2.0]], num_byzantine=2, seed=0)
    >>> bool(((rows >= [0.5, -2.0]) & (rows <= [1.0, -1.0])).all())
    True
    """

    name: ClassVar[str] = "fang"
    sees_own: ClassVar[bool] = False

    target: str = "trimmed-mean"
    """The rule to fool: "trimmed-mean" or "krum"."""
    stretch: float = 2.0
    """How far beyond the honest values, as a factor; the paper's b."""
    threshold: float = 1e-5
    """The smallest lambda to try against Krum."""
    neighbours: str = "code"
    """The neighbours that the first lambda counts: n - 2f - 2 ("code"), or n - f - 2 ("paper")."""

    def __post_init__(self) -> None:
        check_choice("fang: target", self.target, ("trimmed-mean", "krum"))
        check_number("fang: stretch", self.stretch, low=1, above=True)
        check_number("fang: threshold", self.threshold, low=0, above=True)
        check_choice("fang: neighbours", self.neighbours, ("code", "paper"))

    @property
    def is_colluding(self) -> bool:  # type: ignore[override]
        """All send the same row to Krum."""
        return self.target == "krum"

    @property
    def is_random(self) -> bool:  # type: ignore[override]
        """Nothing is drawn against Krum."""
        return self.target != "krum"

    def craft(self, context: AttackContext) -> AttackOutput:
        """Draw beyond the honest values, or search for lambda."""
        if self.target == "krum":
            return self._fool_krum(context)
        low, high = beyond(
            context.measured(Request(extremes=True)), self.stretch, context.gradients.dtype
        )
        width = high - low

        def draw(row: Tensor, generator: Generator, run: int) -> None:
            fill_between(row, low[run], width[run], generator)

        return AttackOutput(rows=random_rows(context, draw))

    def _fool_krum(self, context: AttackContext) -> AttackOutput:
        """Send -lambda * sign(mean); everything that Krum uses follows from inner products."""
        request = Request(
            spread=True, norms=True, products=True, toward=lambda mean, _: mean.sign()
        )
        found = context.measured(request)
        # Clients that diverged were left out.
        seen = context if found.is_used is context.is_counted else context.checked
        signs = found.mean.sign()
        sides = (signs.double() * found.mean.double()).sum(dim=-1)
        norms = norm(seen.gradients)
        squares = found.squared_norms
        pairs = (squares.unsqueeze(-1) + squares.unsqueeze(-2) - 2 * found.products).clamp(min=0)
        num_nonzero = signs.abs().double().sum(dim=-1)
        lambdas = []
        for run, num_byzantine in enumerate(context.num_byzantine):
            used = slice(None) if found.is_used is None else found.is_used[run].cpu()
            honest = HonestRows(
                squared_distances=pairs[run].cpu()[used][:, used].numpy(),
                norms=norms[run].cpu()[used].numpy(),
                along_signs=(found.along[run] + sides[run]).cpu()[used].numpy(),
                num_nonzero=float(num_nonzero[run]),
                dim=context.dim,
            )
            num_neighbours = first_neighbours(len(honest.norms), num_byzantine, self.neighbours)
            lambdas.append(honest.largest_lambda(num_byzantine, num_neighbours, self.threshold))
        factor = torch.tensor(lambdas, dtype=torch.float64, device=context.device)
        return AttackOutput(rows=scaled(-factor, signs).unsqueeze(1), factor=factor)


def beyond(
    found: Measured, stretch: float, dtype: torch.dtype
) -> tuple[PerCoordinate, PerCoordinate]:
    """Return the lower and the upper end of the interval to draw from, per coordinate."""
    is_up = found.mean > 0
    edge = torch.where(is_up, found.low, found.high)
    # Further out from zero if the honest values are on both sides of it, else towards it.
    is_outward = (edge < 0) == is_up
    stretch = min(stretch, torch.finfo(edge.dtype).max)
    other = torch.where(is_outward, edge * stretch, edge / stretch)
    edge, other = (in_range(end, dtype).to(edge.dtype) for end in (edge, other))
    return torch.minimum(edge, other), torch.maximum(edge, other)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HonestRows:
    """What Krum sees of the honest clients of a run, and of the signs of their mean."""

    squared_distances: Array
    norms: Array
    along_signs: Array
    """The inner products of the clients with the signs."""
    num_nonzero: float
    """The squared norm of the signs."""
    dim: int

    def largest_lambda(self, num_byzantine: int, num_neighbours: int, threshold: float) -> float:
        """Halve lambda until Krum selects the attackers' row; return the last one tried."""
        if len(self.norms) == 0 or self.num_nonzero == 0 or num_byzantine == 0:
            return 0.0
        # Squares of norms above 1e154 are infinite, and so are the attackers' distances.
        with np.errstate(over="ignore", invalid="ignore"):
            step = min(
                self.first_lambda(num_byzantine, num_neighbours), float(np.finfo(np.float64).max)
            )
            while True:
                far = self.norms**2 + 2 * step * self.along_signs + step * step * self.num_nonzero
                if step <= threshold or self.selects_attackers(far.clip(0), num_byzantine):
                    return step
                step /= 2

    def first_lambda(self, num_byzantine: int, num_neighbours: int) -> float:
        """Return where to start: the paper's upper bound of lambda."""
        nearest = np.sort(np.sqrt(self.squared_distances), axis=-1)[:, 1 : num_neighbours + 1]
        divisor = max(1, len(self.norms) - num_byzantine - 1)
        return float((nearest.sum(axis=-1).min() / divisor + self.norms.max()) / np.sqrt(self.dim))

    def selects_attackers(self, far: Array, num_byzantine: int) -> bool:
        """Whether Krum selects the attackers' common row, `far` (squared) from the honest rows."""
        num_neighbours = max(1, len(far) - 2)
        others = np.repeat(far[:, None], num_byzantine, axis=1)
        seen = np.sort(np.concatenate([self.squared_distances, others], axis=1), axis=1)
        honest = seen[:, 1 : num_neighbours + 1].sum(axis=1).min()
        duplicates = np.zeros(num_byzantine - 1)
        attackers = np.sort(np.concatenate([duplicates, far]))[:num_neighbours].sum()
        return bool(attackers <= honest)


def first_neighbours(num_honest: int, num_byzantine: int, which: str) -> int:
    """Return how many neighbours the first lambda counts."""
    return max(0, num_honest - 2 - (num_byzantine if which == "code" else 0))
