"""Executes many runs in one process: finished runs are skipped, half-done ones resumed.

One broken run, or too little memory, stops no other run.
"""

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from traceback import format_exception
from typing import final

import msgspec
import torch

from outvote.engine.run_stack import Run
from outvote.errors import plural
from outvote.experiment.adopting import adopt, find_elsewhere
from outvote.experiment.builder import RunBuilder, most_locks
from outvote.experiment.plan import Job, Plan, RunEnd, stack_key
from outvote.experiment.progress import Listener, RoundProgress
from outvote.experiment.run_spec import RunSpec
from outvote.experiment.stack_run import OpenRun, StackRun, make_audit
from outvote.loading import user_line
from outvote.ops.process import is_out_of_memory, on_gpu
from outvote.results.audit_log import AUDIT_NAME
from outvote.results.check import CheckedRun
from outvote.results.disk import BusyError, StoreError
from outvote.results.folder import CONFIG_NAME, TIMINGS_NAME, Writer
from outvote.results.round import Round
from outvote.results.run import KeptRun
from outvote.results.schema import Status
from outvote.training.gpu_memory import even_size

CHECKPOINT_EVERY = 60.0
DERIVED = (CONFIG_NAME, TIMINGS_NAME, AUDIT_NAME)
"""The files of a run that is over that can be written again without training."""
Todo = tuple[int, Job]
"""The rounds that are done, and the run."""


@final
@dataclass(slots=True, kw_only=True)
class Runner:
    """How runs are executed: no result depends on it, but for the device in the last bits."""

    output: Path | None
    """The store; None: nothing is stored."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    checkpoint_every: float = CHECKPOINT_EVERY
    """Seconds; 0: after every round."""
    listener: Listener = field(default_factory=Listener)
    should_stop: Callable[[], bool] = lambda: False
    """Asked after every round."""
    max_stacked: int | None = None
    """The most runs trained together; None: as many as fit into memory."""
    keep_weights: bool = True
    """Whether the last checkpoint of a finished run stays."""
    adopts: bool = False
    """Whether runs that another suite of the store has finished are copied from there."""

    builder: RunBuilder = field(init=False)
    reported: set[str] = field(init=False, default_factory=set)
    """Messages on damaged runs: the processes that repair them find the same."""

    def __post_init__(self) -> None:
        """Make the builder that runs share."""
        self.builder = RunBuilder(self.device)

    def check(self, plan: Plan) -> None:
        """Refuse what cannot run on this device with a ValueError; nothing is written."""
        self.builder.check(plan.specs)

    def execute(self, plan: Plan) -> list[RunEnd]:
        """Execute the runs of a plan; return the outcome of each, in their order."""
        with on_gpu(self.device):
            self.check(plan)
            jobs = plan.jobs(self.output)
            ends, todo = self.sort(jobs)
            _Sweep(self, ends).execute(todo)
        return [ends[job.hash] for job in jobs]

    def sort(self, jobs: Sequence[Job]) -> tuple[dict[str, RunEnd], list[Todo]]:
        """Return the runs that are over, here or in another suite, and those that are not."""
        ends: dict[str, RunEnd] = {}
        todo, num_adopted, num_rounds = [], 0, 0
        for job in jobs:
            status, damaged = job.checked()
            if damaged is not None:
                text = _damage(job, damaged)
                self.reported.add(text)
                self.listener.on_message(text)
            if self.adopts and not status.is_over and (other := find_elsewhere(job)) is not None:
                used = self.builder.datasets.used(job.spec.data)
                if (adopted := adopt(job, other, used)) is not None:
                    status, num_adopted = adopted, num_adopted + 1
            if status.is_over:
                ends[job.hash] = self.known_end(job, status)
                self.listener.on_end(ends[job.hash])
            else:
                todo.append((status.round, job))
                num_rounds += job.spec.rounds - status.round
        if num_adopted:
            what = plural(num_adopted, "run")
            self.listener.on_message(f"{what} finished in another suite of {self.output}: copied.")
        self.listener.on_plan(num_rounds)
        return ends, todo

    def known_end(self, job: Job, status: Status) -> RunEnd:
        """Return the outcome of a run that is over; it failed if its data has changed."""
        fault = job.data_fault(job.known_data(), self.builder.datasets.used(job.spec.data))
        if fault:
            return RunEnd(job=job, outcome="failed", reason=fault)
        return RunEnd(job=job, outcome=status.outcome, reason=status.reason, is_new=False)

    def most_stacked(self, spec: RunSpec) -> int:
        """Return how many such runs are trained together."""
        fit = self.max_stacked
        return min(self.builder.most_runs(spec) if fit is None else max(1, fit), most_locks())


def _damage(job: Job, found: CheckedRun) -> str:
    """Return the message about a damaged run."""
    what = "; ".join(found.texts())
    return f"{what}; {job.name} is repaired from what is sound, or else runs again."


def stacks(todo: Sequence[Todo]) -> list[list[Job]]:
    """Return the runs in groups that can be stacked; the most work first.

    Dataset by dataset, because only one is on the device at a time.
    """
    by_data: dict[Hashable, dict[Hashable, list[Job]]] = {}
    work: dict[Hashable, int] = {}
    for done, job in todo:
        data, key = job.spec.data.key, (stack_key(job.spec), done)
        by_data.setdefault(data, {}).setdefault(key, []).append(job)
        for each in (data, key):
            work[each] = work.get(each, 0) + job.spec.rounds - done
    found = []
    for name in sorted(by_data, key=work.__getitem__, reverse=True):
        for alike in sorted(by_data[name], key=work.__getitem__, reverse=True):
            found.append(by_data[name][alike])
    return found


def one_sentence(error: Exception) -> str:
    """Return an error as one sentence on one line; it names the line of a user's file."""
    text = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".")
    where = user_line(error)
    return f"{text} ({where})." if where else f"{text}."


