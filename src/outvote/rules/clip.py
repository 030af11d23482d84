"""Clip: shorten long gradients before a rule sees them."""

from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar, final

import torch

from outvote.axes import PerClient
from outvote.precision import work_dtype
from outvote.rules import linalg
from outvote.rules.answer import Answer
from outvote.rules.base import Facts
from outvote.rules.points import Points
from outvote.rules.wrapper import Wrapper


@final
@dataclass(frozen=True, slots=True)
class Clip(Wrapper):
    r"""Shorten every gradient to a largest norm, then let a rule judge.

    $$ g_i \min\Big(1, \frac{c}{\|g_i\|}\Big) $$

    max_norm="adaptive" is ARC: c is the (k+1)-th largest norm, k = floor(2 f/n (n - f)).
    Needs: the norms, and what the rule inside needs. Tolerates: what the rule inside tolerates.
    Differs from the paper: nothing. Reference: Allouah et al., 2024 (ARC).

    >>> from outvote import Median
    >>> Clip(Median(), max_norm=10.0)([[20.0], [30.0], [900.0]])
    array([10.])
    """

    name: ClassVar[str] = "clip"

    _: KW_ONLY
    max_norm: float | str = 2.0
    """The largest norm, or "adaptive" (ARC)."""

    def __post_init__(self) -> None:
        """Check the parameters."""
        super(Clip, self).__post_init__()
        is_number = not isinstance(self.max_norm, str) and 0 < self.max_norm < float("inf")
        if self.max_norm != "adaptive" and not is_number:
            raise ValueError(
                f"clip: max_norm must be positive and finite, or 'adaptive', got {self.max_norm!r}."
            )

    def must_be_told(self) -> bool:
        """Tell whether the rule inside must be told, or the clipping depends on the number."""
        return self.max_norm == "adaptive" or self.rule.must_be_told()

    def max_byzantine(self, num_clients: int) -> int:
        """Return what the rule inside tolerates."""
        return self.rule.max_byzantine(num_clients)

    def answer(self, points: Points, facts: Facts) -> Answer:
        """Let the rule inside answer on the shortened gradients."""
        num_byzantine = self.inside_num_byzantine(facts.num_byzantine, points.num_clients)
        inside_facts = facts.inside(self, num_byzantine)
        if not self.rule.needs_values() and points.dim > points.num_clients + 1:
            return self._answer_by_distances(points, facts, inside_facts)
        shortened = self._factors(linalg.norms(points.columns), facts.num_byzantine)
        work = work_dtype(points.columns.dtype)
        clipped = Points(points.columns.to(work) * shortened.to(work).unsqueeze(-2))
        inside = self.rule.answer(clipped, inside_facts)
        weights = inside.weights
        if inside.vector is None and weights is not None:
            weights = weights * shortened
        return replace(inside, vector=clipped.vector(inside), weights=weights)

    def _answer_by_distances(self, points: Points, facts: Facts, inside_facts: Facts) -> Answer:
        """Answer without a copy: a shortened gradient lies between itself and the origin."""
        around = points.with_point()
        at_origin = torch.zeros(
            *around.batch, around.num_clients, dtype=torch.float64, device=points.device
        )
        at_origin[..., -1] = 1
        norms = around.distances_to(Answer(weights=at_origin))[..., :-1]
        shortened = self._factors(norms, facts.num_byzantine)
        mixture = torch.cat([shortened.diag_embed(), (1 - shortened).unsqueeze(-1)], dim=-1)
        inside = self.rule.answer(around.mixed(mixture), inside_facts)
        if inside.vector is not None or inside.weights is None:
            return inside
        weights = inside.weights * shortened
        return replace(inside, vector=points.vector(Answer(weights=weights)), weights=weights)

    def _factors(self, norms: PerClient, num_byzantine: int) -> PerClient:
        if not isinstance(self.max_norm, str):
            return self.max_norm / norms.clamp(min=self.max_norm)
        num_clients = norms.shape[-1]
        num_clipped = 2 * num_byzantine * (num_clients - num_byzantine) // num_clients
        rank = max(0, num_clients - 1 - num_clipped)
        longest = norms.sort(dim=-1).values[..., rank : rank + 1]
        return (longest / norms.clamp(min=1e-300)).clamp(max=1.0)
