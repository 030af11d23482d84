"""Progress bars on stderr: of runs and of downloads; only messages if it is not a terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from outvote.cli.output import one_line, print_message
from outvote.cli.verb import is_debug
from outvote.experiment.listener import Listener, RoundProgress
from outvote.markup import clean

if TYPE_CHECKING:
    from rich.progress import Progress

    from outvote.experiment.plan import RunEnd

SMOOTHING = 0.3
"""The weight of the newest round in the number of samples per second."""

OnBytes = Callable[[str, int, int | None], None]
OnMessage = Callable[[str], None]


class Plain(Listener):
    """Prints messages and failed runs on stderr."""

    last: RoundProgress | None = None
    """The last round that was finished."""

    def on_round(self, progress: RoundProgress) -> None:
        """Keep the round."""
        self.last = progress

    def describe_stop(self) -> str:
        """Return what is printed when the program is asked to stop."""
        what = "the round"
        if self.last is not None and self.last.round < self.last.num_rounds:
            what = f"round {self.last.round + 1} of {self.last.num_rounds}"
        return f"finishing {what}, then saving; again to abort"

    def on_end(self, end: "RunEnd") -> None:
        """Print a run that failed."""
        if end.is_new and end.outcome == "failed":
            if is_debug():
                self.print_traceback(end.traceback)
            self.on_message(f"{end.job.name}: {end.outcome}: {end.reason}")

    def on_message(self, text: str) -> None:
        """Print a line."""
        print_message(text)

    def print_traceback(self, text: str) -> None:
        """Print it as it is."""
        click.echo(clean(text), nl=False, err=True)


class Bars(Plain):
    """Shows two bars: all rounds of all runs, and the runs that train now."""

    def __init__(self, bars: "Progress") -> None:
        self.bars = bars
        self.all = bars.add_task("all runs", total=None, note="")
        self.now = bars.add_task("now", total=None, note="", visible=False)
        self.rate = 0.0

    def on_plan(self, num_rounds: int) -> None:
        """Show how many rounds there are."""
        self.bars.update(self.all, total=num_rounds)

    def on_round(self, progress: RoundProgress) -> None:
        """Advance by a round."""
        super().on_round(progress)
        rate = progress.num_samples / max(progress.seconds, 1e-9)
        self.rate = rate if not self.rate else self.rate + SMOOTHING * (rate - self.rate)
        note = f"{self.rate:,.0f} samples/s"
        if progress.accuracies:
            low, high = min(progress.accuracies), max(progress.accuracies)
            note = f"accuracy {low:.3f} to {high:.3f}, {note}"
        self.bars.update(self.all, advance=progress.num_runs)
        self.bars.update(
            self.now,
            description=f"{progress.num_runs} runs, round",
            completed=progress.round,
            total=progress.num_rounds,
            note=note,
            visible=True,
        )

    def on_message(self, text: str) -> None:
        """Print a line above the bars."""
        self.bars.console.print(one_line(text), markup=False)

    def print_traceback(self, text: str) -> None:
        """Print it above the bars."""
        self.bars.console.print(clean(text), markup=False, end="")


@contextmanager
def shown_progress() -> Iterator[Plain]:
    """Show the progress of runs."""
    if not sys.stderr.isatty():
        yield Plain()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), "{task.fields[note]}")
    with _bars(*columns) as bars:
        yield Bars(bars)


@contextmanager
def download_bars() -> Iterator[tuple[OnBytes, OnMessage]]:
    """Show the progress of downloads, and the addresses that are tried."""
    if not sys.stderr.isatty():
        yield (lambda *_: None), (lambda *_: None)
        return
    from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn

    with _bars(BarColumn(), DownloadColumn(), TimeRemainingColumn()) as bars:
        tasks: dict[str, Any] = {}

        def show(name: str, done: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name)
            bars.update(tasks[name], completed=done, total=total)

        yield show, lambda text: bars.console.print(one_line(text))


def _bars(*columns: Any) -> "Progress":
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True, highlight=False, markup=False)
    return Progress("{task.description}", *columns, console=console)
