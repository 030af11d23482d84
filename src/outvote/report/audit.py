"""Audits: every client's verdict in every round, who looks suspicious, and how well that is true.

Of a simulated run, or of the log of a federation in production.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import IntEnum
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from outvote.errors import plural
from outvote.results.audit_log import (
    AuditLog,
    ClientRecord,
    Manifest,
    find_log,
    is_cosine_outlier,
    is_norm_outlier,
    num_logs,
    read_log,
    read_manifest,
)
from outvote.results.run import Result

MAX_LISTED = 20
"""So many runs are listed where one is to be chosen."""
NUM_ERRORS = 3.0
"""So far above 0.5 a client stands out."""
CHANCE = 0.00135
"""The share of clients all alike that do so by chance, if each was compared often."""
MAX_NAME, MAX_NAMED = 40, 20
"""How long and how many the names in a finding are."""


def choose_run(results: Sequence[Result], name: str) -> Result:
    """Return the run with a text in its name, or of a hash; a ValueError if it is not one run."""
    exact = [result for result in results if name in (result.name, result.hash)]
    found = exact or [result for result in results if name in result.name]
    if not found:
        like = get_close_matches(name, [result.name for result in results], n=1, cutoff=0.0)
        raise ValueError(
            f"none of {plural(len(results), 'run')} has {name!r} in its name; the closest is "
            f"{like[0]}."
        )
    if len(found) > 1:
        listed = ", ".join(result.name for result in found[:MAX_LISTED])
        more = f" and {len(found) - MAX_LISTED} more" if len(found) > MAX_LISTED else ""
        raise ValueError(
            f"{len(found)} runs have {name!r} in their names; name one: {listed}{more}."
        )
    return found[0]


class Mark(IntEnum):
    """The outcome of a client in a round."""

    ABSENT = 0
    """It was not sampled."""
    KEPT = 1
    DROPPED = 2
    """It was aggregated and had no share in the update."""
    REJECTED = 3
    """It sent NaN or infinity."""
    MALFORMED = 4
    """Its reply could not be read."""
    ERROR = 5
    MISSING = 6
    LATE = 7
    EXCLUDED = 8
    """It was not asked because of earlier rounds."""
    UNKNOWN = 9
    """It was aggregated, and the rule does not report whether it was kept."""


REFUSED = (Mark.DROPPED, Mark.REJECTED, Mark.MALFORMED)
"""It sent something that had no share in the update."""
FAULTS = {each.name.lower(): each for each in Mark if Mark.MALFORMED <= each <= Mark.EXCLUDED}
"""Marks by the standing in a log of clients whose updates the rule did not get."""


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Audit:
    """The clients of a federation, round by round."""

    title: str
    clients: tuple[str, ...]
    rounds: NDArray[np.int64]
    scores: NDArray[np.float64]
    """``[rounds, clients]``; NaN: no score, infinity: sent what is not finite."""
    marks: NDArray[np.uint8]
    """``[rounds, clients]``, of `Mark`."""
    is_byzantine: NDArray[np.bool_] | None
    """``[clients]``; None: the truth is not known."""
    reasons: Mapping[tuple[int, int], str]
    """The reason written beside a verdict, by row and column of the arrays."""
    about: Mapping[str, Any]
    """The rule and other settings."""
    norms: NDArray[np.float64] | None = None
    """``[rounds, clients]``: of what it sent; NaN or None: not known."""
    cosines: NDArray[np.float64] | None = None
    """``[rounds, clients]``: between what it sent and the update, likewise."""
    distances: NDArray[np.float64] | None = None
    """``[rounds, clients]``: from the others, over the median of the round, likewise."""

    @property
    def is_received(self) -> NDArray[np.bool_]:
        """``[rounds, clients]``: whether it sent something."""
        return self._is_any(Mark.UNKNOWN, Mark.KEPT, *REFUSED)

    @property
    def is_decided(self) -> NDArray[np.bool_]:
        """``[rounds, clients]``: whether it is known that it was kept or refused."""
        return self._is_any(Mark.KEPT, *REFUSED)

    @property
    def is_refused(self) -> NDArray[np.bool_]:
        """``[rounds, clients]``: whether it sent something that had no share in the update."""
        return self._is_any(*REFUSED)

    def _is_any(self, *marks: Mark) -> NDArray[np.bool_]:
        result: NDArray[np.bool_] = np.isin(self.marks, marks)
        return result


def audit_run(result: Result) -> Audit | None:
    """Return the audit of a simulated run; None if it comes from an export."""
    if result.folder is None:
        return None
    rounds = result.folder.rounds()
    seen = max((max(each.clients, default=-1) for each in rounds), default=-1) + 1
    wanted = result.setting("federation.num_clients")
    num_clients = max(seen, wanted) if isinstance(wanted, int) else seen
    scores = np.full((len(rounds), num_clients), np.nan)
    marks = np.zeros_like(scores, dtype=np.uint8)
    is_byzantine = np.zeros(num_clients, dtype=bool)
    for row, each in enumerate(rounds):
        clients = list(each.clients)
        marks[row, clients] = Mark.UNKNOWN if each.kept is None else Mark.DROPPED
        marks[row, list(each.kept or ())] = Mark.KEPT
        marks[row, list(each.rejected)] = Mark.REJECTED
        scores[row, clients] = [np.inf if score is None else score for score in each.scores]
        if result.attack != "none":  # Without an attack, all clients are honest.
            is_byzantine[list(each.byzantine)] = True
    return Audit(
        title=f"{result.config['rule']} against {result.config['attack']}, seed {result.seed}",
        clients=tuple(str(client) for client in range(num_clients)),
        rounds=np.array([each.round for each in rounds], dtype=np.int64),
        scores=scores,
        marks=marks,
        is_byzantine=is_byzantine,
        reasons={},
        about={"rule": result.config["rule"], "attack": result.config["attack"]},
    )


def audit_log(folder: Path) -> Audit | None:
    """Return the audit of a federation in production; None if there is no log here.

    Of several logs in a folder the newest is read.
    """
    manifest, parent = read_manifest(folder), folder
    if manifest is None:
        return None
    folder = find_log(folder)
    log = read_log(folder)
    rounds = log.rounds
    clients = list(dict.fromkeys(each.client for line in rounds for each in line.clients))
    columns = {client: column for column, client in enumerate(clients)}
    scores, norms, cosines, distances = np.full((4, len(rounds), len(clients)), np.nan)
    marks = np.zeros_like(scores, dtype=np.uint8)
    reasons = {}
    for row, line in enumerate(rounds):
        for each in line.clients:
            column = columns[each.client]
            norms[row, column], cosines[row, column] = _or_nan(each.norm), _or_nan(each.cosine)
            distances[row, column] = _or_nan(each.distance)
            if not line.is_updated and each.standing == "aggregated" and each.score is None:
                continue  # Nothing was aggregated: its reply was fine, but too few others were.
            marks[row, column] = mark = _mark(each)
            is_infinite = each.score is None and mark == Mark.REJECTED
            scores[row, column] = np.inf if is_infinite else _or_nan(each.score)
            if each.reason:
                reasons[row, column] = each.reason
    return Audit(
        title=str(folder.resolve().relative_to(parent.resolve().parent)),
        clients=tuple(clients),
        rounds=np.array([line.round for line in rounds], dtype=np.int64),
        scores=scores,
        marks=marks,
        is_byzantine=None,
        reasons=reasons,
        about=_about_log(manifest, log, num_logs(parent)),
        norms=norms,
        cosines=cosines,
        distances=distances,
    )


def _mark(verdict: ClientRecord) -> Mark:
    if verdict.standing != "aggregated":
        return FAULTS[verdict.standing]
    if verdict.kept is None:
        return Mark.UNKNOWN
    if verdict.kept:
        return Mark.KEPT
    return Mark.REJECTED if verdict.score is None else Mark.DROPPED


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value


def _about_log(manifest: Manifest, log: AuditLog, num_here: int) -> dict[str, Any]:
    """Return the rule, the settings and the rounds without an update; a setting hides none."""
    rounds = log.rounds
    kept = [each for each in rounds if not each.is_updated]
    last = f"round {kept[-1].round}: {kept[-1].reason or 'no reason'}" if kept else None
    known = {
        "rule": manifest.rule,
        "num_byzantine": manifest.num_byzantine,
        "byzantine_fraction": manifest.byzantine_fraction,
        "outvote": manifest.outvote,
        "started": manifest.started,
        "last round": rounds[-1].time if rounds else None,
        "rounds without an update": len(kept),
        "last of them": last,
        "lines that cannot be read": log.num_unreadable or None,
        "which": f"the newest of {num_here} logs" if num_here > 1 else None,
    }
    merged = {**known, **manifest.settings, **known}
    return {key: value for key, value in merged.items() if value is not None}


OUTCOMES = {
    "kept": Mark.KEPT,
    "dropped": Mark.DROPPED,
    "aggregated": Mark.UNKNOWN,
    "not finite": Mark.REJECTED,
    **FAULTS,
}
"""Outcomes of clients in the words of a log; aggregated: the rule does not report its verdict."""


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Overview:
    """The outcomes of all clients that were asked."""

    by_round: Mapping[str, NDArray[np.int64]]
    """How many clients of each round had an outcome, by its name; without those that never occur,
    but for kept and dropped."""
    reasons: tuple[tuple[str, int], ...]
    """The reasons beside verdicts and how often each was given, the most frequent first."""

    @property
    def totals(self) -> dict[str, int]:
        """How often each outcome occurred."""
        return {name: int(counts.sum()) for name, counts in self.by_round.items()}


def overview(audit: Audit) -> Overview:
    """Count the outcomes of all clients, round by round."""
    counts = {name: (audit.marks == mark).sum(axis=1) for name, mark in OUTCOMES.items()}
    shown = {
        name: found
        for name, found in counts.items()
        if found.any() or name == "kept" or (name == "dropped" and not counts["aggregated"].any())
    }
    return Overview(by_round=shown, reasons=tuple(Counter(audit.reasons.values()).most_common()))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSummary:
    """One client over all rounds."""

    client: str
    index: int
    """Its column in the audit's arrays."""
    is_byzantine: bool | None
    num_sampled: int
    """How often it was asked."""
    num_received: int
    """How often it sent something."""
    num_dropped: int | None
    """How often the rule dropped what it sent; None: the rule never reported it. What is malformed
    or not finite does not reach the rule, and is counted apart."""
    drop_rate: float
    """`num_dropped` as a share of the rounds where it is known; NaN: of none."""
    longest_streak: int | None
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
    """The median norm of what it sent; NaN if that is not known."""
    cosine: float
    """The median cosine between what it sent and the update, likewise."""
    distance: float
    """The median of its distance from the others over that of the median client, likewise."""
    num_norm_outliers: int
    """How often its norm was a third of the median of the round or less, or three times or more."""
    num_cosine_outliers: int
    """How often it pointed against the update, far below the median of the round."""

    @property
    def is_outlier(self) -> bool:
        """Whether its norm or its cosine was unlike the others' in most of its rounds."""
        return 2 * max(self.num_norm_outliers, self.num_cosine_outliers) > self.num_received

    @property
    def num_unusable(self) -> int:
        """How often it sent what cannot be read or is not finite."""
        return self.num_rejected + self.faults["malformed"]

    @property
    def lower_bound(self) -> float:
        """Its suspicion minus its error: the order of clients."""
        return self.suspicion - self.error

    @property
    def stands_out(self) -> bool:
        """Whether chance alone would hardly put it so far above the others."""
        return self.suspicion - NUM_ERRORS * self.error > 0.5


