"""Executes a plan on many processes: those of this machine, or of any executor on any machine.

Jobs are dealt out as units. Each process executes its unit with a `Runner`; between processes
there is only the store, and the lock of each run folder.
"""

import secrets
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from threading import local
from time import monotonic
from typing import Any, final

import torch

from outvote.experiment.builder import RunBuilder
from outvote.experiment.environment import choose_device
from outvote.experiment.plan import Job, Plan, RunEnd
from outvote.experiment.processes import ASKED_TO_STOP
from outvote.experiment.progress import Listener, RoundProgress
from outvote.experiment.runner import Runner, Todo, names, one_sentence, stacks
from outvote.results.disk import BusyError, StoreError, not_written, read_readable, remove_old
from outvote.results.round import Round
from outvote.results.schema import Outcome

LOOK_EVERY = 0.5
MOST_ATTEMPTS = 2
OPTIONS = ("checkpoint_every", "max_stacked", "keep_weights")
_HERE = local()


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessPool:
    """An executor, and the properties of its processes."""

    executor: Executor
    number: int = 1
    """How many units they execute at once; on GPUs runs are shared out among so many."""
    device: str | None = None
    """As each process understands it, such as "auto"; None: that of the runner."""
    num_threads: int | None = None
    """For torch in each process; None: torch's default."""


def execute_on(workers: ProcessPool, runner: Runner, plan: Plan) -> list[RunEnd]:
    """Execute a plan on the processes of an executor; return the outcome of each run, in order.

    All of them must see the store under the same absolute path, and have outvote, the data and the
    user's files of rules and attacks. A process that is killed harms only its own unit, which is
    tried once more. Units that an executor does not accept are left.
    """
    assert runner.output is not None  # Processes share nothing but the store.
    runner.check(plan)
    jobs = plan.jobs(runner.output)
    ends, todo = runner.sort(jobs)
    scheduler = _Scheduler(workers, runner, ends, stop_file(runner.output))
    try:
        scheduler.execute(todo)
        # The other process that worked on these may have ended.
        scheduler.execute([(0, end.job) for end in ends.values() if end.outcome == "busy"])
    except BaseException:
        scheduler.stop()  # The file stays: processes that still work must find it.
        raise
    with suppress(OSError):
        scheduler.stop_file.unlink()
    if scheduler.refusal:
        runner.listener.on_message(f"the executor accepted no more work: {scheduler.refusal}")
    if scheduler.store_fault:
        raise StoreError(scheduler.store_fault)
    return [ends[job.hash] for job in jobs]


def stop_file(store: Path) -> Path:
    """Name a file that asks all processes to stop: only the store reaches those of any executor.

    The old ones of killed programs are removed.
    """
    remove_old(store.glob(".stop-*"))
    return store.absolute() / f".stop-{secrets.token_hex(4)}"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Runs of a suite for one process, as data that any executor can send."""

    jobs: tuple[Job, ...]
    """All processes must see the store under the absolute path that they have."""
    device: str
    options: dict[str, Any]
    """Of the runner: those that are plain data."""
    num_threads: int | None
    """For torch; None: torch's default."""
    stop_file: Path
    """When it appears, the round is finished and saved, and no run is started."""
    attempt: int = 1
    """Executors that cache results must not cache a failure."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class UnitResult:
    """The outcomes of the runs of a unit."""

    ends: Sequence[RunEnd] = ()
    messages: Sequence[str] = ()
    store_fault: str = ""
    """Why results could not be written; then all processes stop."""


def execute_unit(unit: Unit) -> UnitResult:
    """Execute the runs of a unit in this process."""
    ASKED_TO_STOP.clear()
    if unit.stop_file.exists():
        left = [RunEnd(job=job, outcome="interrupted", reason="not started") for job in unit.jobs]
        return UnitResult(ends=left)
    if unit.num_threads is not None:
        torch.set_num_threads(unit.num_threads)
    listener = _Messages()
    runner = Runner(
        output=unit.jobs[0].root,
        device=choose_device(unit.device),
        listener=listener,
        should_stop=lambda: ASKED_TO_STOP.is_set() or unit.stop_file.exists(),
        **unit.options,
    )
    runner.builder = _shared_builder(runner.device)
    specs, hashes = zip(*((job.spec, job.hash) for job in unit.jobs), strict=True)
    try:
        ends = runner.execute(Plan(unit.jobs[0].suite, specs, hashes))
    except StoreError as error:
        return UnitResult(messages=listener.messages, store_fault=str(error))
    return UnitResult(ends=ends, messages=listener.messages)


def _shared_builder(device: torch.device) -> RunBuilder:
    """Return the builder that the units of this thread share: data is loaded once."""
    found: RunBuilder | None = getattr(_HERE, "builder", None)
    if found is None or found.device != device:
        found = _HERE.builder = RunBuilder(device)
    return found


class _Messages(Listener):
    """Keeps messages; rounds are read from the store."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def on_message(self, text: str) -> None:
        self.messages.append(text)


