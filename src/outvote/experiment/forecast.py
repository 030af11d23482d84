"""A suite before it runs: how many runs there are and are done, and how long the rest takes."""

import warnings
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal, final

from outvote.errors import OutvoteWarning
from outvote.experiment.adopting import find_elsewhere
from outvote.experiment.plan import (
    Job,
    Plan,
    join_plans,
    plan_parts,
    read_plan,
    stack_key,
    table_cells,
)
from outvote.results.disk import StoreError
from outvote.results.folder import RunFolder, find_runs
from outvote.results.schema import OVER
from outvote.suites.suite import Part, Suite

Standing = Literal["finished", "half_done", "adoptable", "to_do"]
STANDINGS: tuple[Standing, ...] = ("finished", "half_done", "adoptable", "to_do")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How many runs there are, by their state; each counts once."""

    runs: int
    finished: int
    half_done: int
    adoptable: int
    """Finished in another suite of the store: they will be copied."""
    to_do: int


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PartForecast:
    """One part: its cells and its runs."""

    name: str
    title: str
    rules: list[str]
    columns: str
    values: list[Any]
    seeds: list[int]
    counts: Counts


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """A suite before it is executed."""

    parts: list[PartForecast]
    counts: Counts
    """Of all parts; runs that several of them have count once."""
    seconds: float | None
    """How long the runs with an estimate will take; None: no run has one."""
    num_unknown: int
    """Runs to do that no finished run in the store is like."""


def forecast(suite: Suite, root: Path, device: str, num_cores: int) -> Forecast:
    """Read a store, and execute nothing; on a CPU, time is shared by `num_cores` (a GPU: 1)."""
    plans = plan_parts(suite)
    plan = join_plans(suite, plans)
    jobs = plan.jobs(root)
    standing = {job.hash: _standing(job) for job in jobs}
    seconds, num_unknown = _estimate(jobs, standing, known_speeds(root, device, jobs), num_cores)
    return Forecast(
        parts=[_part(part, own, standing) for part, own in zip(suite.parts, plans, strict=True)],
        counts=_counts(plan.hashes, standing),
        seconds=seconds,
        num_unknown=num_unknown,
    )


def known_speeds(root: Path, device: str, jobs: Iterable[Job]) -> dict[Hashable, float]:
    """Return the seconds per round of runs of the same kind as some jobs, by `stack_key`.

    They are those of a run alone on one core, or on the GPU of that name.
    """
    wanted = {stack_key(job.spec) for job in jobs}
    found: dict[Hashable, list[float]] = {}
    for folder in find_runs(root) if root.is_dir() else ():
        try:
            key = _kind(folder, device)
            seconds = _seconds_per_round(folder, device) if key in wanted else None
        except (StoreError, ValueError, TypeError):
            continue  # Damaged, or of a rule whose file is gone.
        if seconds is not None:
            found.setdefault(key, []).append(seconds)
    return {key: median(each) for key, each in found.items()}


def _kind(folder: RunFolder, device: str) -> Hashable:
    """Return the `stack_key` of a run; None if it is not over, or ran on another device."""
    status, environment = folder.status(), folder.environment()
    if status is None or status.outcome not in OVER or environment is None:
        return None
    if environment.device != device:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OutvoteWarning)  # A store of 0.1 has the old names.
        (spec,) = read_plan(folder.path / "config.toml").specs
    return stack_key(spec)


def _seconds_per_round(folder: RunFolder, device: str) -> float | None:
    environment = folder.environment()
    rounds, timings = folder.rounds(), folder.timings()
    num_timed = sum(each.images for each in timings)
    if environment is None or not rounds or not num_timed:
        return None
    seconds = sum(each.seconds for each in timings) / num_timed
    num_samples = sum(each.num_samples or 0 for each in rounds) / len(rounds)
    return seconds * num_samples * (environment.num_threads if device == "cpu" else 1)


def _estimate(
    jobs: Sequence[Job],
    standing: dict[str, Standing],
    speeds: dict[Hashable, float],
    num_cores: int,
) -> tuple[float | None, int]:
    seconds, num_known, num_unknown = 0.0, 0, 0
    for job in jobs:
        if standing[job.hash] in ("finished", "adoptable"):
            continue
        speed = speeds.get(stack_key(job.spec))
        if speed is None:
            num_unknown += 1
            continue
        num_known += 1
        status, _ = job.folder.known_status()
        left = job.spec.rounds - (0 if status is None else status.round)
        seconds += left * speed / num_cores
    return (seconds if num_known else None), num_unknown


def _standing(job: Job) -> Standing:
    status, _ = job.folder.known_status()
    if status is not None and status.outcome in OVER:
        return "finished"
    if find_elsewhere(job) is not None:
        return "adoptable"
    return "half_done" if status is not None and status.round > 0 else "to_do"


def _part(part: Part, plan: Plan, standing: dict[str, Standing]) -> PartForecast:
    cells = table_cells(part, plan).values()
    return PartForecast(
        name=part.name,
        title=part.title,
        rules=list(dict.fromkeys(row for row, _ in cells)),
        columns=part.columns,
        values=list(dict.fromkeys(column for _, column in cells)),
        seeds=part.seeds,
        counts=_counts(plan.hashes, standing),
    )


def _counts(hashes: Sequence[str], standing: dict[str, Standing]) -> Counts:
    each = {name: sum(standing[one] == name for one in hashes) for name in STANDINGS}
    return Counts(runs=len(hashes), **each)
