"""SignGuard: filter by norm and by the shares of positive, zero and negative signs."""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from outvote.rules import linalg
from outvote.rules.aggregation import Aggregation
from outvote.rules.base import RoundInfo, Rule
from outvote.rules.client_matrix import ClientMatrix
from outvote.rules.mean_shift import largest_cluster


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SignGuard(Rule):
    r"""Mean of the clients with usual norms and usual signs, clipped to the median norm.

    $$ S_1 = \{i : L\,m < \|g_i\| < R\,m\}, \quad S_2 = \text{largest cluster of sign shares}, \quad
       \frac{1}{|S_1 \cap S_2|} \sum_{i \in S_1 \cap S_2} g_i \min\Big(1, \frac{m}{\|g_i\|}\Big) $$

    m is the median norm. Needs: norms, and the signs in a random window of coordinates.
    Tolerates: n >= 2f + 1 (f is not used). Differs from the paper: clients that are not finite are
    rejected; if nobody passes both filters the norm filter alone decides, then nobody is dropped.
    Reference: Xu et al., ICDCS 2022.

    >>> SignGuard()([[1.0], [1.0], [1.0], [-1.0]], seed=0)
    array([1.])
    """

    name: ClassVar[str] = "signguard"
    uses_num_byzantine: ClassVar[bool] = False
    can_be_wrapped: ClassVar[bool] = False

    lower: float = 0.1
    """Norms up to this times the median are suspicious."""
    upper: float = 3.0
    """Norms from this times the median on are suspicious."""
    window: float = 0.1
    """The share of coordinates whose signs are looked at."""

    def __post_init__(self) -> None:
        """Check the parameters."""
        if not 0 <= self.lower < self.upper:
            raise ValueError(
                f"signguard: lower must be below upper and not negative, got lower={self.lower}, "
                f"upper={self.upper}."
            )
        if not 0 < self.window <= 1:
            raise ValueError(f"signguard: window must be in (0, 1], got {self.window}.")

    def max_byzantine(self, num_clients: int) -> int:
        """Return the largest f with n >= 2f + 1."""
        return max(0, (num_clients - 1) // 2)

    def answer(self, matrix: ClientMatrix, info: RoundInfo) -> Aggregation:
        """Judge run by run: clustering is a search."""
        width = int(matrix.dim * self.window) or matrix.dim
        room = matrix.dim - width + 1
        starts = [
            int(torch.randint(room, (), generator=generator, device="cpu"))
            for generator in info.stream.fold_in("signguard").generators(torch.device("cpu"))
        ]
        judged = [
            _judge(columns, start, width, self.lower, self.upper)
            for columns, start in zip(matrix.columns, starts, strict=True)
        ]
        weights = torch.stack([weights for weights, _ in judged])
        is_kept = torch.stack([kept for _, kept in judged])
        vector = matrix.vector(Aggregation(weights=weights))
        return Aggregation(vector=vector, weights=weights * is_kept)


def judge_rows(
    X: Tensor, start: int, window: int, lower: float, upper: float
) -> tuple[Tensor, Tensor]:
    """Return the update and who was kept, for rows ``[clients, dim]`` and a given window."""
    weights, is_kept = _judge(X.mT, start, window, lower, upper)
    return ClientMatrix(X.mT.unsqueeze(0)).vector(Aggregation(weights=weights.unsqueeze(0)))[
        0
    ], is_kept


def _judge(
    columns: Tensor, start: int, window: int, lower: float, upper: float
) -> tuple[Tensor, Tensor]:
    norms = linalg.norms(columns)
    median = norms.quantile(0.5)
    is_usual = (norms > lower * median) & (norms < upper * median)
    is_alike = largest_cluster(sign_shares(columns[start : start + window]))
    is_kept = is_usual & is_alike.to(is_usual.device)
    for fallback in (is_usual, torch.ones_like(is_usual)):
        if not bool(is_kept.any()):
            is_kept = fallback
    clipped = (median / norms.clamp(min=1e-300)).clamp(max=1)
    return is_kept * clipped / is_kept.sum(), is_kept


def sign_shares(columns: Tensor) -> Tensor:
    """Return the shares of +, 0 and - signs per client, each relative to its largest."""
    signs = columns.sign()
    shares = torch.stack([(signs == sign).double().mean(dim=-2) for sign in (1, 0, -1)], dim=-1)
    return shares / (shares.amax(dim=-2, keepdim=True) + 1e-8)
