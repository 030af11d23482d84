"""Sample counts as weights: capped, since a count is a claim by the client."""

from collections.abc import Hashable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

MOST_NAMED = 5
COUNT_CAP = 3.0
"""No client counts more than this multiple of the median count."""
NUM_HALVINGS = 60


def check_counts(counts: Sequence[float], num_clients: int) -> list[float]:
    """Return the counts as numbers; raise a ValueError unless every client has one."""
    try:
        values = np.asarray(counts, dtype=np.float64)
    except (TypeError, ValueError):
        values = np.empty(0)
    if values.shape != (num_clients,) or not (np.isfinite(values) & (values >= 0)).all():
        raise ValueError(
            f"sample_counts must be {num_clients} finite numbers, one per client and none "
            f"negative, got {counts!r}; leave sample_counts out to count every client alike."
        )
    if not values.any():
        raise ValueError(
            "sample_counts must be positive for at least one client, got zeros alone; leave "
            "sample_counts out to count every client alike."
        )
    return list(values.tolist())


def check_cap(cap: float) -> None:
    """Raise a ValueError unless a cap leaves the median client its weight."""
    if isinstance(cap, bool | str) or not cap >= 1:
        raise ValueError(
            f"count_cap must be a number from 1 on, got {cap!r}; it is a multiple of the median "
            "count (inf: no cap)."
        )


def capped_counts(
    counts: Sequence[float], num_byzantine: int = 0, cap: float = COUNT_CAP
) -> NDArray[np.float64] | None:
    r"""Return counts relative to their median, capped; None: all clients count alike.

    $$ c_i = \min\Big(\frac{m_i}{\operatorname{med}(m)}, C, t\Big) $$

    m are the claimed counts, med the (lower) median of the positive ones and C the cap. t is the
    largest value with which f clients have at most half way from f / n to 1 / 2 of the weight
    (no bound if f is 0, or n / 2 or more).

    >>> capped_counts([10, 20, 30, 10**9]).tolist()
    [0.5, 1.0, 1.5, 3.0]
    """
    values = np.asarray(counts, dtype=np.float64)
    positive = np.sort(values[values > 0])
    if len(positive) == 0:
        return None
    with np.errstate(over="ignore", under="ignore"):
        relative = np.minimum(values / positive[(len(positive) - 1) // 2], cap)
    return unless_equal(bounded(relative, num_byzantine))


def capped_note(
    clients: Sequence[Hashable], counts: Sequence[float], num_byzantine: int, cap: float
) -> tuple[str, ...]:
    """Return a note that names the clients who count less than they claim.

    >>> capped_note("abcd", [10, 20, 30, 10**9], 0, 3.0)
    ('sample_counts: capped for d',)
    """
    capped = capped_counts(counts, num_byzantine, cap)
    values = np.asarray(counts, dtype=np.float64)
    if not (values > 0).any():
        return ()
    used = np.ones(len(values)) if capped is None else capped
    least = int(np.argmin(np.where(values > 0, values, np.inf)))
    with np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore"):
        is_less = values / values[least] > (1 + 1e-9) * (used / used[least])
    names = [str(client) for client, less in zip(clients, is_less, strict=True) if less]
    more = f" and {len(names) - MOST_NAMED} others" if len(names) > MOST_NAMED else ""
    return (f"sample_counts: capped for {', '.join(names[:MOST_NAMED])}{more}",) if names else ()


def bounded(counts: NDArray[np.float64], num_byzantine: int) -> NDArray[np.float64]:
    """Cap counts until f clients have at most half way from f / n to 1 / 2 of their sum.

    If they cannot, since too many claim nothing, all who claim something count alike. Counts that
    are capped are relative to the cap: they may be as small as 1e-300.
    """
    num_clients = len(counts)
    most = (num_byzantine / num_clients + 0.5) / 2
    if num_byzantine == 0 or 2 * num_byzantine >= num_clients or not (counts > 0).any():
        return counts
    low, high = float(counts[counts > 0].min()), float(counts.max())

    def is_too_much(cap: float) -> bool:
        # Relative to the largest: their sum is finite.
        capped = np.sort(np.minimum(counts, cap) / cap)
        return bool(capped[-num_byzantine:].sum() > most * capped.sum())

    if not is_too_much(high):
        return counts
    for _ in range(NUM_HALVINGS):
        middle = low + (high - low) / 2
        low, high = (low, middle) if is_too_much(middle) else (middle, high)
    with np.errstate(over="ignore", under="ignore"):
        return np.minimum(counts / low, 1.0)


def unless_equal(counts: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """Return None for equal counts, so that the rule computes as without them."""
    return None if counts.min() == counts.max() else counts


def mixed_counts(
    mixture: Tensor, counts: Tensor, num_byzantine: int
) -> tuple[Tensor, Tensor | None]:
    """Weigh the averages ``mixture [1, mixed, clients]``; return them and their own counts.

    An average counts as much as its members do on average; `num_byzantine` of them are bounded as
    clients are.
    """
    weighed = mixture * counts
    total = weighed.sum(dim=-1, keepdim=True)
    # Members who claim nothing count alike.
    weighed = torch.where(total > 0, weighed / total.clamp(min=1e-300), mixture)
    own = unless_equal(bounded(total.flatten().cpu().numpy(), num_byzantine))
    return weighed, None if own is None else torch.from_numpy(own).to(counts.device)
