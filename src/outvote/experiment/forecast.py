"""A suite before it runs: how many runs there are and are done, and how long the rest takes."""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal, final, get_args

import msgspec

from outvote.experiment.adopting import find_elsewhere
from outvote.experiment.plan import (
    Job,
    Plan,
    join_plans,
    make_plan,
    plan_parts,
    stack_key,
    table_cells,
)
from outvote.experiment.run_spec import RunSpec
from outvote.grids import flat
from outvote.loading import find_file, only_code_of
from outvote.results.check import check_run
from outvote.results.disk import StoreError
from outvote.results.folder import RunFolder, find_runs
from outvote.results.labels import parameters, user_files
from outvote.suites.suite import Part, Suite

RunState = Literal["finished", "half_done", "adoptable", "to_do"]


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
    num_groups: list[int]
    """The numbers of groups p of its GAS rules; none if its columns are these."""
    settings: dict[str, list[Any]]
    """The settings that differ between the runs of the suite, and its values of them."""
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
    notes: list[str]
    """What a user may not expect of these runs."""


def forecast(suite: Suite, root: Path, device: str, num_cores: int) -> Forecast:
    """Read a store, and execute nothing; on a CPU, time is shared by `num_cores` (a GPU: 1)."""
    plans = plan_parts(suite)
    parts = list(zip(suite.parts, plans, strict=True))
    return _forecast(parts, join_plans(suite, plans), root, device, num_cores)


def forecast_plan(plan: Plan, root: Path, device: str, num_cores: int) -> Forecast:
    """Return the same for a plan that is no suite: one part, with a column for each attack."""
    settings = {"seed": list(dict.fromkeys(spec.seed for spec in plan.specs))}
    part = Part(
        name=plan.suite, title="", columns="attack", kind="table", settings=settings, wanted=None
    )
    return _forecast([(part, plan)], plan, root, device, num_cores, adopts=False)


def _forecast(
    parts: Sequence[tuple[Part, Plan]],
    plan: Plan,
    root: Path,
    device: str,
    num_cores: int,
    *,
    adopts: bool = True,
) -> Forecast:
    jobs = plan.jobs(root)
    standing = {job.hash: _standing(job, adopts=adopts) for job in jobs}
    seconds, num_unknown = _estimate(jobs, standing, known_speeds(root, device, jobs), num_cores)
    differing = _differing(plan.specs)
    return Forecast(
        parts=[_part(part, own, standing, differing) for part, own in parts],
        counts=_counts(plan.hashes, standing),
        seconds=seconds,
        num_unknown=num_unknown,
        notes=plan.notes,
    )


def known_speeds(root: Path, device: str, jobs: Iterable[Job]) -> dict[Hashable, float]:
    """Return the seconds per round of runs of the same kind as some jobs, by `stack_key`.

    They are those of a run alone on one core, or on the GPU of that name.
    """
    jobs = list(jobs)
    wanted = {stack_key(job.spec) for job in jobs}
    code = _code_of(jobs)
    found: dict[Hashable, list[float]] = {}
    for folder in find_runs(root):
        # Damaged, or of a rule whose file is gone.
        with suppress(StoreError, ValueError, TypeError), only_code_of(code):
            checked = check_run(folder)
            status, environment = checked.status, checked.environment
            if status is None or environment is None or environment.device != device:
                continue
            is_known = status.is_over and checked.is_usable and checked.config is not None
            key = _kind(checked.config or {}) if is_known else None
            if key in wanted and (seconds := _seconds_per_round(folder)) is not None:
                num_threads = environment.num_threads if device == "cpu" else 1
                found.setdefault(key, []).append(seconds * num_threads)
    return {key: median(each) for key, each in found.items()}


def _kind(config: Mapping[str, Any]) -> Hashable:
    (spec,) = make_plan(config).specs
    return stack_key(spec)


def _code_of(jobs: Iterable[Job]) -> set[Path]:
    """Return the files that the jobs themselves need: a store must not choose what is executed."""
    texts = {text for job in jobs for text in job.spec.user_texts}
    return {find_file(path) for text in texts for path in user_files(text)}


def _seconds_per_round(folder: RunFolder) -> float | None:
    rounds, timings = folder.rounds(), folder.timings()
    num_timed = sum(each.images for each in timings)
    if not rounds or not num_timed:
        return None
    seconds = sum(each.seconds for each in timings) / num_timed
    num_samples = sum(each.num_samples or 0 for each in rounds) / len(rounds)
    return seconds * num_samples


def _estimate(
    jobs: Sequence[Job],
    standing: dict[str, RunState],
    speeds: dict[Hashable, float],
    num_cores: int,
) -> tuple[float | None, int]:
    left = [job for job in jobs if standing[job.hash] in ("half_done", "to_do")]
    known = [
        (job.spec.rounds - job.status.round) * speeds[key] / num_cores
        for job in left
        if (key := stack_key(job.spec)) in speeds
    ]
    return (sum(known) if known else None), len(left) - len(known)


def _standing(job: Job, *, adopts: bool) -> RunState:
    status = job.status
    if status.is_over:
        return "finished"
    if status.round > 0:
        return "half_done"
    return "adoptable" if adopts and find_elsewhere(job) is not None else "to_do"


def _differing(specs: Sequence[RunSpec]) -> list[str]:
    """Return the settings in which runs differ, but for rule and seed."""
    tables = [flat(msgspec.to_builtins(spec)) for spec in specs]
    keys = [key for key in (tables[0] if tables else {}) if key not in ("rule", "seed")]
    return [key for key in keys if len({repr(table[key]) for table in tables}) > 1]


def _values(plan: Plan, key: str) -> list[Any]:
    """Return the values of a setting, each once."""
    found = [flat(msgspec.to_builtins(spec))[key] for spec in plan.specs]
    return [value for number, value in enumerate(found) if value not in found[:number]]


def _part(
    part: Part, plan: Plan, standing: dict[str, RunState], differing: Sequence[str]
) -> PartForecast:
    cells = table_cells(part, plan).values()
    found = (parameters(spec.rule).get("num_groups") for spec in plan.specs)
    groups = sorted({each for each in found if each is not None})
    return PartForecast(
        name=part.name,
        title=part.title,
        rules=list(dict.fromkeys(row for row, _ in cells)),
        columns=part.columns,
        values=list(dict.fromkeys(column for _, column in cells)),
        seeds=part.seeds,
        num_groups=[] if part.columns == "rule.num_groups" else groups,
        settings={key: _values(plan, key) for key in differing if key != part.columns},
        counts=_counts(plan.hashes, standing),
    )


def _counts(hashes: Sequence[str], standing: dict[str, RunState]) -> Counts:
    found = Counter(standing[each] for each in hashes)
    return Counts(runs=len(hashes), **{name: found[name] for name in get_args(RunState)})