def client_summaries(audit: Audit) -> list[ClientSummary]:
    """Return all clients, the most suspicious first; those never compared with others last."""
    suspicion, error = _suspicions(audit)
    received, dropped = audit.is_received, audit.marks == Mark.DROPPED
    decided = dropped | (audit.marks == Mark.KEPT)
    num_received, num_dropped = received.sum(axis=0), dropped.sum(axis=0)
    num_decided = decided.sum(axis=0)
    streaks = longest_streaks(decided, dropped)
    counts = {mark: (audit.marks == mark).sum(axis=0) for mark in Mark}
    num_sampled = len(audit.rounds) - counts[Mark.ABSENT] - counts[Mark.EXCLUDED]
    last_reasons = {column: text for (_, column), text in sorted(audit.reasons.items())}
    measured = (audit.norms, audit.cosines, audit.distances)
    norms, cosines, distances = (_medians(each, audit) for each in measured)
    norm_outliers = _num_outliers(audit, audit.norms, is_norm_outlier)
    cosine_outliers = _num_outliers(audit, audit.cosines, is_cosine_outlier)
    records = []
    for k, client in enumerate(audit.clients):
        seen = np.flatnonzero(received[:, k])
        is_reported = bool(num_decided[k]) or not counts[Mark.UNKNOWN][k]
        records.append(
            ClientSummary(
                client=client,
                index=k,
                is_byzantine=None if audit.is_byzantine is None else bool(audit.is_byzantine[k]),
                num_sampled=int(num_sampled[k]),
                num_received=int(num_received[k]),
                num_dropped=int(num_dropped[k]) if is_reported else None,
                drop_rate=float(num_dropped[k] / num_decided[k]) if num_decided[k] else np.nan,
                longest_streak=int(streaks[k]) if is_reported else None,
                suspicion=float(suspicion[k]),
                error=float(error[k]),
                num_rejected=int(counts[Mark.REJECTED][k]),
                faults={name: int(counts[mark][k]) for name, mark in FAULTS.items()},
                last_seen=int(audit.rounds[seen[-1]]) if len(seen) else None,
                reason=last_reasons.get(k, ""),
                norm=norms[k],
                cosine=cosines[k],
                distance=distances[k],
                num_norm_outliers=int(norm_outliers[k]),
                num_cosine_outliers=int(cosine_outliers[k]),
            )
        )
    return sorted(records, key=_order)


