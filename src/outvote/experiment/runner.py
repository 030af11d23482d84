"""Plays many runs: those that are over are skipped, half-done ones go on, the rest is stacked."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

import torch

from outvote.errors import plural
from outvote.experiment.adopting import adopt, find_elsewhere
from outvote.experiment.build import RunBuilder
from outvote.experiment.job import Ended, Job
from outvote.experiment.listener import Listener, Silent
from outvote.experiment.ordering import Todo
from outvote.experiment.preflight import check_playable
from outvote.experiment.reading import Plan
from outvote.experiment.sweep import Sweep
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
    keep_weights: bool = True
    """Whether the last checkpoint of a run that is over stays."""
    adopts: bool = False
    """Whether runs that another suite of the store has finished are taken over from there."""

    builder: RunBuilder = field(init=False)

    def __post_init__(self) -> None:
        """Make room for what runs share."""
        self.builder = RunBuilder(self.device)

    def check(self, plan: Plan) -> None:
        """Refuse what cannot be played on this device with a ValueError; nothing is written."""
        check_playable(plan.specs, self.builder)

    def play(self, plan: Plan) -> list[Ended]:
        """Play the runs of a plan; return what became of each, in their order."""
        self.check(plan)
        jobs = plan.jobs(self.output)
        ends, todo = self.sort(jobs)
        Sweep(self, ends).play(todo)
        return [ends[job.hash] for job in jobs]

    def sort(self, jobs: Sequence[Job]) -> tuple[dict[str, Ended], list[Todo]]:
        """Tell runs that are over, here or in another suite, from those that are to be played."""
        ends: dict[str, Ended] = {}
        todo, num_adopted = [], 0
        for job in jobs:
            status, fault = job.folder.known_status()
            if fault:
                self.listener.said(
                    f"{fault}; {job.name} goes on from its checkpoint, if it has one."
                )
            if status is None or status.outcome not in OVER:
                adopted = self._adopted(job)
                status, num_adopted = adopted or status, num_adopted + (adopted is not None)
            if status is not None and status.outcome in OVER:
                ends[job.hash] = self.over(job, status)
                self.listener.ended(ends[job.hash])
            else:
                todo.append((0 if status is None else status.round, job))
        if num_adopted:
            what = plural(num_adopted, "run")
            self.listener.said(f"{what} finished in another suite of {self.output}: copied.")
        self.listener.planned(sum(job.spec.rounds - done for done, job in todo))
        return ends, todo

    def over(self, job: Job, status: Status) -> Ended:
        """Return what a run came to, unless that was on other pictures."""
        fault = job.other_data(job.known_data(), self.builder.datasets.used(job.spec.data))
        if fault:
            return Ended(job=job, outcome="failed", reason=fault)
        return Ended(job=job, outcome=status.outcome, reason=status.reason, is_new=False)

    def _adopted(self, job: Job) -> Status | None:
        other = find_elsewhere(job) if self.adopts else None
        return (
            None if other is None else adopt(job, other, self.builder.datasets.used(job.spec.data))
        )
