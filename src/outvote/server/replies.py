"""Replies of clients that nobody vouches for: the checks and words that all servers share.

The Flower strategy and the aggregator for NVIDIA FLARE leave out a reply that cannot be used, with
a reason, and measure the others against the aggregated update.
"""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, TypeGuard, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outvote.errors import TooManyByzantine
from outvote.flat import finite_rows
from outvote.results.audit_log import ClientRecord, Standing

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
"""Endings of the names of arrays that a network counts or averages by itself, without gradients."""
NOT_FINITE = "it holds NaN, infinity or a number near it"
ANSWERED_TWICE = "it answered more than once"
OTHER_ROUND = "it answered the message of another round"
NO_REPLY = "no reply could be used"
NOT_A_MODEL = "the new model would not have been finite"
OUTVOTED, NOT_CHOSEN = "outvoted", "not chosen"
LONGEST_QUOTE = 80


class Malformed(Exception):  # noqa: N818  (a fact about a reply, not a fault of ours)
    """A reply cannot be used; the text is the reason."""


def quote(text: object) -> str:
    """Quote text of an untrusted sender: on one line, and not too long."""
    word = repr(str(text)[: LONGEST_QUOTE + 1])
    return word if len(word) <= LONGEST_QUOTE else f"{word[: LONGEST_QUOTE - 3]}..."


def check_names(expected: Mapping[str, Any], sent: Mapping[str, Any]) -> None:
    """Raise Malformed unless a reply has the arrays of the model, and no others."""
    missing = [name for name in expected if name not in sent]
    if missing:
        raise Malformed(f"array {quote(missing[0])} is missing")
    extra = [name for name in sent if name not in expected]
    if extra:
        raise Malformed(f"array {quote(extra[0])} is unknown to the model")


def names_of_weights(sizes: Mapping[str, int], is_float: Mapping[str, bool]) -> list[str]:
    """Return which arrays of a model a rule aggregates; the others are counted or averaged."""
    names = [name for name in sizes if is_float[name] and not name.endswith(STATISTICS)]
    if not any(sizes[name] for name in names):
        raise ValueError(
            "the model must have at least one array of floating-point numbers that is no running "
            f"statistic, got {', '.join(map(quote, sizes)) or 'no array'}."
        )
    return names


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value can be averaged: no NaN, no infinity, nothing else than a number."""
    return isinstance(value, int | float) and abs(value) < 1e300 and isfinite(value)


def example_count(metrics: Mapping[str, Any], key: str) -> float:
    """Return how many examples a client claims to have; 0 if that is no number from 1 on.

    Weights near 0 divide to infinity, and nobody trains on half an example.
    """
    value = metrics.get(key, 0)
    return float(value) if is_number(value) and value >= 1 else 0.0


def needed_count(metrics: Mapping[str, Any], key: str) -> float:
    """Return how many examples a client claims to have, or raise Malformed."""
    count = example_count(metrics, key)
    if count < 1:
        got = quote(metrics.get(key))
        raise Malformed(f"{key} must be a number from 1 on, got {got}")
    return count


def measure_rows(rows: Tensor) -> tuple[list[float], list[bool]]:
    """Return the norms of the updates, and which have numbers that can be used."""
    norms = torch.linalg.vector_norm(rows, dim=-1).tolist()
    is_fine = finite_rows(rows, norms)
    for row, norm in enumerate(norms):
        if is_fine[row] and not isfinite(norm):  # Too long for float32.
            norms[row] = float(torch.linalg.vector_norm(rows[row], dtype=torch.float64))
    return norms, is_fine


def measure_cosines(rows: Tensor, update: Tensor, norms: Sequence[float]) -> list[float | None]:
    """Return the cosines of the updates to the aggregated one; None where a length is 0."""
    length = norm_of(update)
    if length == 0:
        return [None] * len(norms)
    # Of length 1: the products of huge numbers stay finite.
    products = (rows @ (update / length)).tolist()
    return [
        finite(max(-1.0, min(1.0, product / norm))) if norm > 0 and isfinite(product) else None
        for product, norm in zip(products, norms, strict=True)
    ]


def lower_median(values: NDArray[Any]) -> NDArray[Any]:
    """Return the coordinate-wise median, the lower of two: always a value that was sent."""
    lower: NDArray[Any] = np.sort(values, axis=0)[(len(values) - 1) // 2]
    return lower


def norm_of(update: Tensor) -> float:
    """Return the norm of an update in float64."""
    return float(torch.linalg.vector_norm(update, dtype=torch.float64))


def finite(value: float) -> float | None:
    """Return a number for a log, None if it is not finite."""
    return value if isfinite(value) else None


def blames(kept: Sequence[Any] | None, num_clients: int) -> bool:
    """Return whether being dropped is an offence: not where few are kept, or nobody knows which.

    A rule that keeps one client, as Krum does, blames no other.
    """
    return kept is not None and 2 * len(kept) > num_clients


def with_update(
    clients: Sequence[str],
    verdict: Any,
    *,
    norms: Sequence[float],
    cosines: Sequence[float | None],
    distances: Sequence[float | None] | None = None,
    notes: Sequence[str] | None = None,
) -> list[ClientRecord]:
    """Return the audit entries of the clients whose updates the rule got.

    `verdict` is the rule's, None if the model is kept; `notes` are what is odd about the replies.
    """
    kept: set[str] | None = set()
    dropped = ""
    if verdict is not None:
        kept = None if verdict.kept is None else set(verdict.kept)
        dropped = OUTVOTED if blames(verdict.kept, len(clients)) else NOT_CHOSEN
    found = []
    for row, client in enumerate(clients):
        is_kept = None if kept is None else client in kept
        reasons = [dropped if is_kept is False else "", "" if notes is None else notes[row]]
        found.append(
            ClientRecord(
                client=client,
                score=None if verdict is None else finite(float(verdict.scores[row])),
                kept=is_kept,
                reason="; ".join(filter(None, reasons)),
                norm=finite(norms[row]),
                cosine=cosines[row],
                distance=None if distances is None else distances[row],
            )
        )
    return found


def without_update(**reasons: Mapping[Any, str]) -> list[ClientRecord]:
    """Return the audit entries of the clients whose updates the rule did not get.

    `reasons` has the reason of each client, by standing: malformed, error, late, missing, excluded.
    """
    kinds = cast("Mapping[Standing, Mapping[Any, str]]", reasons)
    return [
        ClientRecord(client=str(client), standing=standing, reason=by_client[client])
        for standing, by_client in kinds.items()
        for client in sorted(by_client)
    ]


def why_too_few(error: TooManyByzantine, who: str) -> str:
    """Return why so many usable updates are not enough; clients are called `who`."""
    return (
        f"{error.num_clients} usable updates are too few: with them the rule tolerates at most "
        f"{error.limit} Byzantine {who}, not {error.got}"
    )


def applied_nevertheless(num_byzantine: int) -> str:
    """Return what `when_too_many="lower"` did with too few usable updates."""
    return f"it was applied nevertheless, assuming {num_byzantine}"


def why_rule_failed(error: Exception) -> str:
    """Return why a round in which the rule failed keeps its model."""
    return f"the rule raised {type(error).__name__}: {quote(error)}"
