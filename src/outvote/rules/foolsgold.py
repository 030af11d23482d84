"""FoolsGold: clients whose gradients stay alike are suspected to be one."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from outvote.axes import Pairs, PerClient
from outvote.flat import LARGEST
from outvote.ops.process import work_dtype
from outvote.ops.rows import row_norms
from outvote.rules.client_matrix import ClientMatrix
from outvote.rules.rule import Aggregation, RoundInfo, Rule, Traits
from outvote.rules.values import InMemory

# Histories whose cosine is this near to 1 differ by rounding alone.
ALIKE = 2.0**-40


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FoolsGold(Rule):
    r"""Sum of the clients, weighted down by the similarity of their histories to others'.

    $$ H_i = \sum_t g_i^t, \quad c_{ij} = \cos(H_i, H_j) \min\Big(1, \frac{m_i}{m_j}\Big), \quad
       w_i = \operatorname{logit}(1 - \max_j c_{ij}) + \tfrac12 \text{ clipped to } [0, 1] $$

    Needs: the history of every client; has state: pass ``state=verdict.state`` and ``clients=``.
    Tolerates: n > f (f is not used), if honest clients differ. Harmful on identically distributed
    data. Differs from the paper: all features count. Reference: Fung et al., RAID 2020.

    >>> FoolsGold(normalise=True)([[1.0, 0.0], [0.0, 1.0], [-5.0, -5.0], [-5.0, -5.0]])
    array([0.5, 0.5])
    """

    name: ClassVar[str] = "foolsgold"
    traits = Traits(
        uses_num_byzantine=False, has_state=True, can_be_wrapped=False, uses_sample_counts=True
    )

    normalise: bool = False
    """Divide by the sum of the weights (the authors do not)."""

    def max_byzantine(self, num_clients: int) -> int:
        """Return n - 1."""
        return max(0, num_clients - 1)

    def compute(self, matrix: ClientMatrix, info: RoundInfo) -> Aggregation:
        """Weigh every client by how little its history resembles another's."""
        columns = matrix.columns.to(work_dtype(matrix.columns.dtype))
        past = self._histories(info)
        rows = [
            columns[0, :, k] + past[client].to(columns) if client in past else columns[0, :, k]
            for k, client in enumerate(info.clients)
        ]
        largest = torch.finfo(columns.dtype).max
        most = min(largest, LARGEST)  # The state must be accepted in the next round.
        history = torch.stack(rows).clamp(min=-most, max=most)
        weights = similarity_weights(cosines(history.mT.unsqueeze(0)))
        scores = 1 - weights
        if info.counts is not None:
            weights = weights * (info.counts / info.counts.mean())
        total = weights.sum(dim=-1, keepdim=True).clamp(min=1e-300)
        average = matrix.vector(Aggregation(weights=weights / total)).double()
        vector = average if self.normalise else average * total
        vector = vector.clamp(min=-largest, max=largest).to(columns.dtype)
        state = {**past, **dict(zip(info.clients, history, strict=True))}
        return Aggregation(vector=vector, weights=weights / total, scores=scores, state=state)

    @staticmethod
    def _histories(info: RoundInfo) -> dict[Any, Tensor]:
        """Read the histories, one vector per client id."""
        if info.state is None:
            return {}
        if not isinstance(info.state, Mapping):
            raise TypeError(
                "foolsgold: state must be the verdict.state of an earlier round (client id -> "
                f"vector), got {type(info.state).__name__}."
            )
        return {client: info.to_vector(vector) for client, vector in info.state.items()}


def cosines(columns: Tensor) -> Pairs:
    """Return the cosines between all pairs of rows, 0 for rows of norm 0, float64."""
    norms = row_norms(columns.mT).clamp(min=1e-300).unsqueeze(-2)

    def multiply(tile: Tensor) -> Tensor:
        unit = tile.double() / norms
        return unit.mT @ unit

    return InMemory(columns).total(multiply)


def similarity_weights(cosine: Pairs) -> PerClient:
    """Turn cosines of histories into weights, as the authors' code does."""
    cosine = cosine.clone()
    # The diagonal is 1, but for norms that were rounded to float32.
    length = cosine.diagonal(dim1=-2, dim2=-1).sqrt()
    least = (1 - ALIKE) * length.unsqueeze(-1) * length.unsqueeze(-2)
    cosine.diagonal(dim1=-2, dim2=-1).zero_()
    has_copy = ((cosine >= least) & (least > 0)).any(dim=-1)
    largest = cosine.amax(dim=-1) + 1e-5
    mine, other = largest.unsqueeze(-1), largest.unsqueeze(-2)
    # Pardoning: of two similar clients, the one with fewer look-alikes is excused.
    cosine = torch.where(mine < other, cosine * mine / other, cosine)
    weights = (1 - cosine.amax(dim=-1)).clamp(0, 1)
    # Where every client has a copy, rounding would choose whom to trust.
    weights = weights.masked_fill(has_copy, 0)
    top = weights.amax(dim=-1, keepdim=True)
    weights = torch.where(top > 0, weights / top.clamp(min=1e-300), 0)
    weights = weights.masked_fill(weights == 1, 0.99)
    logit = (weights / (1 - weights) + 1e-5).log() + 0.5
    return torch.where(top > 0, logit.clamp(0, 1), 0)
