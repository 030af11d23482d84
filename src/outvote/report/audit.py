"""Who was judged how, client by round: of a simulated run or of a federation in production."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from outvote.report.audit_facts import log_facts
from outvote.results.audit_log import AuditRound, ClientRecord, read_log, read_manifest
from outvote.results.run import Result
from outvote.results.schema import Round


class Mark(IntEnum):
    """What became of a client in a round."""

    ABSENT = 0
    """It was not sampled."""
    KEPT = 1
    DROPPED = 2
    """It was judged and had no share in the update."""
    REJECTED = 3
    """It sent NaN or infinity."""
    MALFORMED = 4
    """Its reply could not be read."""
    ERROR = 5
    MISSING = 6
    LATE = 7
    EXCLUDED = 8
    """It was not asked because of what it did before."""


REFUSED = (Mark.DROPPED, Mark.REJECTED, Mark.MALFORMED)
"""It sent something that had no share in the update."""
JUDGED = (Mark.KEPT, *REFUSED)
FAULTS = {
    "malformed": Mark.MALFORMED,
    "error": Mark.ERROR,
    "missing": Mark.MISSING,
    "late": Mark.LATE,
    "excluded": Mark.EXCLUDED,
}


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Audit:
    """All that is known of the clients, round by round."""

    title: str
    clients: tuple[str, ...]
    rounds: NDArray[np.int64]
    scores: NDArray[np.float64]
    """``[rounds, clients]``; NaN: not judged or no score, infinity: sent what is not finite."""
    marks: NDArray[np.uint8]
    """``[rounds, clients]``, of `Mark`."""
    is_byzantine: NDArray[np.bool_] | None
    """``[clients]``; None: the truth is not known."""
    reasons: Mapping[tuple[int, int], str]
    """What was written beside a judgement, by place in the arrays."""
    about: Mapping[str, Any]
    """The rule and whatever else was set."""
    norms: NDArray[np.float64] | None = None
    """``[rounds, clients]``: how long what it sent was; NaN: not told, None: never told."""
    cosines: NDArray[np.float64] | None = None
    """``[rounds, clients]``: between what it sent and the update, likewise."""

    @property
    def is_judged(self) -> NDArray[np.bool_]:
        """``[rounds, clients]``: whether it sent something that was used or refused."""
        result: NDArray[np.bool_] = np.isin(self.marks, JUDGED)
        return result

    @property
    def is_refused(self) -> NDArray[np.bool_]:
        """``[rounds, clients]``: whether it sent something that had no share in the update."""
        result: NDArray[np.bool_] = np.isin(self.marks, REFUSED)
        return result


def audit_run(result: Result) -> Audit | None:
    """Return the audit of a simulated run; None if it comes from an export."""
    if result.folder is None:
        return None
    rounds = result.folder.rounds()
    seen = max((max(each.clients, default=-1) for each in rounds), default=-1) + 1
    wanted = result.setting("federation.num_clients")
    num_clients = max(seen, wanted) if isinstance(wanted, int) else seen
    marks, scores = _of_rounds(rounds, num_clients)
    liars = np.zeros(num_clients, dtype=bool)
    if result.attack != "none":  # Then those who could lie do not.
        liars[sorted({client for each in rounds for client in each.byzantine})] = True
    return Audit(
        title=f"{result.config['rule']} against {result.config['attack']}, seed {result.seed}",
        clients=tuple(str(client) for client in range(num_clients)),
        rounds=np.array([each.round for each in rounds], dtype=np.int64),
        scores=scores,
        marks=marks,
        is_byzantine=liars,
        reasons={},
        about={"rule": result.config["rule"], "attack": result.config["attack"]},
    )


def audit_log(folder: Path) -> Audit | None:
    """Return the audit of a federation in production; None if there is no log here."""
    manifest = read_manifest(folder)
    if manifest is None:
        return None
    told = read_log(folder)
    rounds = told.rounds
    clients = list(dict.fromkeys(each.client for line in rounds for each in line.clients))
    place = {client: column for column, client in enumerate(clients)}
    shape = (len(rounds), len(clients))
    marks, scores = np.zeros(shape, dtype=np.uint8), np.full(shape, np.nan)
    reasons = {}
    for row, line in enumerate(rounds):
        for each in line.clients:
            column = place[each.client]
            if not line.is_updated and each.standing == "aggregated" and each.score is None:
                continue  # The rule judged nobody: its reply was fine, but too few others were.
            marks[row, column] = _mark(each)
            scores[row, column] = _score(each)
            if each.reason:
                reasons[row, column] = each.reason
    return Audit(
        title=folder.resolve().name,
        clients=tuple(clients),
        rounds=np.array([line.round for line in rounds], dtype=np.int64),
        scores=scores,
        marks=marks,
        is_byzantine=None,
        reasons=reasons,
        about=log_facts(manifest, told),
        norms=_measured(rounds, place, "norm"),
        cosines=_measured(rounds, place, "cosine"),
    )


def _of_rounds(
    rounds: Sequence[Round], num_clients: int
) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    shape = (len(rounds), num_clients)
    marks, scores = np.zeros(shape, dtype=np.uint8), np.full(shape, np.nan)
    for row, each in enumerate(rounds):
        clients = list(each.clients)
        marks[row, clients] = Mark.DROPPED
        marks[row, list(each.kept or ())] = Mark.KEPT
        marks[row, list(each.rejected)] = Mark.REJECTED
        scores[row, clients] = [np.inf if score is None else score for score in each.scores]
    return marks, scores


def _measured(
    rounds: Sequence[AuditRound], place: Mapping[str, int], name: str
) -> NDArray[np.float64] | None:
    """Return what is told of each judgement; None if it is told of none."""
    found = np.full((len(rounds), len(place)), np.nan)
    for row, line in enumerate(rounds):
        for each in line.clients:
            value = getattr(each, name)
            found[row, place[each.client]] = np.nan if value is None else value
    return None if np.isnan(found).all() else found


def _mark(judgement: ClientRecord) -> Mark:
    if judgement.standing != "aggregated":
        return FAULTS[judgement.standing]
    if judgement.kept:
        return Mark.KEPT
    return Mark.REJECTED if judgement.score is None else Mark.DROPPED


def _score(judgement: ClientRecord) -> float:
    if judgement.score is not None:
        return judgement.score
    is_refused = judgement.standing == "aggregated" and not judgement.kept
    return np.inf if is_refused else np.nan
