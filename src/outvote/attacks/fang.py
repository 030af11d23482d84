"""Fang: attacks made for the trimmed mean and for Krum."""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Generator, Tensor

from outvote.attacks.base import Attack
from outvote.attacks.context import AttackContext, in_range
from outvote.attacks.crafted import Forged
from outvote.attacks.fang_krum import fool_krum
from outvote.attacks.parameters import check_number
from outvote.attacks.random_rows import random_rows
from outvote.attacks.statistics import Measured, Wanted
from outvote.axes import PerCoordinate
from outvote.errors import check_choice

PIECE = 1 << 15


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Fang(Attack):
    r"""Just beyond the honest values, on the side that the honest mean points away from.

    $$ \text{trimmed-mean: } b_{ij} \sim U[b \min_k g_{kj}, \min_k g_{kj}] \text{ if } \mu_j > 0,
       \text{ else } U[\max_k g_{kj}, b \max_k g_{kj}]; \qquad
       \text{krum: } b = -\lambda \, \text{sign}(\mu) $$

    Of a bound on the other side of zero a b-th is the far end. lambda is halved until Krum takes
    the attackers' row, or is no more than threshold.
    Needs: the honest gradients. Differs from the paper: a mean of 0 counts as negative, and
    lambda starts from n - 2f - 2 neighbours (n - f - 2 there). The trimmed-mean form is for the
    median too. Reference: Fang et al., USENIX Security 2020.

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
    """The smallest lambda worth trying against Krum."""

    def __post_init__(self) -> None:
        """Check the parameters."""
        check_choice("fang: target", self.target, ("trimmed-mean", "krum"))
        check_number("fang: stretch", self.stretch, low=1, above=True)
        check_number("fang: threshold", self.threshold, low=0, above=True)

    @property
    def is_colluding(self) -> bool:  # type: ignore[override]
        """All send the same row to Krum."""
        return self.target == "krum"

    @property
    def is_random(self) -> bool:  # type: ignore[override]
        """Nothing is drawn against Krum."""
        return self.target != "krum"

    def craft(self, context: AttackContext) -> Forged:
        """Draw beyond the honest values, or search for lambda."""
        if self.target == "krum":
            return fool_krum(context, self.threshold)
        low, high = beyond(
            context.measured(Wanted(extremes=True)), self.stretch, context.gradients.dtype
        )
        width = high - low
        # On a CPU piece by piece, so that each stays in the cache.
        size = PIECE if context.device.type == "cpu" else context.dim

        def draw(row: Tensor, generator: Generator, run: int) -> None:
            pieces = (part.split(size) for part in (row, width[run], low[run]))
            for into, reach, first in zip(*pieces, strict=True):
                into.uniform_(generator=generator).mul_(reach).add_(first)

        return Forged(rows=random_rows(context, draw), is_fresh=True)


def beyond(
    found: Measured, stretch: float, dtype: torch.dtype
) -> tuple[PerCoordinate, PerCoordinate]:
    """Return the lower and the upper end of what is drawn from, per coordinate."""
    assert found.low is not None
    assert found.high is not None
    is_up = found.mean > 0
    edge = torch.where(is_up, found.low, found.high)
    # Further out from zero if the honest values are on both sides of it, else towards it.
    is_outward = (edge < 0) == is_up
    stretch = min(stretch, torch.finfo(edge.dtype).max)
    other = torch.where(is_outward, edge * stretch, edge / stretch)
    edge, other = (in_range(end, dtype).to(edge.dtype) for end in (edge, other))
    return torch.minimum(edge, other), torch.maximum(edge, other)
