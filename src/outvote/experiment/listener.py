"""Who wants to hear how it goes."""

from dataclasses import dataclass
from typing import Protocol, final

from outvote.experiment.job import Ended


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One round of the runs that are played together."""

    round: int
    num_rounds: int
    num_runs: int
    accuracies: tuple[float, ...]
    """Of the runs, if they were evaluated."""
    images: int
    seconds: float


class Listener(Protocol):
    """Is told what happens, while it happens."""

    def planned(self, num_rounds: int) -> None:
        """Hear how many rounds there are to play, all runs together."""
        ...

    def played(self, what: Played) -> None:
        """Hear of a round."""
        ...

    def ended(self, what: Ended) -> None:
        """Hear of the end of a run."""
        ...

    def said(self, text: str) -> None:
        """Hear what somebody should know: a damaged checkpoint, too little memory."""
        ...


@final
class Silent:
    """Hears nothing."""

    def planned(self, num_rounds: int) -> None:
        """Do nothing."""

    def played(self, what: Played) -> None:
        """Do nothing."""

    def ended(self, what: Ended) -> None:
        """Do nothing."""

    def said(self, text: str) -> None:
        """Do nothing."""
