"""Executes a plan on many processes: those of this machine, or of any executor on any machine.

Jobs are dealt out as units. Each process executes its unit with a `Runner`; between processes
there is only the store, and the lock of each run folder.
"""

import secrets
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from threading import local
from time import monotonic, time
from typing import Any, final

import msgspec
import torch

from outvote.experiment.builder import RunBuilder
from outvote.experiment.environment import choose_device
from outvote.experiment.listener import Listener, RoundProgress, Silent
from outvote.experiment.plan import Job, Plan, RunEnd
from outvote.experiment.processes import ASKED_TO_STOP
from outvote.experiment.run_spec import RunSpec, as_table
from outvote.experiment.runner import Runner, Todo, one_sentence, stacks
from outvote.results.disk import BusyError, StoreError, not_written
from outvote.results.schema import OVER, Outcome, Round, Status

LOOK_EVERY = 0.5
MOST_ATTEMPTS = 2
LONG_AGO = 3600.0
OPTIONS = ("checkpoint_every", "max_stacked", "keep_weights")
_HERE = local()


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """An executor, and the properties of its processes."""

    executor: Executor
    number: int = 1
    """How many units they execute at once; on GPUs runs are shared out among so many."""
    device: str | None = None
    """As each process understands it, such as "auto"; None: that of the runner."""
    num_threads: int | None = None
    """For torch in each process; None: torch's default."""


def execute_on(workers: Workers, runner: Runner, plan: Plan) -> list[RunEnd]:
    """Execute a plan on the processes of an executor; return the outcome of each run, in order.

    All of them must see the store under the same absolute path, and have outvote, the data and the
    user's files of rules and attacks. A process that is killed harms only its own unit, which is
    tried once more. Units that an executor does not accept are left.
    """
    runner.check(plan)
    jobs = plan.jobs(runner.output)
    ends, todo = runner.sort(jobs)
    scheduler = _Scheduler(workers, runner, ends)
    try:
        scheduler.execute(todo)
        # The other process that worked on these may have ended.
        scheduler.execute([(0, end.job) for end in ends.values() if end.outcome == "busy"])
    except BaseException:
        scheduler.stop()  # The file stays: processes that still work must find it.
        raise
    scheduler.stop_file.remove()
    if scheduler.refusal:
        runner.listener.on_message(f"the executor accepted no more work: {scheduler.refusal}")
    if scheduler.store_fault:
        raise StoreError(scheduler.store_fault)
    return [ends[job.hash] for job in jobs]


