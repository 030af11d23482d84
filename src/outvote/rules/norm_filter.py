"""Norm filter: drop gradients that are too long before a rule sees the others."""

from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from outvote.axes import PerClient
from outvote.rules.client_matrix import ClientMatrix
from outvote.rules.rule import Aggregation, RoundInfo, Traits, Wrapper
from outvote.rules.sample_counts import unless_equal
from outvote.seeding import RandomStream


@final
@dataclass(frozen=True, slots=True)
class NormFilter(Wrapper):
    r"""Drop gradients that are much longer than the (f + 1)-th longest, then let a rule aggregate.

    $$ S = \{i : \|g_i\| \le \rho\, \nu\}, \quad \nu = \text{the } (f + 1)\text{-th largest norm},
       \qquad A(g_S) \text{ with } f - (n - |S|) $$

    At most f gradients are dropped, and each counts as one of the f. What is left is at most rho
    times as long as the longest honest gradient. So no Byzantine client hides behind a longer one,
    which misleads rules that average or project before they drop (rfa, dnc, and gas around them).
    If nobody is dropped, the update is that of the rule inside.
    Needs: the norms, and what the rule inside needs. Tolerates: what the rule inside tolerates.
    Differs from the paper: there is none. Reference: docs/decisions/0016-gas-and-scales.md.

    >>> from outvote import RFA
    >>> NormFilter(RFA())([[1.0], [2.0], [1.5], [900.0]], num_byzantine=1).round(3)
    array([1.5])
    """

    name: ClassVar[str] = "norm-filter"

    _: KW_ONLY
    factor: float = 2.0
    """Norms above this multiple of the (f + 1)-th largest are too long."""

    def __post_init__(self) -> None:
        super(NormFilter, self).__post_init__()
        if not 1 <= self.factor < float("inf"):
            raise ValueError(
                f"norm-filter: factor must be at least 1 and finite, got {self.factor}."
            )

    @property
    def traits(self) -> Traits:
        """Whole gradients have a norm; in every group others could be too long."""
        return replace(super(NormFilter, self).traits, can_be_wrapped=False)

    def max_byzantine(self, num_clients: int) -> int:
        """Return what the rule inside tolerates."""
        return self.rule.max_byzantine(num_clients)

    def inside_info(self, info: RoundInfo, num_clients: int) -> RoundInfo:
        """Return the info for the rule inside, with the random streams that it has alone."""
        inside = super(NormFilter, self).inside_info(info, num_clients)
        return replace(inside, stream=info.stream, split=info.split)

    def compute(self, matrix: ClientMatrix, info: RoundInfo) -> Aggregation:
        """Let the rule inside aggregate what is left of every run."""
        is_kept, excess = self.kept(matrix.norms, info.num_byzantine)
        if bool(is_kept.all()):
            return self.compute_inside(matrix, self.inside_info(info, matrix.num_clients))
        runs = [
            self._compute_run(matrix, info, k, is_kept[k], excess[k]) for k in range(len(is_kept))
        ]
        return replace(
            runs[0],
            vector=_together([run.vector for run in runs]),
            weights=_together([run.weights for run in runs]),
            scores=_together([run.scores for run in runs]),
            notes=tuple(dict.fromkeys(note for run in runs for note in run.notes)),
        )

    def kept(self, norms: PerClient, num_byzantine: int) -> tuple[Tensor, PerClient]:
        """Return which clients are not too long, and the norms relative to the limit."""
        limit = self.factor * norms.topk(num_byzantine + 1, dim=-1).values[..., -1:]
        return norms <= limit, norms / limit.clamp(min=1e-300)

    def left_info(self, info: RoundInfo, run: int, is_kept: Tensor) -> RoundInfo:
        """Return the info of one run without the clients that were dropped."""
        index = is_kept.nonzero().flatten()
        num_dropped = len(is_kept) - len(index)
        return replace(
            info,
            num_byzantine=max(0, info.num_byzantine - num_dropped),
            stream=RandomStream(info.stream.seeds[run : run + 1], info.stream.path),
            clients=tuple(info.clients[k] for k in index.tolist()) if info.clients else (),
            counts=None if info.counts is None else _some(info.counts, index),
        )

    def _compute_run(
        self, matrix: ClientMatrix, info: RoundInfo, run: int, is_kept: Tensor, excess: PerClient
    ) -> Aggregation:
        index = is_kept.nonzero().flatten()
        some = matrix.some_clients(run, index)
        left = self.left_info(info, run, is_kept)
        found = self.compute_inside(some, self.inside_info(left, len(index)))
        weights, scores = found.weights, found.scores
        if weights is not None:
            nobody = weights.new_zeros(len(is_kept), dtype=torch.float64)
            weights = nobody.index_copy(0, index, weights[0].double()).unsqueeze(0)
        if scores is not None:
            own = scores[0].double()
            scores = beyond(own, excess).index_copy(0, index, own).unsqueeze(0)
        return replace(found, vector=some.vector(found), weights=weights, scores=scores)


def beyond(scores: PerClient, excess: PerClient) -> PerClient:
    """Return scores that are above all `scores`, by how much clients are too long."""
    most = scores.max().double().clamp(min=1e-300)
    return (most * excess.clamp(min=1, max=1e300)).clamp(max=1e300)


def _some(counts: Tensor, index: Tensor) -> Tensor | None:
    own = counts.index_select(0, index)
    return None if unless_equal(own.cpu().numpy()) is None else own


def _together(parts: list[Any]) -> Any:
    """Return the parts of all runs, if they are known; that of a stream is the only one."""
    if len(parts) == 1:
        return parts[0]
    return None if any(part is None for part in parts) else torch.cat(parts)
