"""The data of a page: tables with every metric, and runs and audits packed as short text.

Packed arrays keep whole numbers exactly, shares to four digits, others to three digits or more.
"""

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from outvote.errors import plural
from outvote.grids import flat
from outvote.report import audit as audits
from outvote.report.audit import Audit, ClientSummary, Mark
from outvote.report.cells import METRICS, Grid, Metric, shown
from outvote.report.rendered_table import Number, RenderedCell, render_table, seeds_of, value_of
from outvote.results.audit_log import AUDIT_NAME, read_label_counts
from outvote.results.disk import DamagedFileError
from outvote.results.run import Result
from outvote.results.schema import Environment
from outvote.results.series import Series

MAX_VERDICTS = 700_000
"""So many verdicts are about five million characters."""
MAX_REASONS = 2000
MAX_TEXT = 300
"""So many characters of a name or a reason are kept: others wrote them, at any length."""
MAX_FINDING = 2000
MAX_POINTS, MAX_LISTED = 600, 8
"""Of the chart of a log: so many points; and so many of the most frequent reasons."""
NO_RANK, RANK_SCALE = 255, 250
INFINITE, UNKNOWN = 65535, 65534
"""Codes of measured numbers; 0 is an exact zero, unless numbers below zero are there."""
FIRST, LAST = 1, 65533
SHARE_SCALE, SHARE_UNKNOWN = 10_000, 65535

Packed = dict[str, Any]
Thing = TypeVar("Thing")


def grid_entries(grids: Sequence[Grid], results: Sequence[Result]) -> list[dict[str, Any]]:
    """Return all tables; cells name their runs by their index in `results`."""
    index = {id(result): place for place, result in enumerate(results)}
    titles = {grid.suite_title for grid in grids}
    return [_grid_entry(grid, index, is_only_suite=len(titles) == 1) for grid in grids]


def _grid_entry(grid: Grid, index: Mapping[int, int], *, is_only_suite: bool) -> dict[str, Any]:
    tables = {metric: render_table(grid, metric, paper=True) for metric in METRICS}
    first = tables["best"]

    def cell(row: int, column: int) -> dict[str, Any]:
        return _cell_entry({m: table.rows[row].cells[column] for m, table in tables.items()}, index)

    rows, columns = range(len(grid.rows)), range(len(grid.columns))
    title = grid.title if is_only_suite else f"{grid.suite_title}: {grid.title}"
    return {
        "suite": grid.suite,
        "part": grid.part,
        "title": title or grid.suite_title,
        "seeds": seeds_of(grid) if grid.results else "",
        "rows": list(grid.rows),
        "families": [row.family for row in first.rows],
        "columns": grid.titles,
        "column_key": grid.column_key,
        "has_paper": first.has_paper,
        "has_worst": first.has_worst,
        "cells": [[cell(row, column) for column in columns] for row in rows],
        "worst": {
            metric: [_worst_entry(row.worst, metric) for row in table.rows]
            for metric, table in tables.items()
        },
    }


def _cell_entry(views: Mapping[Metric, RenderedCell], index: Mapping[int, int]) -> dict[str, Any]:
    best, runs = views["best"], views["best"].runs
    entry: dict[str, Any] = {
        metric: None if cell.mean is None else [_shown(cell.mean, metric), _shown(cell.std, metric)]
        for metric, cell in views.items()
    }
    entry["runs"] = [index[id(each)] for each in (*runs.results, *runs.unfinished)]
    bold = [metric for metric, cell in views.items() if cell.is_bold]
    if bold:
        entry["bold"] = bold
    if runs.printed is not None:
        entry["paper"] = [runs.printed.accuracy, runs.printed.std]
        entry["difference"] = value_of(best.difference)
    if best.note:
        entry["note"] = best.note
    return entry


