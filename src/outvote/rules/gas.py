"""GAS (gradient splitting): groups of coordinates score the clients, the worst are dropped."""

from dataclasses import KW_ONLY, dataclass, replace
from functools import cache
from typing import ClassVar, final

from outvote.axes import PerClient
from outvote.ops.order import average_of_smallest
from outvote.rules.client_matrix import ClientMatrix
from outvote.rules.groups import check_split
from outvote.rules.rule import (
    Aggregation,
    RoundInfo,
    Traits,
    Wrapper,
    around,
    compute_weighted,
    reduction,
)


@final
@dataclass(frozen=True, slots=True)
class GAS(Wrapper):
    r"""Split the coordinates into p random groups, let a rule aggregate each, drop the f worst.

    $$ s_i = \sum_{q=1}^{p} \big\| g_i^{(q)} - A(g_1^{(q)}, \dots, g_n^{(q)}) \big\|, \qquad
       \frac{1}{n - f} \sum_{i \in I} g_i, \quad I = \text{the } n - f \text{ smallest } s_i $$

    In a high dimension heterogeneous clients mislead a rule; in a group of few coordinates they do
    not, and a Byzantine client is far from the result in many groups.
    Needs: what the rule inside needs, on every group. Tolerates: n > f; the rule inside works with
    its own limit where f is above it. Differs from the paper: exactly p groups (the released code
    makes fewer: split="ceil").
    Reference: Liu et al., ICML 2023 (Byzantine-robust learning on heterogeneous data via gradient
    splitting).

    >>> from outvote import MultiKrum
    >>> X = [[1.0, 2.0], [1.5, 1.0], [0.5, 1.5], [2.0, 2.5], [-6.0, 8.0]]
    >>> GAS(MultiKrum(), num_groups=2)(X, num_byzantine=1)
    array([1.25, 1.75])
    """

    name: ClassVar[str] = "gas"

    _: KW_ONLY
    num_groups: int = 1000
    """How many groups the coordinates are split into (one each, if there are fewer)."""
    split: str = "balanced"
    """"balanced": random, sizes differ by one. "ceil": random, as the released code.
    "contiguous": neighbours stay together. "by-layer": one group per named tensor.
    "by-layer-random": random within each named tensor, sizes balanced over all of them."""

    def __post_init__(self) -> None:
        super(GAS, self).__post_init__()
        check_split(self.rule, self.split, self.num_groups)

    @property
    def traits(self) -> Traits:
        """Clients are kept or dropped as a whole, whatever the rule inside does."""
        return _of_gas(self.rule.traits)

    def max_byzantine(self, num_clients: int) -> int:
        """Return n - 1: at least one client is kept."""
        return max(0, num_clients - 1)

    def compute(self, matrix: ClientMatrix, info: RoundInfo) -> Aggregation:
        """Average the clients that are closest to what the rule computes on the groups."""
        groups = matrix.split(self.split, self.num_groups, info)  # 1. split
        inside = self.inside_info(info, matrix.num_clients)
        inside = replace(inside, wants_weights=False, counts=None)
        inside_notes: set[str] = set()

        def measure(group: ClientMatrix) -> PerClient:
            found = compute_weighted(self.rule, group, inside)
            inside_notes.update(found.notes)
            return group.total_distances_to(found)

        scores = groups.total(  # 2. identify
            measure,
            needs_values=self.rule.traits.needs_values,
            reduce=reduction(self.rule, inside.num_byzantine),
        )
        num_kept = max(1, matrix.num_clients - info.num_byzantine)
        # 3. aggregate: the clients with the largest scores are dropped, the others averaged
        return Aggregation(
            weights=average_of_smallest(scores, num_kept),
            scores=scores,
            num_groups=groups.num_groups,
            notes=(*groups.notes, *sorted(inside_notes)),
        )


@cache  # Asked for in every call.
def _of_gas(traits: Traits) -> Traits:
    return replace(around(traits), selects_clients=True, uses_sample_counts=False, can_stream=True)