@final
class StopFile:
    """A file in the store that asks all processes to stop; nothing else reaches any executor's."""

    def __init__(self, store: Path) -> None:
        """Choose a name; remove the old files of killed programs."""
        self.path = store.absolute() / f".stop-{secrets.token_hex(4)}"
        for path in self.path.parent.glob(".stop-*"):
            with suppress(OSError):
                if time() - path.stat().st_mtime > LONG_AGO:
                    path.unlink()

    def put(self) -> None:
        """Ask to stop."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.touch()

    def remove(self) -> None:
        """Remove the file when all processes have stopped."""
        with suppress(OSError):
            self.path.unlink()


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Runs of a suite for one process, as plain data that any executor can send."""

    suite: str
    output: str
    """The store, which all processes must see under this path."""
    hashes: tuple[str, ...]
    tables: tuple[dict[str, Any], ...]
    """The settings of each run."""
    device: str
    options: dict[str, Any]
    """Of the runner: those that are plain data."""
    num_threads: int | None
    """For torch; None: torch's default."""
    stop_file: str
    """When it appears, the round is finished and saved, and no run is started."""
    attempt: int
    """Counted from 1; executors that cache results must not cache a failure."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class UnitResult:
    """The outcomes of the runs of a unit."""

    ends: tuple[tuple[str, str, str, bool], ...]
    """Hash, outcome, reason, whether it is new."""
    messages: tuple[str, ...]
    store_fault: str = ""
    """Why results could not be written; then all processes stop."""


def execute_unit(unit: Unit) -> UnitResult:
    """Execute the runs of a unit in this process."""
    ASKED_TO_STOP.clear()
    stop_file, listener = Path(unit.stop_file), _Messages()
    if stop_file.exists():
        left = tuple((each, "interrupted", "not started", True) for each in unit.hashes)
        return UnitResult(ends=left, messages=())
    if unit.num_threads is not None:
        torch.set_num_threads(unit.num_threads)
    runner = Runner(
        output=Path(unit.output),
        device=choose_device(unit.device),
        listener=listener,
        should_stop=lambda: ASKED_TO_STOP.is_set() or stop_file.exists(),
        **unit.options,
    )
    runner.builder = _shared_builder(runner.device)
    specs = tuple(msgspec.convert(table, RunSpec) for table in unit.tables)
    try:
        ends = runner.execute(Plan(unit.suite, specs, unit.hashes))
    except StoreError as error:
        return UnitResult(ends=(), messages=tuple(listener.messages), store_fault=str(error))
    plain = tuple((end.job.hash, end.outcome, end.reason, end.is_new) for end in ends)
    return UnitResult(ends=plain, messages=tuple(listener.messages))


def _shared_builder(device: torch.device) -> RunBuilder:
    """Return the builder that the units of this thread share: data is loaded once."""
    found: RunBuilder | None = getattr(_HERE, "builder", None)
    if found is None or found.device != device:
        found = _HERE.builder = RunBuilder(device)
    return found


class _Messages(Silent):
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
        self._known = {name: self._size(job) for name, job in self._jobs.items()}
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
        """Return the whole lines behind those that are known."""
        size, known = self._size(job), self._known[job.hash]
        if size <= known:  # Cut back, if it resumes from a checkpoint.
            self._known[job.hash] = size
            return []
        try:
            with (job.folder.path / "metrics.jsonl").open("rb") as file:
                file.seek(known)
                text = file.read(size - known)
        except OSError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._known[job.hash] += len(whole)
        try:
            return [msgspec.json.decode(line, type=Round) for line in whole.splitlines()]
        except msgspec.DecodeError:  # Cut back and longer again since the last look.
            return []

    def _size(self, job: Job) -> int:
        try:
            return (job.folder.path / "metrics.jsonl").stat().st_size
        except OSError:
            return 0


@final
@dataclass(frozen=True, slots=True)
class _Work:
    jobs: Sequence[Job]
    attempt: int


@final
class _Scheduler:
    """Submits units, and collects their results."""

    def __init__(self, workers: Workers, runner: Runner, ends: dict[str, RunEnd]) -> None:
        self.workers, self.runner, self.ends = workers, runner, ends
        self.stop_file = StopFile(runner.output)
        self.is_stopped, self.store_fault, self.refusal = False, "", ""
        self.waiting: dict[Future[UnitResult], _Work] = {}
        self.follower = Follower(runner.listener, ())

    def execute(self, todo: Sequence[Todo]) -> None:
        self.follower = Follower(self.runner.listener, [job for _, job in todo])
        for jobs in self._shared_out(todo):
            self._submit(_Work(jobs, 1))
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
            self.stop_file.put()
        except OSError as error:  # Then they cannot write either, and end by themselves.
            self.store_fault = self.store_fault or not_written(self.stop_file.path, error)

    def _shared_out(self, todo: Sequence[Todo]) -> list[list[Job]]:
        """Return the runs of each unit: stacks on a GPU; on a CPU stacks gain nothing."""
        units = []
        for jobs in stacks(todo):
            is_gpu = self.runner.device.type == "cuda"
            size = ceil(len(jobs) / self.workers.number) if is_gpu else 1
            size = self.runner.max_stacked or size
            units += [jobs[k : k + size] for k in range(0, len(jobs), size)]
        return units

    def _submit(self, work: _Work) -> None:
        unit = Unit(
            suite=work.jobs[0].suite,
            output=str(self.runner.output.absolute()),
            hashes=tuple(job.hash for job in work.jobs),
            tables=tuple(as_table(job.spec) for job in work.jobs),
            device=self.workers.device or str(self.runner.device),
            options={name: getattr(self.runner, name) for name in OPTIONS},
            num_threads=self.workers.num_threads,
            stop_file=str(self.stop_file.path),
            attempt=work.attempt,
        )
        try:
            self.waiting[self.workers.executor.submit(execute_unit, unit)] = work
        except Exception as error:  # noqa: BLE001  (each executor refuses in its own way)
            self.refusal = one_sentence(error)
            self._lose(work, "interrupted", self.refusal)

    def _settle(self, future: Future[UnitResult], work: _Work) -> None:
        can_retry = work.attempt < MOST_ATTEMPTS and not self.is_stopped
        report = self.runner.listener.on_message
        try:
            result = future.result()
        except Exception as error:  # noqa: BLE001  (whatever ends a unit, the others go on)
            why = one_sentence(error)
            if can_retry:
                report(f"{_names(work.jobs)}: {why} Trying once more.")
                self._submit(_Work(work.jobs, work.attempt + 1))
            else:
                self._lose(work, "interrupted" if self.is_stopped else "failed", why)
            return
        for text in result.messages:
            report(text)
        if result.store_fault:
            self.store_fault = result.store_fault
            self.stop()
        left = self._collect(result, work)
        if left and can_retry:
            report(f"{_names(left)}: the process was asked to stop, and saved. Trying once more.")
            self._submit(_Work(left, work.attempt + 1))

    def _collect(self, result: UnitResult, work: _Work) -> list[Job]:
        """Keep the outcomes of the runs; return those whose process alone was stopped."""
        by_hash, left = {job.hash: job for job in work.jobs}, []
        for name, outcome, reason, is_new in result.ends:
            end = RunEnd(job=by_hash[name], outcome=outcome, reason=reason, is_new=is_new)
            self.ends[name] = end
            if outcome == "interrupted" and not self.is_stopped:
                left.append(end.job)
            elif outcome != "busy":
                self._end(end)
        return left

    def _lose(self, work: _Work, outcome: Outcome, reason: str) -> None:
        """Keep the outcomes of runs whose unit returned no result."""
        for job in work.jobs:
            status, _ = job.folder.known_status()
            if status is not None and status.outcome in OVER:
                end = self.runner.known_end(job, status)
            else:
                end = RunEnd(job=job, outcome=outcome, reason=reason)
                if outcome == "failed":
                    _write_failed(job, 0 if status is None else status.round, reason)
            self._end(end)

    def _end(self, end: RunEnd) -> None:
        self.ends[end.job.hash] = end
        self.follower.forget(end.job)
        self.runner.listener.on_end(end)


def _write_failed(job: Job, done: int, reason: str) -> None:
    try:
        writer = job.writer()
    except BusyError:  # The process that has it will write its status.
        return
    rounds = job.spec.rounds
    writer.write_status(Status(outcome="failed", round=done, num_rounds=rounds, reason=reason))
    writer.close()


def _names(jobs: Sequence[Job]) -> str:
    more = f" and {len(jobs) - 1} more" if len(jobs) > 1 else ""
    return f"{jobs[0].name}{more}"