def _worst_entry(worst: RenderedCell | None, metric: Metric) -> list[Any] | None:
    """Return number, column, whether columns are missing, the paper's, and the difference."""
    if worst is None or worst.mean is None:
        return None
    paper, difference = value_of(worst.paper), value_of(worst.difference)
    return [_shown(worst.mean, metric), worst.column, worst.is_partial, paper, difference]


def _packed_series(series: Series) -> dict[str, Packed]:
    """Return the columns that the curves need; those of the theory only where they are known."""
    found = {name: pack(getattr(series, name)) for name, pack in SERIES.items()}
    for name in OF_THEORY:
        values = getattr(series, name)
        if not np.isnan(values).all():
            found[name] = packed_measured(values)
    return found


def _shown(number: Number | None, metric: Metric) -> float | None:
    return None if number is None else shown(number.value, metric)


def run_entries(results: Sequence[Result]) -> dict[str, Any]:
    """Return all runs; what many share is kept once."""
    settings = [flat(result.config) for result in results]
    first = settings[0] if settings else {}
    shared = {k: v for k, v in first.items() if all(k in own and own[k] == v for own in settings)}
    environments: dict[Environment, int] = {}
    labels: dict[bytes, int] = {}
    sampled = (each.series.num_sampled for each in results if each.folder is not None)
    every = _every(sum(int(each.sum()) for each in sampled))
    runs = []
    for result, own in zip(results, settings, strict=True):
        audit, counts, known = audits.audit_run(result), _label_counts(result), result.environment
        runs.append(
            {
                **_outcome(result),
                "series": _packed_series(result.series),
                "settings": {key: value for key, value in own.items() if key not in shared},
                "environment": None if known is None else _once(known, environments),
                "audit": None if audit is None else _audit_entry(audit, every),
                "labels": None if counts is None else _once(counts, labels),
            }
        )
    return {
        "runs": runs,
        "settings": shared,
        "environments": [msgspec.to_builtins(each) for each in environments],
        "labels": [msgspec.json.decode(each) for each in labels],
    }


def log_entries(audit: Audit) -> dict[str, Any]:
    """Return the one audit of a log, as if it were a run without a curve."""
    num_verdicts = int((audit.marks != Mark.ABSENT).sum())
    run = {
        "name": audit.title,
        "title": audit.title,
        "rule": str(audit.about.get("rule", "")),
        "attack": "",
        "seed": None,
        "outcome": "log",
        "reason": "",
        "numbers": {},
        "series": None,
        "settings": {
            shortened(key): shortened(value) if isinstance(value, str) else value
            for key, value in audit.about.items()
        },
        "environment": None,
        "audit": _audit_entry(audit, _every(num_verdicts)),
        "labels": None,
        "overview": _overview_entry(audit),
    }
    return {"runs": [run], "settings": {}, "environments": [], "labels": []}


