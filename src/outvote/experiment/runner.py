"""Plays many runs: those that are over are skipped, half-done ones go on, the rest is stacked."""

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

import torch

from outvote.engine.simulation import first_state
from outvote.engine.world import Run
from outvote.experiment.build import Workshop
from outvote.experiment.capacity import most_runs
from outvote.experiment.environment import describe_environment
from outvote.experiment.job import Ended, Job, stack_key
from outvote.experiment.listener import Listener, Played, Silent
from outvote.experiment.reading import Plan
from outvote.experiment.saving import state_of
from outvote.experiment.wave import Wave
from outvote.results.checkpoint import Checkpoint
from outvote.results.faults import BusyError, StoreError
from outvote.results.folder import Writer
from outvote.results.schema import OVER, Status

CHECKPOINT_EVERY = 60.0


@final
@dataclass(slots=True, kw_only=True)
class Runner:
    """How runs are played: nothing in here changes a result, but the device in the last bits."""

    output: Path
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    checkpoint_every: float = CHECKPOINT_EVERY
    """Seconds; 0: after every round."""
    listener: Listener = field(default_factory=Silent)
    should_stop: Callable[[], bool] = lambda: False
    """Asked after every round."""
    max_stacked: int | None = None
    """The most runs played together; None: as many as there is memory for."""

    def play(self, plan: Plan) -> list[Ended]:
        """Play the runs of a plan; return what became of each, in their order."""
        jobs = [Job(spec, plan.suite, self.output) for spec in plan.specs]
        ends: dict[str, Ended] = {}
        todo = []
        for job in jobs:
            status = job.folder.status()
            if status is not None and status.outcome in OVER:
                ends[job.spec.hash] = Ended(
                    job=job, outcome=status.outcome, reason=status.reason, is_new=False
                )
                self.listener.ended(ends[job.spec.hash])
            else:
                todo.append((0 if status is None else status.round, job))
        self.listener.planned(sum(job.spec.rounds - done for done, job in todo))
        _Sweep(self, ends).play(todo)
        return [ends[job.spec.hash] for job in jobs]


