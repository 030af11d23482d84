"""Plays many runs: those that are over are skipped, half-done ones go on, the rest is stacked."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

import torch

from outvote.experiment.job import Ended, Job
from outvote.experiment.listener import Listener, Silent
from outvote.experiment.reading import Plan
from outvote.experiment.sweep import Sweep
from outvote.results.schema import OVER

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
        Sweep(self, ends).play(todo)
        return [ends[job.spec.hash] for job in jobs]
