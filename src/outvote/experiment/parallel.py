"""Many processes play one plan: those of this machine, or of any executor on any machine."""

from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass
from math import ceil
from typing import final

from outvote.experiment.following import Follower
from outvote.experiment.job import Ended, Job, told
from outvote.experiment.ordering import Todo, stacks
from outvote.experiment.reading import Plan
from outvote.experiment.runner import Runner
from outvote.experiment.spec import as_table
from outvote.experiment.unit import StopFile, Told, Unit, play_unit
from outvote.results.atomic import not_written
from outvote.results.faults import BusyError, StoreError
from outvote.results.schema import OVER, Outcome, Status

LOOK_EVERY = 0.5
MOST_ATTEMPTS = 2


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """Who plays: an executor, and what is known of its processes."""

    executor: Executor
    number: int = 1
    """How many units they play at once; on GPUs runs are shared out among so many."""
    device: str | None = None
    """As each process understands it, such as "auto"; None: that of the runner."""
    num_threads: int | None = None
    """For torch in each process; None: as many as it takes by itself."""


def play_with(workers: Workers, runner: Runner, plan: Plan) -> list[Ended]:
    """Play a plan on the processes of an executor; return what became of each run, in order.

    All of them must see the store under the same absolute path, and have outvote, the data and the
    files of rules and attacks of one's own. A process that is killed harms only what it worked on,
    which is tried once more. What an executor that was shut down or broke does not take is left.
    """
    runner.check(plan)
    jobs = plan.jobs(runner.output)
    ends, todo = runner.sort(jobs)
    crew = _Scheduler(workers, runner, ends)
    try:
        crew.play(todo)
        # The other process that worked on these may have been ended.
        crew.play([(0, end.job) for end in ends.values() if end.outcome == "busy"])
    except BaseException:
        crew.stop()  # The file stays: whoever is still at work must find it.
        raise
    crew.stop_file.remove()
    if crew.refusal:
        runner.listener.said(f"the executor took no more work: {crew.refusal}")
    if crew.store_fault:
        raise StoreError(crew.store_fault)
    return [ends[job.hash] for job in jobs]


@final
@dataclass(frozen=True, slots=True)
class _Work:
    jobs: Sequence[Job]
    attempt: int


@final
class _Scheduler:
    """Hands out units, and hears what became of them."""

    def __init__(self, workers: Workers, runner: Runner, ends: dict[str, Ended]) -> None:
        self.workers, self.runner, self.ends = workers, runner, ends
        self.stop_file = StopFile(runner.output)
        self.is_stopped, self.store_fault, self.refusal = False, "", ""
        self.waiting: dict[Future[Told], _Work] = {}
        self.follower = Follower(runner.listener, ())

    def play(self, todo: Sequence[Todo]) -> None:
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
        """Tell all processes: those at work save, the others begin nothing."""
        if self.is_stopped:
            return
        self.is_stopped = True
        try:
            self.stop_file.put()
        except OSError as error:  # Then they cannot write either, and end by themselves.
            self.store_fault = self.store_fault or not_written(self.stop_file.path, error)

    def _shared_out(self, todo: Sequence[Todo]) -> list[list[Job]]:
        """Return the runs of each unit: stacks on a GPU; on a CPU nothing is gained by them."""
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
            checkpoint_every=self.runner.checkpoint_every,
            max_stacked=self.runner.max_stacked,
            keep_weights=self.runner.keep_weights,
            num_threads=self.workers.num_threads,
            stop_file=str(self.stop_file.path),
            attempt=work.attempt,
        )
        try:
            self.waiting[self.workers.executor.submit(play_unit, unit)] = work
        except Exception as error:  # noqa: BLE001  (each executor refuses in its own way)
            self.refusal = told(error)
            self._lose(work, "interrupted", self.refusal)

    def _settle(self, future: Future[Told], work: _Work) -> None:
        can_retry = work.attempt < MOST_ATTEMPTS and not self.is_stopped
        try:
            answer = future.result()
        except Exception as error:  # noqa: BLE001  (whatever ends a unit, the others go on)
            if can_retry:
                self.runner.listener.said(f"{_names(work.jobs)}: {told(error)} Trying once more.")
                self._submit(_Work(work.jobs, work.attempt + 1))
            else:
                self._lose(work, "interrupted" if self.is_stopped else "failed", told(error))
            return
        for words in answer.words:
            self.runner.listener.said(words)
        if answer.store_fault:
            self.store_fault = answer.store_fault
            self.stop()
        left = self._heard(answer, work)
        if left and can_retry:
            self.runner.listener.said(
                f"{_names(left)}: the process was asked to stop, and saved. Trying once more."
            )
            self._submit(_Work(left, work.attempt + 1))

    def _heard(self, answer: Told, work: _Work) -> list[Job]:
        """Remember what became of the runs; return those whose process alone was stopped."""
        by_hash, left = {job.hash: job for job in work.jobs}, []
        for name, outcome, reason, is_new in answer.ends:
            end = Ended(job=by_hash[name], outcome=outcome, reason=reason, is_new=is_new)
            self.ends[name] = end
            if outcome == "interrupted" and not self.is_stopped:
                left.append(end.job)
            elif outcome != "busy":
                self._ended(end)
        return left

    def _lose(self, work: _Work, outcome: Outcome, reason: str) -> None:
        """Remember what became of runs that nobody told of."""
        for job in work.jobs:
            status, _ = job.folder.known_status()
            if status is not None and status.outcome in OVER:
                end = self.runner.over(job, status)
            else:
                end = Ended(job=job, outcome=outcome, reason=reason)
                if outcome == "failed":
                    _write_failed(job, 0 if status is None else status.round, reason)
            self._ended(end)

    def _ended(self, end: Ended) -> None:
        self.ends[end.job.hash] = end
        self.follower.forget(end.job)
        self.runner.listener.ended(end)


def _write_failed(job: Job, done: int, reason: str) -> None:
    try:
        writer = job.writer()
    except BusyError:  # Whoever works on it now will tell.
        return
    writer.tell(Status(outcome="failed", round=done, num_rounds=job.spec.rounds, reason=reason))
    writer.close()


def _names(jobs: Sequence[Job]) -> str:
    more = f" and {len(jobs) - 1} more" if len(jobs) > 1 else ""
    return f"{jobs[0].name}{more}"
