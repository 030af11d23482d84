"""The rule's verdict on a round, or why there is none."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outvote.errors import TooManyByzantine
from outvote.flower.receiving import Received
from outvote.flower.settings import Settings
from outvote.results.audit_log import Judgement
from outvote.rules.verdict import Verdict

NOBODY = "no reply could be used"


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Decision:
    """What a rule made of the updates."""

    verdict: Verdict | None
    """None: the model is kept."""
    num_byzantine: int
    """How many liars were reckoned with."""
    reason: str = ""
    """Why the model is kept, or what else is to be told."""


def judge(
    settings: Settings, received: Received, num_byzantine: int, seed: int | None, **memory: Any
) -> Decision:
    """Let the rule judge; if it cannot, the model is kept."""
    if not received.replies:
        return Decision(verdict=None, num_byzantine=num_byzantine, reason=NOBODY)
    counts = None
    if settings.use_num_examples:
        counts = [reply.count for reply in received.replies.values()]
    try:
        verdict = settings.rule.inspect(
            received.rows,
            num_byzantine=num_byzantine,
            when_too_many="lower" if settings.when_too_many == "lower" else "raise",
            seed=seed,
            clients=[str(node) for node in received.nodes],
            sample_counts=counts,
            **memory,
        )
    except TooManyByzantine as error:
        return Decision(verdict=None, num_byzantine=num_byzantine, reason=_too_many(error))
    used = verdict.num_byzantine
    lowered = f"num_byzantine was lowered from {num_byzantine} to {used}"
    return Decision(
        verdict=verdict, num_byzantine=used, reason=lowered if used < num_byzantine else ""
    )


def blames(verdict: Verdict) -> bool:
    """Tell whether being dropped means something: a rule that keeps one client blames nobody."""
    return verdict.kept is not None and 2 * len(verdict.kept) > len(verdict.clients)


def judgements(received: Received, verdict: Verdict | None) -> list[Judgement]:
    """Tell what was thought of each reply that could be judged."""
    remarks = [reply.remark for reply in received.replies.values()]
    clients = [str(node) for node in received.nodes]
    norms = [_finite(norm) for norm in received.norms]
    if verdict is None:
        return [
            Judgement(client=client, reason=remark, norm=norm)
            for client, remark, norm in zip(clients, remarks, norms, strict=True)
        ]
    kept = set(verdict.kept or ())
    dropped = "outvoted" if blames(verdict) else "not chosen"
    cosines = _cosines(received.rows, verdict.update, received.norms)
    return [
        Judgement(
            client=client,
            score=_finite(float(score)),
            kept=client in kept,
            reason="; ".join(filter(None, ["" if client in kept else dropped, remark])),
            norm=norm,
            cosine=cosine,
        )
        for client, score, remark, norm, cosine in zip(
            clients, verdict.scores, remarks, norms, cosines, strict=True
        )
    ]


def merge_statistics(statistics: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """Return the coordinate-wise median, the lower of two: always something that was sent."""
    return [np.sort(part, axis=0)[(len(part) - 1) // 2] for part in statistics]


def _cosines(rows: Tensor, update: Tensor, norms: Sequence[float]) -> list[float | None]:
    length = float(torch.linalg.vector_norm(update, dtype=torch.float64))
    if length == 0:
        return [None] * len(norms)
    # Of length 1, so that the products of huge numbers stay finite.
    products = (rows @ (update / length)).tolist()
    return [
        _finite(max(-1.0, min(1.0, product / norm))) if norm > 0 and isfinite(product) else None
        for product, norm in zip(products, norms, strict=True)
    ]


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None


def _too_many(error: TooManyByzantine) -> str:
    return (
        f"{error.num_clients} usable replies are too few: with them the rule tolerates at most "
        f"{error.limit} liars, not {error.got}"
    )