@final
class Follower:
    """Reads from the store the rounds that other processes add, for a listener."""

    def __init__(self, listener: Listener, jobs: Iterable[Job]) -> None:
        """Take the present rounds of the runs as known."""
        self.listener = listener
        self._jobs = {job.hash: job for job in jobs}
        self._known = dict.fromkeys(self._jobs, 0)
        for job in self._jobs.values():
            with suppress(OSError):
                self._known[job.hash] = job.folder.metrics.stat().st_size
        self._looked = monotonic()

    def look(self) -> None:
        """Report new rounds."""
        now = monotonic()
        found = [(job, line) for job in self._jobs.values() for line in self._new(job)]
        seconds = (now - self._looked) / max(len(found), 1)
        for job, line in found:
            self.listener.on_round(
                RoundProgress(
                    round=line.round,
                    num_rounds=job.spec.rounds,
                    num_runs=1,
                    accuracies=() if line.accuracy is None else (line.accuracy,),
                    num_samples=line.num_samples or 0,
                    seconds=seconds,
                )
            )
        if found:
            self._looked = now

    def forget(self, job: Job) -> None:
        """Ignore a run that is over."""
        self._jobs.pop(job.hash, None)

    def _new(self, job: Job) -> list[Round]:
        """Return the whole lines behind those that are known; a file may have been cut back."""
        try:
            lines, _, end = read_readable(job.folder.metrics, Round, self._known[job.hash])
        except OSError:
            return []
        self._known[job.hash] = end
        return lines


@final
class _Scheduler:
    """Submits units, and collects their results."""

    def __init__(
        self, workers: ProcessPool, runner: Runner, ends: dict[str, RunEnd], stop: Path
    ) -> None:
        self.workers, self.runner, self.ends = workers, runner, ends
        self.stop_file = stop
        self.is_stopped, self.store_fault, self.refusal = False, "", ""
        self.waiting: dict[Future[UnitResult], Unit] = {}
        self.follower = Follower(runner.listener, ())

    def execute(self, todo: Sequence[Todo]) -> None:
        self.follower = Follower(self.runner.listener, [job for _, job in todo])
        for jobs in self._shared_out(todo):
            self._submit(self._unit(jobs))
        while self.waiting:
            done, _ = wait(self.waiting, LOOK_EVERY, FIRST_COMPLETED)
            self.follower.look()
            if self.runner.should_stop():
                self.stop()
            for future in done:
                self._settle(future, self.waiting.pop(future))

    def stop(self) -> None:
        """Ask all processes to save and stop."""
        if self.is_stopped:
            return
        self.is_stopped = True
        try:
            self.stop_file.parent.mkdir(parents=True, exist_ok=True)
            self.stop_file.touch()
        except OSError as error:  # Then they cannot write either, and end by themselves.
            self.store_fault = self.store_fault or not_written(self.stop_file, error)

    def _shared_out(self, todo: Sequence[Todo]) -> list[list[Job]]:
        """Return the runs of each unit: stacks on a GPU; on a CPU stacks gain nothing."""
        units = []
        for jobs in stacks(todo):
            is_gpu = self.runner.device.type == "cuda"
            size = ceil(len(jobs) / self.workers.number) if is_gpu else 1
            size = self.runner.max_stacked or size
            units += [jobs[k : k + size] for k in range(0, len(jobs), size)]
        return units

    def _unit(self, jobs: Sequence[Job]) -> Unit:
        return Unit(
            jobs=tuple(jobs),
            device=self.workers.device or str(self.runner.device),
            options={name: getattr(self.runner, name) for name in OPTIONS},
            num_threads=self.workers.num_threads,
            stop_file=self.stop_file,
        )

    def _submit(self, unit: Unit) -> None:
        jobs = tuple(replace(job, root=job.root.absolute()) for job in unit.jobs)
        try:
            future = self.workers.executor.submit(execute_unit, replace(unit, jobs=jobs))
        except Exception as error:  # noqa: BLE001  (each executor refuses in its own way)
            self.refusal = one_sentence(error)
            self._lose(unit, "interrupted", self.refusal)
        else:
            self.waiting[future] = unit

    def _settle(self, future: Future[UnitResult], unit: Unit) -> None:
        can_retry = unit.attempt < MOST_ATTEMPTS and not self.is_stopped
        report = self.runner.listener.on_message
        try:
            result = future.result()
        except Exception as error:  # noqa: BLE001  (whatever ends a unit, the others go on)
            why = one_sentence(error)
            if can_retry:
                report(f"{names(unit.jobs)}: {why} Trying once more.")
                self._submit(replace(unit, attempt=unit.attempt + 1))
            else:
                self._lose(unit, "interrupted" if self.is_stopped else "failed", why)
            return
        for text in result.messages:
            if text not in self.runner.reported:
                report(text)
        if result.store_fault:
            self.store_fault = result.store_fault
            self.stop()
        left = self._collect(result, unit)
        if left and can_retry:
            report(f"{names(left)}: the process was asked to stop, and saved. Trying once more.")
            self._submit(replace(unit, jobs=left, attempt=unit.attempt + 1))

    def _collect(self, result: UnitResult, unit: Unit) -> tuple[Job, ...]:
        """Keep the outcomes of the runs; return those whose process alone was stopped."""
        by_hash, left = {job.hash: job for job in unit.jobs}, []
        for each in result.ends:
            end = replace(each, job=by_hash[each.job.hash])
            self.ends[end.job.hash] = end
            if end.outcome == "interrupted" and not self.is_stopped:
                left.append(end.job)
            elif end.outcome != "busy":
                self._end(end)
        return tuple(left)

    def _lose(self, unit: Unit, outcome: Outcome, reason: str) -> None:
        """Keep the outcomes of runs whose unit returned no result."""
        for job in unit.jobs:
            if (status := job.status).is_over:
                end = self.runner.known_end(job, status)
            else:
                end = RunEnd(job=job, outcome=outcome, reason=reason)
                if outcome == "failed":
                    _write_failed(job, reason)
            self._end(end)

    def _end(self, end: RunEnd) -> None:
        self.ends[end.job.hash] = end
        self.follower.forget(end.job)
        self.runner.listener.on_end(end)


def _write_failed(job: Job, reason: str) -> None:
    with suppress(BusyError):  # The process that has it will write its status.
        writer = job.writer()
        job.fail(writer, reason)
        writer.close()