def _overview_entry(audit: Audit) -> dict[str, Any]:
    """Return the outcomes of all clients; of very long logs, sums of several rounds."""
    found = audits.overview(audit)
    every = max(1, -(-len(audit.rounds) // MAX_POINTS))
    starts = np.arange(0, len(audit.rounds), every)
    return {
        "totals": found.totals,
        "num_rounds": len(audit.rounds),
        "every": every,
        "rounds": packed_whole(audit.rounds[starts]),
        "by_round": {
            name: packed_whole(np.add.reduceat(counts, starts) if len(starts) else counts)
            for name, counts in found.by_round.items()
        },
        "reasons": [[shortened(text), count] for text, count in found.reasons[:MAX_LISTED]],
        "num_reasons": len(found.reasons),
    }


def _outcome(result: Result) -> dict[str, Any]:
    unfinished = f"{len(result.series)} of {plural(result.status.num_rounds, 'round')}"
    return {
        "name": result.name,
        "title": f"{result.rule} against {result.attack}",
        "rule": result.rule,
        "attack": result.attack,
        "seed": result.seed,
        "outcome": result.status.outcome,
        "reason": result.status.reason or ("" if result.is_over else unfinished),
        "numbers": {**asdict(result.summary), "seconds": round(result.seconds, 1)},
    }


def _every(num_verdicts: int) -> int:
    """Return of how many rounds one is kept in the page."""
    return max(1, -(-num_verdicts // MAX_VERDICTS))


def _label_counts(result: Result) -> bytes | None:
    """Return how many samples of each class a client owns; None: unfinished, or damaged."""
    if result.folder is None:
        return None
    try:
        counts = read_label_counts(result.folder.path / AUDIT_NAME)
    except (OSError, DamagedFileError):
        return None  # The check of the run has named it.
    num_classes = counts.shape[1]
    return msgspec.json.encode({"num_classes": num_classes, "counts": packed_whole(counts)})


def _audit_entry(audit: Audit, every: int) -> dict[str, Any]:
    """Pack an audit; counts are of all rounds, the matrix has one of every so many rounds."""
    records = audits.client_summaries(audit)
    found = audits.detection(audit, records)
    texts: dict[str, int] = {"": 0}
    are_numbered = list(audit.clients) == [str(k) for k in range(len(audit.clients))]
    names = [shortened(each) for each in audit.clients]
    return {
        "clients": len(names) if are_numbered else names,
        "every": every,
        "matrix": _matrix(audit, every),
        "records": _records(records, texts),
        "detection": None if found is None else asdict(found),
        "findings": [shortened(each, MAX_FINDING) for each in audits.findings(audit, records)],
        "byzantine": None if audit.is_byzantine is None else packed_whole(audit.is_byzantine),
        "reasons": _reasons(audit.reasons, every, texts),
        "texts": list(texts),
    }


def shortened(text: str, most: int = MAX_TEXT) -> str:
    r"""Return a text without what would turn or hide the words around it; its beginning if long.

    >>> len(shortened("x" * 10_000)), shortened("a\u202eb")
    (300, 'a\\u202eb')
    """
    text = text if len(text) <= most else f"{text[: most - 1]}…"
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def _matrix(audit: Audit, every: int) -> dict[str, Packed]:
    """Pack round by round: the clients asked, their marks, scores and ranks."""
    ranks, _ = audits.within_round_ranks(audit)
    marks, scores, ranks = audit.marks[::every], audit.scores[::every], ranks[::every]
    rows, columns = np.nonzero(marks)
    found = ranks[rows, columns]
    codes = np.where(np.isnan(found), NO_RANK, np.rint(np.nan_to_num(found) * RANK_SCALE))
    return {
        "rounds": packed_whole(audit.rounds[::every]),
        "counts": packed_whole(np.bincount(rows, minlength=len(marks))),
        "clients": packed_whole(columns),
        "marks": packed_whole(marks[rows, columns]),
        "scores": packed_measured(scores[rows, columns]),
        "ranks": packed_whole(codes),
    }


def _records(records: Sequence[ClientSummary], texts: dict[str, int]) -> dict[str, Any]:
    """Pack the clients in the order of their suspicion."""

    def column(name: str, unknown: float = np.nan) -> NDArray[np.float64]:
        values = [getattr(each, name) for each in records]
        return np.array([unknown if value is None else value for value in values], dtype=float)

    reasons = [_once(shortened(each.reason), texts) for each in records]
    measured = [name for name in ("norm", "cosine", "distance") if not np.isnan(column(name)).all()]
    return {
        "num": len(records),
        "last_seen": packed_whole(column("last_seen", unknown=0)),
        "reason": packed_whole(np.array(reasons)),
        **{name: packed_measured(column(name)) for name in measured},
        **{name: pack(column(name)) for name, pack in RECORD.items()},
        "faults": {
            name: packed_whole(np.array([each.faults[name] for each in records]))
            for name in audits.FAULTS
            if any(each.faults[name] for each in records)
        },
    }


def _reasons(
    reasons: Mapping[tuple[int, int], str], every: int, texts: dict[str, int]
) -> list[list[int]]:
    """Return row, client and index of the text of the last verdicts that have one."""
    kept = [place for place in sorted(reasons) if place[0] % every == 0][-MAX_REASONS:]
    return [
        [row // every, column, _once(shortened(reasons[row, column]), texts)]
        for row, column in kept
    ]


def _once(thing: Thing, found: dict[Thing, int]) -> int:
    """Return the index of a thing among those that are kept once, added if it is new."""
    return found.setdefault(thing, len(found))


def packed_whole(values: NDArray[Any]) -> Packed:
    """Pack whole numbers from zero on, with as few bytes each as the largest needs.

    >>> packed_whole(np.array([0, 255]))
    {'bytes': 1, 'data': 'AP8='}
    """
    largest = int(values.max()) if values.size else 0
    num_bytes = 1 if largest < 1 << 8 else 2 if largest < 1 << 16 else 4
    return {"bytes": num_bytes, "data": _text(values.astype(f"<u{num_bytes}"))}


def packed_counts(values: NDArray[Any]) -> Packed:
    """Pack whole numbers; NaN and numbers below zero stand for unknown."""
    known = np.nan_to_num(values.astype(float), nan=-1.0)
    return {"kind": "count", **packed_whole(np.maximum(known, -1) + 1)}


def packed_shares(values: NDArray[np.float64]) -> Packed:
    """Pack numbers between 0 and 1 to four digits; NaN stays NaN."""
    codes = np.full(values.shape, SHARE_UNKNOWN, dtype="<u2")
    known = ~np.isnan(values)
    codes[known] = np.rint(np.clip(values[known], 0, 1) * SHARE_SCALE)
    return {"kind": "share", "bytes": 2, "data": _text(codes)}


def packed_measured(values: NDArray[np.float64]) -> Packed:
    """Pack measured numbers of any size: evenly in their logarithm, or as they are if some are < 0.

    Over all of float32's range the error is below 0.2 %, over six powers of ten below 0.02 %.
    """
    finite = np.isfinite(values)
    is_log = not bool((values[finite] < 0).any())
    usable = finite & (values > 0) if is_log else finite
    scaled = np.log(values[usable]) if is_log else values[usable]
    low, high = (float(scaled.min()), float(scaled.max())) if scaled.size else (0.0, 0.0)
    codes = np.full(values.shape, UNKNOWN, dtype="<u2")
    codes[np.isinf(values)] = INFINITE
    codes[finite] = 0
    # Halved, because the range of two finite numbers may not be finite.
    width = high / 2 - low / 2
    parts = (scaled / 2 - low / 2) / width if width > 0 else np.zeros_like(scaled)
    codes[usable] = FIRST + np.rint(parts * (LAST - FIRST))
    kind = "log" if is_log else "linear"
    return {"kind": kind, "low": low, "high": high, "bytes": 2, "data": _text(codes)}


def _text(values: NDArray[Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode("ascii")


SERIES: dict[str, Callable[[NDArray[Any]], Packed]] = {
    "round": packed_whole,
    "accuracy": packed_shares,
    **dict.fromkeys(("loss", "deviation", "honest_norm"), packed_measured),
    **dict.fromkeys(("num_sampled", "num_byzantine"), packed_whole),
    **dict.fromkeys(("num_kept", "num_kept_byzantine"), packed_counts),
}
OF_THEORY = ("gradient_norm", "gradient_deviation", "deviation_bound")
RECORD: dict[str, Callable[[NDArray[Any]], Packed]] = {
    **dict.fromkeys(("suspicion", "error", "drop_rate"), packed_shares),
    **dict.fromkeys(("index", "num_sampled", "num_received", "num_rejected"), packed_whole),
    **dict.fromkeys(("num_norm_outliers", "num_cosine_outliers"), packed_whole),
    **dict.fromkeys(("num_dropped", "longest_streak"), packed_counts),
}