def _order(record: ClientSummary) -> tuple[float, int, int, int]:
    bound = record.lower_bound
    known = np.inf if np.isnan(bound) else -bound
    return known, -(record.num_dropped or 0), -sum(record.faults.values()), record.index


def _suspicions(audit: Audit) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
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
    is_known = audit.is_received & ~np.isnan(scores)
    num_compared = is_known.sum(axis=1)
    rows, columns = np.nonzero(is_known & (num_compared > 1)[:, None])
    ranks[rows, columns] = _ranks(rows, scores[rows, columns]) / (num_compared[rows] - 1)
    return ranks, num_compared


def _ranks(rows: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how many of its own row are below each value; equals share the mean of their ranks.

    All rows at once: a loop over the rounds of hundreds of runs would take seconds.
    """
    order = np.lexsort((values, rows))
    row, value = rows[order], values[order]
    is_new = np.ones(len(row), dtype=bool)
    is_new[1:] = (row[1:] != row[:-1]) | (value[1:] != value[:-1])
    equals = np.cumsum(is_new) - 1
    first = np.flatnonzero(is_new)[equals]
    last = first + np.bincount(equals, minlength=1)[equals] - 1
    ranks = np.empty(len(row))
    ranks[order] = (first + last) / 2 - np.searchsorted(row, row)
    return ranks


def longest_streaks(
    is_decided: NDArray[np.bool_], is_refused: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return each client's most refusals in a row; rounds without it do not end a row."""
    running = np.zeros(is_decided.shape[1], dtype=np.int64)
    longest = running.copy()
    for decided, refused in zip(is_decided, is_refused, strict=True):
        running = np.where(refused, running + 1, np.where(decided, 0, running))
        longest = np.maximum(longest, running)
    return longest


def _medians(values: NDArray[np.float64] | None, audit: Audit) -> list[float]:
    if values is None:
        return [float("nan")] * len(audit.clients)
    known = (column[~np.isnan(column)] for column in values.T)
    return [float(np.median(each)) if len(each) else float("nan") for each in known]


def _num_outliers(
    audit: Audit,
    values: NDArray[np.float64] | None,
    is_outlier: Callable[[NDArray[np.float64]], NDArray[np.bool_]],
) -> NDArray[np.int64]:
    if values is None or not values.size:
        return np.zeros(len(audit.clients), dtype=np.int64)
    counts: NDArray[np.int64] = is_outlier(values).sum(axis=0)
    return counts


def findings(audit: Audit, records: Sequence[ClientSummary]) -> tuple[str, ...]:
    """Return in sentences who stands out, by what, and what that proves."""
    found = [*_standing(records)]
    outliers = [each.client for each in records if each.is_outlier]
    if outliers:
        found.append(f"Norm or cosine unlike the others in most rounds: {_listed(outliers)}.")
    unusable = [f"{each.client} ({each.num_unusable})" for each in records if each.num_unusable]
    if unusable:
        found.append(f"Malformed or not finite replies: {_listed(unusable)}.")
    is_dropped = audit.marks == Mark.DROPPED
    if audit.is_byzantine is None and is_dropped.any():
        is_decided = (is_dropped | (audit.marks == Mark.KEPT)).any(axis=1)
        numbers = set(is_dropped.sum(axis=1)[is_decided].tolist())
        many = f"{max(numbers)} client{'s' * (max(numbers) != 1)}"
        always = f"The rule dropped {many} in every round, whoever they were" * (len(numbers) == 1)
        found.append(
            f"{always or 'A rule drops clients whoever they are'}: being dropped proves nothing by "
            "itself, and an honest client with unusual data looks like an attacker."
        )
    return tuple(found)


def _standing(records: Sequence[ClientSummary]) -> Iterator[str]:
    if not any(1 - NUM_ERRORS * each.error > 0.5 for each in records):
        yield (
            "Too few rounds to tell: a client that is the worst of all in every round would not be "
            "more than three errors above 0.5 yet."
        )
        return
    unlike = [each.client for each in records if each.stands_out]
    if not unlike:
        yield "No client is more than three errors above 0.5."
        return
    yield f"More than three errors above 0.5: {_listed(unlike)}."
    expected = CHANCE * sum(not np.isnan(each.suspicion) for each in records)
    by_chance = "fewer than one" if expected < 1 else f"about {expected:.0f}"
    yield (f"Of {len(records):,} clients all alike, chance alone would put {by_chance} there.")


def _listed(names: Sequence[str]) -> str:
    """Return names of unknown origin, each on one line and not too long, and not too many."""
    short = [" ".join(name[: 2 * MAX_NAME].split()) for name in names[:MAX_NAMED]]
    short = [name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}…" for name in short]
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(short) + more


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Detection:
    """How well rule and ranking found the Byzantine clients; None: nothing to find, or unknown."""

    num_byzantine: int
    """How many Byzantine clients took part at least once."""
    drop_precision: float | None
    """The share of what was dropped that Byzantine clients had sent."""
    drop_recall: float | None
    """The share of what Byzantine clients had sent that was dropped."""
    honest_kept: float | None
    """The share of what honest clients had sent that was kept."""
    top_precision: float | None
    """The share of Byzantine clients among the first `num_byzantine` of the ranking; their recall
    is the same."""


def detection(audit: Audit, records: Sequence[ClientSummary]) -> Detection | None:
    """Compare with the truth; None if it is not known."""
    if audit.is_byzantine is None:
        return None
    decided, refused = audit.is_decided, audit.is_refused
    byzantine, honest = decided & audit.is_byzantine, decided & ~audit.is_byzantine
    num_caught = int((refused & byzantine).sum())
    took_part = [each for each in records if each.num_received]
    num_byzantine = sum(bool(each.is_byzantine) for each in took_part)
    top = took_part[:num_byzantine]
    return Detection(
        num_byzantine=num_byzantine,
        drop_precision=_share(num_caught, int(refused.sum())) if num_byzantine else None,
        drop_recall=_share(num_caught, int(byzantine.sum())),
        honest_kept=_share(int((honest & ~refused).sum()), int(honest.sum())),
        top_precision=_share(sum(bool(each.is_byzantine) for each in top), num_byzantine),
    )


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
