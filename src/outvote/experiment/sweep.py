"""StackRun after wave until all runs are over: one broken run, or too little memory, stops no other."""

from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

import torch

from outvote.engine.simulation import first_state
from outvote.experiment.capacity import most_locks, most_runs
from outvote.experiment.entry import Entry
from outvote.experiment.environment import describe_environment
from outvote.experiment.job import Ended, Job, told
from outvote.experiment.ordering import Todo, stacks
from outvote.experiment.saving import state_of
from outvote.experiment.spec import Spec
from outvote.experiment.stack_run import StackRun
from outvote.results.faults import BusyError, StoreError
from outvote.results.folder import Writer
from outvote.results.schema import OVER, Status

if TYPE_CHECKING:
    from outvote.experiment.runner import Runner


class Sweep:
    """One call of a runner: it listens to its waves, and tells the runner's listener."""

    def __init__(self, runner: "Runner", ends: dict[str, Ended]) -> None:
        """Take what is over already; the rest is added."""
        self.runner, self.ends = runner, ends
        self.listener, self.builder = runner.listener, runner.builder
        self.planned, self.played = runner.listener.planned, runner.listener.played
        self.said = runner.listener.said
        self.queue: deque[list[Job]] = deque()

    def ended(self, what: Ended) -> None:
        """Remember what became of a run."""
        self.ends[what.job.hash] = what
        self.listener.ended(what)

    def play(self, todo: Sequence[Todo]) -> None:
        """Play wave after wave; then look again at runs that another process worked on."""
        self._play_all(todo)
        self._play_all(self._free_again())
        self._free_again()

    def _play_all(self, todo: Sequence[Todo]) -> None:
        self.queue.extend(stacks(todo))
        while self.queue:
            jobs = self.queue.popleft()
            if self.runner.should_stop():
                self._leave(jobs)
                continue
            limit = self._most(jobs[0].spec)
            if len(jobs) > limit:
                self._put_back([jobs[k : k + limit] for k in range(0, len(jobs), limit)])
                continue
            with ExitStack() as stack:
                self._play(jobs, stack)

    def _put_back(self, parts: Sequence[list[Job]]) -> None:
        self.queue.extendleft(reversed(parts))

    def _free_again(self) -> list[Todo]:
        """Return the busy runs that are not over; the other process may have been ended."""
        found = []
        for job in [end.job for end in self.ends.values() if end.outcome == "busy"]:
            status, _ = job.folder.known_status()
            if status is not None and status.outcome in OVER:
                self.ended(self.runner.over(job, status))
            else:
                found.append((0 if status is None else status.round, job))
        return found

    def _leave(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self.ended(Ended(job=job, outcome="interrupted", reason="not begun, or stopped before"))

    def _play(self, jobs: Sequence[Job], stack: ExitStack) -> None:
        """Play runs that can be stacked; those that cannot be now are put back into the queue."""
        ready = self._ready(jobs, stack)
        if not ready:
            return
        rounds = sorted({entry.round for entry in ready})
        if len(rounds) > 1:
            self._put_back([[e.job for e in ready if e.round == number] for number in rounds])
            return
        self._play_wave(ready)

    def _ready(self, jobs: Sequence[Job], stack: ExitStack) -> list[Entry]:
        """Take hold of the folders, and build the runs; those that cannot be built have failed."""
        found = []
        for job in jobs:
            try:
                writer = job.writer()
            except BusyError as error:
                self.ends[job.hash] = Ended(job=job, outcome="busy", reason=str(error))
                continue
            stack.callback(writer.close)
            status, _ = job.folder.known_status()
            if status is not None and status.outcome in OVER:  # Since the plan was made.
                self.ended(self.runner.over(job, status))
                continue
            try:
                job.check_code()
                run = self.builder.run(job.spec)
            except Exception as error:  # noqa: BLE001  (a rule of one's own may raise anything)
                self._fail(job, writer, error)
                continue
            checkpoint, faults = writer.resume()
            for fault in faults:
                where = "the start" if checkpoint is None else f"round {checkpoint.round}"
                self.said(f"{fault}; {job.name} goes on from {where}.")
            known = None if checkpoint is None else checkpoint.notes.get("data")
            if fault := job.other_data(known, self.builder.datasets.used(job.spec.data)):
                self.ended(Ended(job=job, outcome="failed", reason=fault))
                continue
            found.append(Entry(job, writer, run, checkpoint))
        return found

    def _most(self, spec: Spec) -> int:
        """Return how many runs can be stacked."""
        if self.runner.max_stacked is not None:
            return min(max(1, self.runner.max_stacked), most_locks())
        shop, has_momentum = self.builder, spec.training.client_momentum > 0
        num_kept = shop.num_clients(spec) if has_momentum else 0
        fit = most_runs(shop.network(spec), shop.num_sampled(spec), self.runner.device, num_kept)
        return min(fit, most_locks())

    def _play_wave(self, entries: Sequence[Entry]) -> None:
        wave: StackRun | None = None
        if self.runner.device.type == "cuda":
            torch.cuda.empty_cache()  # What a wave before was too large for.
        try:
            wave = self._stack_run(entries)
            if not wave.play(self, self.runner.should_stop, self.runner.checkpoint_every):
                self._leave([wave.jobs[number] for number in wave.rows])
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001  (one broken run never ends the others)
            self._split(entries, wave, error)

    def _stack_run(self, entries: Sequence[Entry]) -> StackRun:
        spec, runs = entries[0].job.spec, [entry.run for entry in entries]
        stack = self.builder.stack(spec, runs)
        found = [entry.checkpoint for entry in entries if entry.checkpoint is not None]
        if found:
            state = state_of(found, runs, self.runner.device)
        else:
            networks = [self.builder.network(entry.job.spec) for entry in entries]
            state = first_state(networks, self.builder.loaded(spec.data).train)
        data = self.builder.datasets.used(spec.data)
        environment = describe_environment(self.runner.device, spec.precision, data)
        for entry in entries:
            entry.writer.begin(state.round, environment)
            entry.writer.tell(Status(outcome="running", round=state.round, num_rounds=spec.rounds))
        jobs, writers = [entry.job for entry in entries], [entry.writer for entry in entries]
        keep = self.runner.keep_weights
        wave = StackRun(jobs, writers, stack, state, self.builder, keep_weights=keep)
        for number, checkpoint in enumerate(found):
            if checkpoint.notes["outcome"] == "diverged":  # Killed before it could say so.
                wave.end(number, "diverged", self)
        return wave

    def _split(self, entries: Sequence[Entry], wave: StackRun | None, error: Exception) -> None:
        """Play the runs again in halves, from where they stand, until a broken one is alone."""
        going = list(entries) if wave is None else [entries[k] for k in wave.rows]
        if len(going) == 1:
            self._fail(going[0].job, going[0].writer, error)
            return
        if wave is not None:
            self._save(wave)
        if isinstance(error, torch.OutOfMemoryError):
            self.said(f"{len(going)} runs do not fit into memory together; trying half as many.")
        else:
            self.said(f"{told(error)} One of {len(going)} runs is broken; trying them in halves.")
        jobs, half = [entry.job for entry in going], len(going) // 2
        self._put_back([jobs[:half], jobs[half:]])

    def _save(self, wave: StackRun) -> None:
        """Keep what was played since the last checkpoint, if that is possible."""
        try:
            wave.save()
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001  (a memory that cannot be saved is the fault)
            self.said(f"{told(error)} The runs go on from their last checkpoints.")

    def _fail(self, job: Job, writer: Writer, error: Exception) -> None:
        status, _ = job.folder.known_status()
        done = 0 if status is None else status.round
        reason = told(error)
        writer.tell(Status(outcome="failed", round=done, num_rounds=job.spec.rounds, reason=reason))
        self.ended(Ended(job=job, outcome="failed", reason=reason))