def names(jobs: Sequence[Job]) -> str:
    """Return the name of the first run, and how many more there are."""
    more = f" and {len(jobs) - 1} more" if len(jobs) > 1 else ""
    return f"{jobs[0].name}{more}"


class _Sweep(Listener):
    """One call of a runner: it listens to its stacks, and informs the runner's listener."""

    def __init__(self, runner: Runner, ends: dict[str, RunEnd]) -> None:
        self.runner, self.ends, self.builder = runner, ends, runner.builder
        self.listener = runner.listener
        self.queue: deque[list[Job]] = deque()
        self.begun: set[str] = set()
        """The hashes of the runs that this call has trained, or named."""

    def on_round(self, progress: RoundProgress) -> None:
        self.listener.on_round(progress)

    def on_record(self, job: Job, record: Round) -> None:
        self.listener.on_record(job, record)

    def on_message(self, text: str) -> None:
        self.listener.on_message(text)

    def on_end(self, end: RunEnd) -> None:
        self.ends[end.job.hash] = end
        self.listener.on_end(end)

    def execute(self, todo: Sequence[Todo]) -> None:
        """Train stack after stack; then look again at runs that another process worked on."""
        self._execute_all(todo)
        self._execute_all(self._free_again())
        self._free_again()

    def _execute_all(self, todo: Sequence[Todo]) -> None:
        self.queue.extend(stacks(todo))
        while self.queue:
            jobs = self.queue.popleft()
            if self.runner.should_stop():
                self._leave(jobs)
                continue
            limit = self.runner.most_stacked(jobs[0].spec)
            if len(jobs) > limit:
                # Of equal size: a small stack at the end would train each of its runs slower.
                size = even_size(len(jobs), limit)
                self._put_back([jobs[k : k + size] for k in range(0, len(jobs), size)])
                continue
            with ExitStack() as locks:
                self._execute(jobs, locks)

    def _put_back(self, parts: Sequence[list[Job]]) -> None:
        self.queue.extendleft(reversed(parts))

    def _free_again(self) -> list[Todo]:
        """Return the busy runs that are not over; the other process may have ended."""
        found = []
        for end in list(self.ends.values()):
            if end.outcome != "busy":
                continue
            job, status = end.job, end.job.status
            if status.is_over:
                self.on_end(self.runner.known_end(job, status))
            else:
                found.append((status.round, job))
        return found

    def _leave(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            reason = "not started, or stopped before"
            self.on_end(RunEnd(job=job, outcome="interrupted", reason=reason))

    def _execute(self, jobs: Sequence[Job], locks: ExitStack) -> None:
        """Train runs that can be stacked; runs at different rounds return to the queue."""
        by_round: dict[int, list[OpenRun]] = {}
        for job in jobs:
            if (each := self._opened(job, locks)) is not None:
                by_round.setdefault(each.round, []).append(each)
        if len(by_round) > 1:
            self._put_back([[each.job for each in by_round[k]] for k in sorted(by_round)])
        elif by_round:
            self._train(next(iter(by_round.values())))

    def _opened(self, job: Job, locks: ExitStack) -> OpenRun | None:
        """Lock the folder, and build the run; None if it is busy or over, or cannot be built."""
        try:
            writer = job.writer()
        except BusyError as error:
            self.ends[job.hash] = RunEnd(job=job, outcome="busy", reason=str(error))
            return None
        locks.callback(writer.close)
        status, damaged = job.checked()
        if status.is_over:  # Since the plan was made.
            self.on_end(self.runner.known_end(job, status))
            return None
        try:
            job.check_code()
            run = self.builder.run(job.spec)
            if (
                damaged is not None
                and isinstance(writer, Writer)
                and (end := self._repaired(job, writer, run, damaged))
            ):
                self.on_end(end)
                return None
        except StoreError:  # Of a repair: the run is still over.
            raise
        except Exception as error:  # noqa: BLE001  (a user's rule may raise anything)
            self._fail(job, writer, error)
            return None
        checkpoint, faults = writer.resume()
        for fault in faults:
            where = "the start" if checkpoint is None else f"round {checkpoint.round}"
            self.on_message(f"{fault}; {job.name} resumes from {where}.")
            self.begun.add(job.hash)
        known = None if checkpoint is None else checkpoint.notes.get("data")
        if fault := job.data_fault(known, self.builder.datasets.used(job.spec.data)):
            self.on_end(RunEnd(job=job, outcome="failed", reason=fault))
            return None
        return OpenRun(job, writer, run, checkpoint)

    def _repaired(self, job: Job, writer: Writer, run: Run, found: CheckedRun) -> RunEnd | None:
        """Write what follows from sound rounds again; None if something else is damaged."""
        status = found.status
        if status is None or any(fault.file not in DERIVED for fault in found.faults):
            return None
        if job.data_fault(job.known_data(), self.builder.datasets.used(job.spec.data)):
            return None
        audit = make_audit(self.builder, job, run, found.rounds)
        writer.repair(msgspec.structs.replace(status, sums=None), audit)
        return self.runner.known_end(job, job.status)

    def _fail(self, job: Job, writer: Writer | KeptRun, error: Exception) -> None:
        self.on_end(job.fail(writer, one_sentence(error), "".join(format_exception(error))))

    def _name_resumed(self, open_runs: Sequence[OpenRun]) -> None:
        """Report the runs that train on from a checkpoint; a stack that is split is not new."""
        done, total = open_runs[0].round, open_runs[0].job.spec.rounds
        jobs = []
        for each in open_runs:
            if each.job.hash not in self.begun:
                jobs.append(each.job)
                self.begun.add(each.job.hash)
        if jobs and 0 < done < total:
            self.on_message(f"resumes {names(jobs)} after round {done} of {total}")

    def _train(self, open_runs: Sequence[OpenRun]) -> None:
        stack_run: StackRun | None = None
        if self.runner.device.type == "cuda":
            torch.cuda.empty_cache()  # Fragments of a stack that did not fit.
        try:
            stack_run = StackRun(open_runs, self.builder, keep_weights=self.runner.keep_weights)
            self._name_resumed(open_runs)
            stack_run.begin(self)
            every = self.runner.checkpoint_every
            if not stack_run.train(self, self.runner.should_stop, every):
                self._leave([open_runs[number].job for number in stack_run.rows])
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001  (one broken run never ends the others)
            self._split(open_runs, stack_run, error)

    def _split(
        self, open_runs: Sequence[OpenRun], stack_run: StackRun | None, error: Exception
    ) -> None:
        """Retry the runs in halves, from where they stand, until a broken one is alone."""
        going = open_runs if stack_run is None else [open_runs[k] for k in stack_run.rows]
        if len(going) == 1:
            self._fail(going[0].job, going[0].writer, error)
            return
        if stack_run is not None:
            self._save(stack_run)
        if is_out_of_memory(error):
            text = f"{len(going)} runs do not fit into memory together; trying half as many."
        else:
            text = (
                f"{one_sentence(error)} One of these {len(going)} runs causes it; they are trained "
                "in two groups to find it."
            )
        self.on_message(text)
        jobs, half = [each.job for each in going], len(going) // 2
        self._put_back([jobs[:half], jobs[half:]])

    def _save(self, stack_run: StackRun) -> None:
        """Save the rounds since the last checkpoint, if that is possible."""
        try:
            stack_run.save()
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001  (a state that cannot be saved is the fault)
            self.on_message(f"{one_sentence(error)} The runs resume from their last checkpoints.")
