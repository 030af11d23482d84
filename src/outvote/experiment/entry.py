"""A run whose folder is held, ready to be played."""

from dataclasses import dataclass
from typing import final

from outvote.engine.run_stack import Run
from outvote.experiment.job import Job
from outvote.results.checkpoint import Checkpoint
from outvote.results.folder import Writer


@final
@dataclass(frozen=True, slots=True)
class Entry:
    """What is played, where it is written, and where it goes on."""

    job: Job
    writer: Writer
    run: Run
    checkpoint: Checkpoint | None

    @property
    def round(self) -> int:
        """The round after which it goes on."""
        return 0 if self.checkpoint is None else self.checkpoint.round