class _Sweep:
    """One call of a runner."""

    def __init__(self, runner: Runner, ends: dict[str, Ended]) -> None:
        self.runner, self.ends = runner, ends
        self.listener = runner.listener
        self.workshop = Workshop(runner.device)
        self.queue: deque[list[Job]] = deque()

    def ended(self, what: Ended) -> None:
        self.ends[what.job.spec.hash] = what
        self.listener.ended(what)

    def planned(self, num_rounds: int) -> None:
        self.listener.planned(num_rounds)

    def played(self, what: Played) -> None:
        self.listener.played(what)

    def said(self, text: str) -> None:
        self.listener.said(text)

    def play(self, todo: Sequence[tuple[int, Job]]) -> None:
        """Play wave after wave."""
        groups: dict[Hashable, list[Job]] = {}
        for done, job in todo:
            groups.setdefault((stack_key(job.spec), done), []).append(job)
        self.queue.extend(groups.values())
        while self.queue:
            jobs = self.queue.popleft()
            if self.runner.should_stop():
                self._leave(jobs)
                continue
            with ExitStack() as stack:
                self._play(jobs, stack)
        self._look_again()

    def _look_again(self) -> None:
        """Runs that another process worked on may be over by now."""
        for name, end in list(self.ends.items()):
            status = end.job.folder.status() if end.outcome == "busy" else None
            if status is not None and status.outcome in OVER:
                self.ends[name] = Ended(
                    job=end.job, outcome=status.outcome, reason=status.reason, is_new=False
                )

    def _leave(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self.ended(Ended(job=job, outcome="interrupted", reason="not begun, or stopped before"))

    def _play(self, jobs: Sequence[Job], stack: ExitStack) -> None:
        """Play runs that can be stacked; those that cannot be now are put back into the queue."""
        ready = self._ready(jobs, stack)
        if not ready:
            return
        limit = self._most(ready[0])
        rounds = sorted({entry.round for entry in ready})
        if len(rounds) > 1 or len(ready) > limit:
            for number in rounds:
                some = [entry.job for entry in ready if entry.round == number]
                self.queue.extend(some[k : k + limit] for k in range(0, len(some), limit))
            return
        self._play_wave(ready)

    def _ready(self, jobs: Sequence[Job], stack: ExitStack) -> list["_Entry"]:
        """Take hold of the folders, and build the runs; those that cannot be built have failed."""
        found = []
        for job in jobs:
            try:
                writer = job.writer()
            except BusyError as error:
                self.ended(Ended(job=job, outcome="busy", reason=str(error)))
                continue
            stack.callback(writer.close)
            try:
                run = self.workshop.run(job.spec)
            except (ValueError, TypeError, OSError) as error:
                self._fail(job, writer, error)
                continue
            checkpoint, faults = writer.resume()
            for fault in faults:
                where = "the start" if checkpoint is None else f"round {checkpoint.round}"
                self.said(f"{fault}; {job.spec.name} goes on from {where}.")
            found.append(_Entry(job, writer, run, checkpoint))
        return found

    def _most(self, entry: "_Entry") -> int:
        spec = entry.job.spec
        if self.runner.max_stacked is not None:
            return max(1, self.runner.max_stacked)
        return most_runs(self.workshop.network(spec), entry.run.num_sampled, self.runner.device)

    def _play_wave(self, entries: Sequence["_Entry"]) -> None:
        wave: Wave | None = None
        try:
            wave = self._wave(entries)
            if not wave.play(self, self.runner.should_stop, self.runner.checkpoint_every):
                self._leave([wave.jobs[number] for number in wave.rows])
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001  (one broken run never ends the others)
            self._split(entries, wave, error)

    def _wave(self, entries: Sequence["_Entry"]) -> Wave:
        spec, runs = entries[0].job.spec, [entry.run for entry in entries]
        world = self.workshop.world(spec, runs)
        found = [entry.checkpoint for entry in entries if entry.checkpoint is not None]
        if found:
            state = state_of(found, runs, self.runner.device)
        else:
            networks = [self.workshop.network(entry.job.spec) for entry in entries]
            state = first_state(networks, self.workshop.loaded(spec.data.name).train)
        environment = describe_environment(self.runner.device, spec.precision)
        for entry in entries:
            entry.writer.begin(state.round, environment)
            entry.writer.tell(Status(outcome="running", round=state.round, num_rounds=spec.rounds))
        jobs, writers = [entry.job for entry in entries], [entry.writer for entry in entries]
        wave = Wave(jobs, writers, world, state, self.workshop)
        for number, checkpoint in enumerate(found):
            if checkpoint.notes["outcome"] == "diverged":  # Killed before it could say so.
                wave.end(number, "diverged", self)
        return wave

    def _split(self, entries: Sequence["_Entry"], wave: Wave | None, error: Exception) -> None:
        """Play the runs again in halves, from where they stand, until a broken one is alone."""
        going = list(entries) if wave is None else [entries[k] for k in wave.rows]
        if len(going) == 1:
            self._fail(going[0].job, going[0].writer, error)
            return
        if wave is not None:
            wave.save()
        del wave
        if isinstance(error, torch.OutOfMemoryError):
            torch.cuda.empty_cache()
            self.said(f"{len(going)} runs do not fit into memory together; trying half as many.")
        else:
            self.said(f"{_told(error)} One of {len(going)} runs is broken; trying them in halves.")
        half = len(going) // 2
        self.queue.appendleft([entry.job for entry in going[half:]])
        self.queue.appendleft([entry.job for entry in going[:half]])

    def _fail(self, job: Job, writer: Writer, error: Exception) -> None:
        status = job.folder.status()
        done = 0 if status is None else status.round
        reason = _told(error)
        writer.tell(Status(outcome="failed", round=done, num_rounds=job.spec.rounds, reason=reason))
        self.ended(Ended(job=job, outcome="failed", reason=reason))


@dataclass(frozen=True, slots=True)
class _Entry:
    """A job whose folder is held, ready to be played."""

    job: Job
    writer: Writer
    run: Run
    checkpoint: Checkpoint | None

    @property
    def round(self) -> int:
        return 0 if self.checkpoint is None else self.checkpoint.round


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(".") + "."
