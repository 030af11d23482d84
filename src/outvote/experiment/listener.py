"""Reports on the progress of runs."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:  # The command line listens, and is to start without torch.
    from outvote.experiment.plan import Job, RunEnd
    from outvote.results.round import Round


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RoundProgress:
    """One round of the runs that train together."""

    round: int
    num_rounds: int
    num_runs: int
    accuracies: tuple[float, ...]
    """Of the runs that were evaluated."""
    num_samples: int
    seconds: float


class Listener:
    """Ignores all reports on the progress of runs; subclasses take some."""

    def on_plan(self, num_rounds: int) -> None:
        """Receive the number of rounds to train, over all runs."""

    def on_round(self, progress: RoundProgress) -> None:
        """Receive a round."""

    def on_record(self, job: "Job", record: "Round") -> None:
        """Receive the record of a round of one run."""

    def on_end(self, end: "RunEnd") -> None:
        """Receive the outcome of a run."""

    def on_message(self, text: str) -> None:
        """Receive a warning: a damaged checkpoint, too little memory."""
