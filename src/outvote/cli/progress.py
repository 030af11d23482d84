"""The progress of runs, downloads and files on stderr: bars, lines, or messages only."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, final

import click

from outvote.cli.output import one_line, print_message
from outvote.cli.verb import is_debug
from outvote.experiment.progress import (
    KINDS,
    Listener,
    ProgressKind,
    RoundProgress,
    make_bars,
    shown_on_stderr,
)
from outvote.markup import clean

if TYPE_CHECKING:
    from rich.progress import Progress

    from outvote.experiment.plan import RunEnd

OnBytes = Callable[[str, int, int | None], None]
OnMessage = Callable[[str], None]


@final
class RunListener(Listener):
    """Passes reports on to what shows them, and tells of failed runs; it knows the last round."""

    def __init__(self, shown: Listener | None) -> None:
        """Take what shows the progress; None: nothing does, messages alone are printed."""
        self.shown = shown or Listener()
        self.print_line = print_message if shown is None else shown.on_message
        self.last: RoundProgress | None = None

    def on_plan(self, num_rounds: int) -> None:
        """Pass it on."""
        self.shown.on_plan(num_rounds)

    def on_round(self, progress: RoundProgress) -> None:
        """Keep the round, and pass it on."""
        self.last = progress
        self.shown.on_round(progress)

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
                click.echo(clean(end.traceback), nl=False, err=True)
            self.on_message(f"{end.job.name}: {end.outcome}: {end.reason}")

    def on_message(self, text: str) -> None:
        """Print a line."""
        self.print_line(one_line(text))


progress_option = click.option(
    "--progress",
    type=click.Choice(KINDS),
    default="auto",
    help="Bars; a line every 10 seconds; or messages only. auto: bars on a terminal, else lines.",
)


@contextmanager
def shown_progress(kind: ProgressKind = "auto") -> Iterator[RunListener]:
    """Show the progress of runs."""
    with shown_on_stderr(kind) as shown:
        yield RunListener(None if kind == "none" else shown)


@contextmanager
def download_bars() -> Iterator[tuple[OnBytes, OnMessage]]:
    """Show the progress of downloads, and the addresses that are tried."""
    if not sys.stderr.isatty():
        yield (lambda *_: None), (lambda *_: None)
        return
    from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn

    with make_bars(BarColumn(), DownloadColumn(), TimeRemainingColumn()) as bars:
        yield _bar_for_each(bars), lambda text: bars.console.print(one_line(text))


@contextmanager
def file_bars() -> Iterator[Callable[[str, int, int], None] | None]:
    """Show how far every pass over files is."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, TaskProgressColumn, TimeRemainingColumn

    with make_bars(BarColumn(), TaskProgressColumn(), TimeRemainingColumn()) as bars:
        yield _bar_for_each(bars)


def _bar_for_each(bars: "Progress") -> OnBytes:
    """Return a function that shows a bar for each name that it is called with."""
    tasks: dict[str, Any] = {}

    def show(name: str, done: int, total: int | None) -> None:
        if name not in tasks:
            tasks[name] = bars.add_task(name)
        bars.update(tasks[name], completed=done, total=total)

    return show
