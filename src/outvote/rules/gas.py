"""GAS (gradient splitting): the slices vote, bad clients are outvoted."""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import ClassVar, final

import torch

from outvote.axes import PerClient
from outvote.errors import check_choice, check_kind
from outvote.precision import exact_products
from outvote.rules import cuda, linalg
from outvote.rules.aggregation import Aggregation
from outvote.rules.base import RoundInfo
from outvote.rules.client_matrix import ClientMatrix
from outvote.rules.doubts import Doubts
from outvote.rules.krum import average_of
from outvote.rules.reorder import PlacedBlock, is_turned_first, run, turning
from outvote.rules.split import SPLITS, Split, balanced_sizes, by_layer, ceil_sizes, cut, slabs
from outvote.rules.wrapper import Wrapper
from outvote.threads import mapped


@final
@dataclass(frozen=True, slots=True)
class GAS(Wrapper):
    r"""Split the coordinates into p random groups, let a rule judge each, drop the f worst clients.

    $$ s_i = \sum_{q=1}^{p} \big\| g_i^{(q)} - A(g_1^{(q)}, \dots, g_n^{(q)}) \big\|, \qquad
       \frac{1}{n - f} \sum_{i \in I} g_i, \quad I = \text{the } n - f \text{ smallest } s_i $$

    In a high dimension a rule is fooled by heterogeneous clients; in a slice of few coordinates it
    is not, and a liar is far from the answers of many slices.
    Needs: what the rule inside needs, on every group. Tolerates: n > f; the rule inside works with
    its own limit where f is above it. Differs from the paper: exactly p groups, as it says (the
    released code makes fewer: split="ceil").
    Reference: Liu et al., ICML 2023 (Byzantine-robust learning on heterogeneous data via gradient
    splitting).

    >>> from outvote import MultiKrum
    >>> X = [[1.0, 2.0], [1.5, 1.0], [0.5, 1.5], [2.0, 2.5], [-6.0, 8.0]]
    >>> GAS(MultiKrum(), num_groups=2)(X, num_byzantine=1)
    array([1.25, 1.75])
    """

    name: ClassVar[str] = "gas"
    hides_shares: ClassVar[bool] = True

    _: KW_ONLY
    num_groups: int = 1000
    """How many groups the coordinates are split into (one each, if there are fewer)."""
    split: str = "balanced"
    """"balanced": random, sizes differ by one. "ceil": random, as the released code.
    "contiguous": neighbours stay together. "by-layer": one group per named tensor."""

    def __post_init__(self) -> None:
        """Check the parameters."""
        super(GAS, self).__post_init__()
        check_choice("gas: split", self.split, SPLITS)
        check_kind("gas: num_groups", self.num_groups, int)
        if self.num_groups < 1:
            raise ValueError(f"gas: num_groups must be at least 1, got {self.num_groups}.")

    def max_byzantine(self, num_clients: int) -> int:
        """Return n - 1: at least one client is kept."""
        return max(0, num_clients - 1)

    def is_selecting(self) -> bool:
        """Tell that clients are kept or dropped as a whole."""
        return True

    def prepare(self, matrix: ClientMatrix, info: RoundInfo) -> RoundInfo:
        """Draw the split, on one core; the others turn the values meanwhile, where that helps."""
        draw = partial(self.split_coordinates, matrix, info)
        if info.split is not None:
            return info
        if not is_turned_first(matrix.columns):
            return replace(info, split=draw())
        matrix.turned, pieces = turning(matrix.columns)
        jobs: list[Callable[[], Split | None]] = [draw, *pieces]
        return replace(info, split=mapped(run, jobs)[0])

    def answer(self, matrix: ClientMatrix, info: RoundInfo) -> Aggregation:
        """Average the clients that are closest to what the rule says on the groups."""
        split = info.split or self.split_coordinates(matrix, info)
        # A GPU works on while the doubts add up; only if there are any, all is done with care.
        doubts = None if matrix.device.type == "cpu" else Doubts(matrix.device)
        with exact_products():
            answer = self._judge(matrix, split, info, doubts)
            if doubts is not None:
                matrix.begin_vector(answer)
                answer = self._judge(matrix, split, info, None) if doubts.are_any() else answer
        is_ours = type(self.rule).__module__.startswith("outvote.")
        if not is_ours and answer.scores is not None and not bool(answer.scores.isfinite().all()):
            raise ValueError(f"{self.rule} gave NaN or infinity on a group; mend the rule.")
        return answer

    def _judge(
        self, matrix: ClientMatrix, split: Split, info: RoundInfo, doubts: Doubts | None
    ) -> Aggregation:
        notes: set[str] = set()
        scores = self.score(matrix, split, info, notes, doubts)
        num_kept = max(1, matrix.num_clients - info.num_byzantine)
        is_kept = linalg.smallest(scores, num_kept)
        return Aggregation(
            weights=average_of(is_kept, num_kept),
            scores=scores,
            num_groups=split.num_groups,
            notes=(*self._notes(matrix.dim, split.num_groups), *sorted(notes)),
        )

    def split_coordinates(self, matrix: ClientMatrix, info: RoundInfo) -> Split:
        """Cut a random order of the coordinates (or their own order) into groups."""
        num_groups = min(self.num_groups, matrix.dim)
        if self.split == "by-layer":
            return by_layer(info.layer_sizes, matrix.dim, matrix.device)
        if self.split == "contiguous":
            order = torch.arange(matrix.dim, device=matrix.device).unsqueeze(0)
            return cut(order, balanced_sizes(matrix.dim, num_groups))
        order = info.stream.fold_in("gas-split").permutations(matrix.dim, matrix.device)
        sizes = ceil_sizes if self.split == "ceil" else balanced_sizes
        if self.split == "balanced" and matrix.device.type != "cpu":
            # A GPU moves values to their places faster than it fetches them: these are the places.
            if len(matrix.batch) == 1 and cuda.is_usable(matrix.columns, matrix.num_clients):
                return Split((PlacedBlock(order, balanced_sizes(matrix.dim, num_groups)),))
            order = order.argsort(dim=-1)
        return cut(order, sizes(matrix.dim, num_groups))

    def score(
        self,
        matrix: ClientMatrix,
        split: Split,
        info: RoundInfo,
        notes: set[str],
        doubts: Doubts | None = None,
    ) -> PerClient:
        """Add up how far every client is from the rule's answer; `notes` takes what it notes."""
        num_byzantine = self.inside_num_byzantine(info.num_byzantine, matrix.num_clients)
        inside = info.inside(self, num_byzantine)

        def measure(some: ClientMatrix) -> PerClient:
            answer = self.rule.answer(some, inside)
            notes.update(answer.notes)
            return some.distances_to(answer).sum(dim=-2)

        groups = slabs(matrix, split, doubts, needs_values=self.rule.needs_values())
        parts = mapped(measure, groups, matrix.device)
        return parts[0] if len(parts) == 1 else torch.stack(parts).sum(dim=0)

    def _notes(self, dim: int, num_groups: int) -> tuple[str, ...]:
        if self.num_groups <= dim or num_groups != dim:
            return ()
        return (
            f"gas: num_groups={self.num_groups} is more than the {dim} coordinates; used {dim}",
        )
