"""What an audit says of each client: how often dropped, how far from the others, how sure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from outvote.report.audit import FAULTS, Audit, Mark

NUM_ERRORS = 3.0
"""So far above 0.5 a client stands out."""
CHANCE = 0.00135
"""The share of clients all alike that do so by chance, if each was compared often."""
HOW_SUSPICION_IS_COMPUTED = (
    "In every round the clients that sent something are ranked by their score: 0 is the smallest, "
    "1 the largest, equals share their ranks. What could not be used (NaN, infinity, unreadable) "
    "ranks above all scores. Suspicion is a client's mean rank over its rounds, and 0.5 is what "
    "clients that are all alike would have. The error is the standard error that such clients "
    "would show by chance. Clients are ordered by suspicion minus error, so a few rounds are "
    "little evidence; who is more than three errors above 0.5 stands out. Of clients all alike "
    "at most one of 700 does so by chance. Standing out says that a client is steadily unlike the "
    "others. It may be an attack, or data that nobody else has."
)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRecord:
    """One client over all rounds."""

    client: str
    index: int
    """Its place in the audit's arrays."""
    is_byzantine: bool | None
    num_sampled: int
    """How often it was asked."""
    num_judged: int
    num_dropped: int
    """How often it sent something that had no share in the update."""
    longest_streak: int
    """The most drops in a row, counted over the rounds in which it sent something."""
    suspicion: float
    """Its mean rank within a round; NaN if it was never compared with others."""
    error: float
    num_rejected: int
    faults: Mapping[str, int]
    """How often malformed, error, missing, late and excluded."""
    last_seen: int | None
    """The last round in which it sent something."""
    reason: str
    """The last that was written about it."""
    norm: float
    """The median length of what it sent; NaN if that is not known."""
    cosine: float
    """The median cosine between what it sent and the update, likewise."""

    @property
    def drop_rate(self) -> float:
        """The share of what it sent that was not used; NaN if it sent nothing."""
        return self.num_dropped / self.num_judged if self.num_judged else float("nan")

    @property
    def lower_bound(self) -> float:
        """Its suspicion minus its error: what clients are ordered by."""
        return self.suspicion - self.error

    @property
    def stands_out(self) -> bool:
        """Whether chance alone would hardly put it so far above the others."""
        return self.suspicion - NUM_ERRORS * self.error > 0.5


def client_records(audit: Audit) -> list[ClientRecord]:
    """Return all clients, the most suspicious first; those never compared with others last."""
    suspicion, error = suspicions(audit)
    judged, refused = audit.is_judged, audit.is_refused
    streaks = longest_streaks(judged, refused)
    counts = {mark: (audit.marks == mark).sum(axis=0) for mark in Mark}
    num_sampled = len(audit.rounds) - counts[Mark.ABSENT] - counts[Mark.EXCLUDED]
    last_reasons = {column: text for (_, column), text in sorted(audit.reasons.items())}
    last_seen = _last_seen(audit.rounds, judged)
    norms, cosines = _medians(audit.norms, audit), _medians(audit.cosines, audit)
    records = [
        ClientRecord(
            client=client,
            index=k,
            is_byzantine=None if audit.is_byzantine is None else bool(audit.is_byzantine[k]),
            num_sampled=int(num_sampled[k]),
            num_judged=int(judged[:, k].sum()),
            num_dropped=int(refused[:, k].sum()),
            longest_streak=int(streaks[k]),
            suspicion=float(suspicion[k]),
            error=float(error[k]),
            num_rejected=int(counts[Mark.REJECTED][k]),
            faults={name: int(counts[mark][k]) for name, mark in FAULTS.items()},
            last_seen=last_seen[k],
            reason=last_reasons.get(k, ""),
            norm=norms[k],
            cosine=cosines[k],
        )
        for k, client in enumerate(audit.clients)
    ]
    return sorted(records, key=_order)


def suspicions(audit: Audit) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return each client's mean rank within its rounds, and the error of clients all alike."""
    ranks, num_compared = within_round_ranks(audit)
    known = ~np.isnan(ranks)
    times = known.sum(axis=0)
    # The variance of one of k equally likely ranks 0, 1 / (k - 1), ..., 1.
    variance = (num_compared + 1) / (12 * np.maximum(num_compared - 1, 1))
    total_variance = (known * variance[:, None]).sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(times > 0, np.nansum(ranks, axis=0) / times, np.nan)
        error = np.where(times > 0, np.sqrt(total_variance) / times, np.nan)
    return mean, error


def within_round_ranks(audit: Audit) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return ranks in [0, 1] ``[rounds, clients]`` (NaN: none) and how many were compared."""
    scores = np.where(np.isin(audit.marks, (Mark.REJECTED, Mark.MALFORMED)), np.inf, audit.scores)
    ranks = np.full(scores.shape, np.nan)
    is_known = audit.is_judged & ~np.isnan(scores)
    num_compared = is_known.sum(axis=1)
    rows, columns = np.nonzero(is_known & (num_compared > 1)[:, None])
    places = _places(rows, scores[rows, columns])
    ranks[rows, columns] = places / (num_compared[rows] - 1)
    return ranks, num_compared


def _places(rows: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how many of its own row are below each value; equals share the mean of their places.

    All rows at once: a loop over the rounds of hundreds of runs would take seconds.
    """
    order = np.lexsort((values, rows))
    row, value = rows[order], values[order]
    is_new = np.ones(len(row), dtype=bool)
    is_new[1:] = (row[1:] != row[:-1]) | (value[1:] != value[:-1])
    equals = np.cumsum(is_new) - 1
    first = np.flatnonzero(is_new)[equals]
    last = first + np.bincount(equals, minlength=1)[equals] - 1
    places = np.empty(len(row))
    places[order] = (first + last) / 2 - np.searchsorted(row, row)
    return places


def longest_streaks(
    is_judged: NDArray[np.bool_], is_refused: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return each client's most refusals in a row; rounds without it do not end a row."""
    running = np.zeros(is_judged.shape[1], dtype=np.int64)
    longest = running.copy()
    for judged, refused in zip(is_judged, is_refused, strict=True):
        running = np.where(refused, running + 1, np.where(judged, 0, running))
        longest = np.maximum(longest, running)
    return longest


def _last_seen(rounds: NDArray[np.int64], is_judged: NDArray[np.bool_]) -> list[int | None]:
    columns = (np.flatnonzero(column) for column in is_judged.T)
    return [int(rounds[found[-1]]) if len(found) else None for found in columns]


def _medians(values: NDArray[np.float64] | None, audit: Audit) -> list[float]:
    """Return the median of each client over the rounds in which it is known."""
    if values is None:
        return [float("nan")] * len(audit.clients)
    known = (column[~np.isnan(column)] for column in values.T)
    return [float(np.median(each)) if len(each) else float("nan") for each in known]


def _order(record: ClientRecord) -> tuple[float, int, int, int]:
    bound = record.lower_bound
    known = np.inf if np.isnan(bound) else -bound
    return known, -record.num_dropped, -sum(record.faults.values()), record.index
