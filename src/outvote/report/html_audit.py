"""An audit as a page holds it: packed, one entry per client and round in which it was asked."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outvote.report.audit import FAULTS, Audit, Mark
from outvote.report.audit_clients import ClientRecord, client_records, within_round_ranks
from outvote.report.audit_truth import detection
from outvote.report.packing import packed_measured, packed_shares, packed_whole

NO_RANK, RANK_SCALE = 255, 250
MAX_REASONS = 2000
MAX_TEXT = 300
"""So many characters of a name or a reason are kept: others wrote them, at any length."""


def num_entries(audit: Audit) -> int:
    """Return how many judgements there are."""
    return int((audit.marks != Mark.ABSENT).sum())


def audit_entry(audit: Audit, every: int) -> dict[str, Any]:
    """Pack an audit; counts are of all rounds, of the matrix every so many rounds are kept."""
    records = client_records(audit)
    found = detection(audit, records)
    texts: dict[str, int] = {"": 0}
    return {
        "clients": [shortened(each) for each in audit.clients]
        if _are_named(audit.clients)
        else len(audit.clients),
        "every": every,
        "matrix": _matrix(audit, every),
        "records": _records(records, texts),
        "detection": None if found is None else asdict(found),
        "liars": None if audit.is_byzantine is None else packed_whole(audit.is_byzantine),
        "reasons": _reasons(audit.reasons, every, texts),
        "texts": list(texts),
    }


def shortened(text: str) -> str:
    r"""Return a text without what would turn or hide the words around it; its beginning if long.

    >>> len(shortened("x" * 10_000)), shortened("a\u202eb")
    (300, 'a\\u202eb')
    """
    text = text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def _are_named(clients: Sequence[str]) -> bool:
    return list(clients) != [str(k) for k in range(len(clients))]


def _matrix(audit: Audit, every: int) -> dict[str, Any]:
    """Pack round by round: who was asked, what became of it, score and rank."""
    ranks, _ = within_round_ranks(audit)
    marks, scores, ranks = audit.marks[::every], audit.scores[::every], ranks[::every]
    rows, columns = np.nonzero(marks)
    counts = np.bincount(rows, minlength=len(marks))
    return {
        "rounds": packed_whole(audit.rounds[::every]),
        "counts": packed_whole(counts),
        "clients": packed_whole(columns),
        "marks": packed_whole(marks[rows, columns]),
        "scores": packed_measured(scores[rows, columns]),
        "ranks": packed_whole(_rank_codes(ranks[rows, columns])),
    }


def _rank_codes(ranks: NDArray[np.float64]) -> NDArray[np.uint8]:
    known = ~np.isnan(ranks)
    codes = np.full(ranks.shape, NO_RANK, dtype=np.uint8)
    codes[known] = np.rint(ranks[known] * RANK_SCALE)
    return codes


def _records(records: Sequence[ClientRecord], texts: dict[str, int]) -> dict[str, Any]:
    """Pack what is said of the clients, in the order of their suspicion."""

    def whole(name: str) -> dict[str, Any]:
        return packed_whole(np.array([getattr(each, name) for each in records], dtype=np.int64))

    def share(name: str) -> dict[str, Any]:
        return packed_shares(np.array([getattr(each, name) for each in records], dtype=float))

    result: dict[str, Any] = {
        "num": len(records),
        "index": whole("index"),
        "suspicion": share("suspicion"),
        "error": share("error"),
        "last_seen": packed_whole(np.array([each.last_seen or 0 for each in records], dtype=int)),
        "reason": packed_whole(
            np.array([_place(each.reason, texts) for each in records], dtype=int)
        ),
    }
    for name in ("norm", "cosine"):
        values = np.array([getattr(each, name) for each in records], dtype=float)
        if not np.isnan(values).all():
            result[name] = packed_measured(values)
    for name in ("num_sampled", "num_judged", "num_dropped", "longest_streak", "num_rejected"):
        result[name] = whole(name)
    result["faults"] = {
        name: packed_whole(np.array([each.faults[name] for each in records]))
        for name in FAULTS
        if any(each.faults[name] for each in records)
    }
    return result


def _reasons(
    reasons: Mapping[tuple[int, int], str], every: int, texts: dict[str, int]
) -> list[list[int]]:
    """Return row, client and place of the text of the last judgements that have one."""
    told = [place for place in sorted(reasons) if place[0] % every == 0][-MAX_REASONS:]
    return [[row // every, column, _place(reasons[row, column], texts)] for row, column in told]


def _place(text: str, texts: dict[str, int]) -> int:
    """Return where a text is among those that are kept once."""
    return texts.setdefault(shortened(text), len(texts))
