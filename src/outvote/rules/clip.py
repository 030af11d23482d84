"""Clip: shorten long gradients before a rule sees them."""

from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar, final

import torch

from outvote.axes import PerClient
from outvote.rules.client_matrix import ClientMatrix
from outvote.rules.rule import Aggregation, RoundInfo, Traits, Wrapper

SENT = ("adaptive", "honest")
"""Largest norms that are taken from those sent."""


@final
@dataclass(frozen=True, slots=True)
class Clip(Wrapper):
    r"""Shorten every gradient to a largest norm, then let a rule aggregate.

    $$ g_i \min\Big(1, \frac{c}{\|g_i\|}\Big) $$

    max_norm="adaptive" is ARC: c is the (k+1)-th largest norm, k = floor(2 f/n (n - f)). With
    max_norm="honest" k = f: c is at most the largest honest norm, and at most f gradients are
    shortened. Around gas it keeps Byzantine clients of ever smaller scales from misleading the rule
    inside.
    Needs: the norms, and what the rule inside needs. Tolerates: what the rule inside tolerates.
    Differs from the paper: nothing. Reference: Allouah et al., 2024 (ARC).

    >>> from outvote import Median
    >>> Clip(Median(), max_norm=10.0)([[20.0], [30.0], [900.0]])
    array([10.])
    """

    name: ClassVar[str] = "clip"

    _: KW_ONLY
    max_norm: float | str = 2.0
    """The largest norm, or one of those sent: "adaptive" (ARC), or "honest"."""

    def __post_init__(self) -> None:
        super(Clip, self).__post_init__()
        is_number = not isinstance(self.max_norm, str) and 0 < self.max_norm < float("inf")
        if self.max_norm not in SENT and not is_number:
            raise ValueError(
                "clip: max_norm must be positive and finite, 'adaptive' or 'honest', got "
                f"{self.max_norm!r}."
            )

    @property
    def traits(self) -> Traits:
        """The number of Byzantine clients matters to a norm among those sent, and inside."""
        uses = self.max_norm in SENT or self.rule.traits.uses_num_byzantine
        return replace(super(Clip, self).traits, uses_num_byzantine=uses)

    def max_byzantine(self, num_clients: int) -> int:
        """Return what the rule inside tolerates."""
        return self.rule.max_byzantine(num_clients)

    def compute(self, matrix: ClientMatrix, info: RoundInfo) -> Aggregation:
        """Let the rule inside aggregate the shortened gradients."""
        inside_info = self.inside_info(info, matrix.num_clients)
        if not self.rule.traits.needs_values and matrix.dim > matrix.num_clients + 1:
            return self._compute_by_distances(matrix, info, inside_info)
        shortened = self.factors(matrix.norms, info.num_byzantine)
        clipped = matrix.scaled(shortened)
        inside = self.compute_inside(clipped, inside_info)
        weights = inside.weights
        if inside.vector is None and weights is not None:
            weights = weights * shortened
        return replace(inside, vector=clipped.vector(inside), weights=weights)

    def _compute_by_distances(
        self, matrix: ClientMatrix, info: RoundInfo, inside_info: RoundInfo
    ) -> Aggregation:
        """Compute without a copy: a shortened gradient is between itself and the origin."""
        around = matrix.with_point()
        at_origin = torch.zeros(
            *around.batch, around.num_clients, dtype=torch.float64, device=matrix.device
        )
        at_origin[..., -1] = 1
        norms = around.distances_to(Aggregation(weights=at_origin))[..., :-1]
        shortened = self.factors(norms, info.num_byzantine)
        mixture = torch.cat([shortened.diag_embed(), (1 - shortened).unsqueeze(-1)], dim=-1)
        inside = self.compute_inside(around.mixed(mixture), inside_info)
        if inside.vector is not None or inside.weights is None:
            return inside
        weights = inside.weights * shortened
        return replace(inside, vector=matrix.vector(Aggregation(weights=weights)), weights=weights)

    def factors(self, norms: PerClient, num_byzantine: int) -> PerClient:
        """Return what each client is multiplied by."""
        if not isinstance(self.max_norm, str):
            return (self.max_norm / norms.clamp(min=1e-300)).clamp(max=1.0)
        num_clients = norms.shape[-1]
        num_clipped = num_byzantine
        if self.max_norm == "adaptive":
            num_clipped = 2 * num_byzantine * (num_clients - num_byzantine) // num_clients
        rank = max(0, num_clients - 1 - num_clipped)
        longest = norms.sort(dim=-1).values[..., rank : rank + 1]
        return (longest / norms.clamp(min=1e-300)).clamp(max=1.0)
