"""How a simulation goes: bars on stderr if somebody is looking, and what must be said anyway."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from outvote.cli.output import one_line

if TYPE_CHECKING:
    from outvote.experiment.job import Ended
    from outvote.experiment.listener import Played

SMOOTHING = 0.3
"""The weight of the newest round in the number of images per second."""


class Plain:
    """Says what must be said, on stderr."""

    def planned(self, num_rounds: int) -> None:
        """Say nothing."""

    def played(self, what: "Played") -> None:
        """Say nothing."""

    def ended(self, what: "Ended") -> None:
        """Tell of runs that failed."""
        if what.is_new and what.outcome == "failed":
            self.said(f"{what.job.name}: {what.outcome}: {what.reason}")

    def said(self, text: str) -> None:
        """Print a line."""
        click.echo(one_line(text), err=True)


class Bars(Plain):
    """Shows two bars: all rounds of all runs, and the runs that are played now."""

    def __init__(self, progress: Any) -> None:
        """Take rich's bars."""
        self.progress = progress
        self.all = progress.add_task("all runs", total=None, told="")
        self.now = progress.add_task("now", total=None, told="", visible=False)
        self.rate = 0.0

    def planned(self, num_rounds: int) -> None:
        """Show how much there is to do."""
        self.progress.update(self.all, total=num_rounds)

    def played(self, what: "Played") -> None:
        """Move on by a round."""
        rate = what.images / max(what.seconds, 1e-9)
        self.rate = rate if not self.rate else self.rate + SMOOTHING * (rate - self.rate)
        told = f"{self.rate:,.0f} images/s"
        if what.accuracies:
            low, high = min(what.accuracies), max(what.accuracies)
            told = f"accuracy {low:.3f} to {high:.3f}, {told}"
        self.progress.update(self.all, advance=what.num_runs)
        self.progress.update(
            self.now,
            description=f"{what.num_runs} runs, round",
            completed=what.round,
            total=what.num_rounds,
            told=told,
            visible=True,
        )

    def said(self, text: str) -> None:
        """Print a line above the bars."""
        self.progress.console.print(one_line(text))


@contextmanager
def shown_progress() -> Iterator[Plain]:
    """Show bars on stderr if that is a terminal."""
    if not sys.stderr.isatty():
        yield Plain()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    console = Console(stderr=True, highlight=False, markup=False)
    with Progress(
        "{task.description}",
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        "{task.fields[told]}",
        console=console,
    ) as progress:
        yield Bars(progress)
