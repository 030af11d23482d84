"""FLTrust: the server's own gradient, from a little clean data, decides whom to trust."""

from dataclasses import dataclass
from typing import ClassVar, final

import torch

from outvote.axes import Columns, PerClient, PerCoordinate
from outvote.flat import to_float
from outvote.ops.process import work_dtype
from outvote.ops.rows import inner_products
from outvote.rules.client_matrix import ClientMatrix
from outvote.rules.rule import Aggregation, RoundInfo, Rule, Traits, known


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FLTrust(Rule):
    r"""Average of the clients, rescaled to the server's gradient, weighted by their cosine to it.

    $$ t_i = \max(0, \cos(g_i, g_0)), \qquad
       \frac{1}{\sum_i t_i} \sum_i t_i \frac{\|g_0\|}{\|g_i\|} g_i $$

    Needs: `reference=`, the gradient g_0 that the server computed on clean data like a client.
    Tolerates: any number of Byzantine clients (f is not used). If none is trusted the update is 0.
    Differs from the paper: nothing. Reference: Cao et al., NDSS 2021.

    >>> FLTrust()([[2.0, 0.0], [0.0, 5.0], [-9.0, 0.0]], reference=[1.0, 0.0])
    array([1., 0.])
    """

    name: ClassVar[str] = "fltrust"
    traits = Traits(
        uses_num_byzantine=False,
        needs_reference=True,
        can_be_wrapped=False,
        uses_sample_counts=True,
    )

    def max_byzantine(self, num_clients: int) -> int:
        """Return n: trust does not come from the majority."""
        return num_clients

    def compute(self, matrix: ClientMatrix, info: RoundInfo) -> Aggregation:
        """Weigh every client by the cosine to the server's gradient."""
        reference = known(info.reference).expand(*matrix.shape[:-1])
        own_norm = torch.linalg.vector_norm(reference, dim=-1, dtype=torch.float64)
        norms = matrix.norms
        dots = matrix.values.total(inner_products, reference)
        scale = norms * own_norm.unsqueeze(-1)
        cosine = torch.where(scale > 0, dots / scale.clamp(min=1e-300), 0).clamp(min=-1, max=1)
        trust = cosine.clamp(min=0)
        if info.counts is not None:
            trust = trust * info.counts
        total = trust.sum(dim=-1, keepdim=True)
        shares = torch.where(total > 0, trust / total.clamp(min=1e-300), 0)
        wanted = shares * own_norm.unsqueeze(-1)
        vector = matrix.values.by_coordinate(lambda columns: rescaled_sum(columns, wanted, norms))
        return Aggregation(vector=vector, weights=shares, scores=1 - cosine)


def rescaled_sum(columns: Columns, shares: PerClient, norms: PerClient) -> PerCoordinate:
    """Add up the clients at the norms `shares`, in float64: the factor to 1e-38 overflows."""
    factors = torch.where(shares > 0, shares / norms.clamp(min=1e-300), 0).unsqueeze(-1)
    total = torch.matmul(columns.double(), factors).squeeze(-1)
    return to_float(total, work_dtype(columns.dtype))
