"""Runs as a page holds them: curves and audits packed, settings told once."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, final

import msgspec
import numpy as np
from numpy.typing import NDArray

from outvote.grids import flat
from outvote.report.audit import Audit, audit_run
from outvote.report.html_audit import audit_entry, num_entries, shortened
from outvote.report.packing import packed_measured, packed_shares, packed_whole
from outvote.results.run import Result, Series

MAX_ENTRIES = 700_000
"""So many judgements are about five million characters."""


def run_entries(results: Sequence[Result]) -> dict[str, Any]:
    """Return all runs; what many share is told once."""
    settings = [flat(result.config) for result in results]
    shared = shared_settings(settings)
    environments, labels = Once(), Once()
    every = _every([_rough_entries(result) for result in results])
    runs = []
    for result, own in zip(results, settings, strict=True):
        audit = audit_run(result)
        counts = _label_counts(result)
        known = None if result.environment is None else msgspec.to_builtins(result.environment)
        runs.append(
            {
                **_outcome(result),
                "series": series_entry(result.series),
                "settings": {key: value for key, value in own.items() if key not in shared},
                "environment": None if known is None else environments.place(known),
                "audit": None if audit is None else audit_entry(audit, every),
                "labels": None if counts is None else labels.place(counts),
            }
        )
    return {
        "runs": runs,
        "settings": shared,
        "environments": environments.found,
        "labels": labels.found,
    }


def log_entries(audit: Audit) -> dict[str, Any]:
    """Return the one audit of a log, as if it were a run without a curve."""
    return {
        "runs": [
            {
                "name": audit.title,
                "title": audit.title,
                "rule": str(audit.about.get("rule", "")),
                "attack": "",
                "seed": None,
                "outcome": "log",
                "reason": "",
                "numbers": {},
                "series": None,
                "settings": {shortened(key): _readable(each) for key, each in audit.about.items()},
                "environment": None,
                "audit": audit_entry(audit, _every([num_entries(audit)])),
                "labels": None,
            }
        ],
        "settings": {},
        "environments": [],
        "labels": [],
    }


def _readable(value: Any) -> Any:
    return shortened(value) if isinstance(value, str) else value


def shared_settings(settings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the settings that all runs have alike."""
    first = settings[0] if settings else {}
    return {
        key: value
        for key, value in first.items()
        if all(key in each and each[key] == value for each in settings)
    }


def series_entry(series: Series) -> dict[str, Any]:
    """Pack what is told round by round."""
    return {
        "round": packed_whole(series.round),
        "accuracy": packed_shares(series.accuracy),
        "loss": packed_measured(series.loss),
        "deviation": packed_measured(series.deviation),
        "honest_norm": packed_measured(series.honest_norm),
        "num_sampled": packed_whole(series.num_sampled),
        "num_byzantine": packed_whole(series.num_byzantine),
        "num_kept": packed_whole(series.num_kept),
        "num_kept_byzantine": packed_whole(series.num_kept_byzantine),
    }


@final
class Once:
    """Things that many runs share, each kept once."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.found: list[Any] = []
        self._places: dict[bytes, int] = {}

    def place(self, thing: Any) -> int:
        """Return where a thing is, added if it is new."""
        key = hashlib.sha256(msgspec.json.encode(thing)).digest()
        if key not in self._places:
            self._places[key] = len(self.found)
            self.found.append(thing)
        return self._places[key]


def _outcome(result: Result) -> dict[str, Any]:
    return {
        "name": result.name,
        "title": f"{result.rule} against {result.attack}",
        "rule": result.rule,
        "attack": result.attack,
        "seed": result.seed,
        "outcome": result.status.outcome,
        "reason": result.status.reason
        or ("" if result.is_over else f"{len(result.series)} of {result.status.num_rounds} rounds"),
        "numbers": {**asdict(result.summary), "seconds": round(result.seconds, 1)},
    }


def _rough_entries(result: Result) -> int:
    return 0 if result.folder is None else int(result.series.num_sampled.sum())


def _every(entries: Sequence[int]) -> int:
    return max(1, -(-sum(entries) // MAX_ENTRIES))


def _label_counts(result: Result) -> dict[str, Any] | None:
    """Return how many pictures of each class a client owns; None as long as a run is played."""
    if result.folder is None:
        return None
    try:
        with np.load(result.folder.path / "audit.npz", allow_pickle=False) as arrays:
            counts: NDArray[np.int64] = arrays["label_counts"]
    except (OSError, KeyError, ValueError, EOFError):
        return None
    return {"num_classes": int(counts.shape[1]), "counts": packed_whole(counts)}
