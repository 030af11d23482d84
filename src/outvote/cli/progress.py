"""The progress of runs and of downloads on stderr: bars, lines, or messages only."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from outvote.cli.output import one_line, print_message
from outvote.cli.verb import is_debug
from outvote.experiment.listener import Listener, RoundProgress
from outvote.experiment.progress import (
    KINDS,
    Lines,
    NotebookBars,
    ProgressKind,
    RoundBars,
    chosen_kind,
    is_notebook,
    make_bars,
)
from outvote.markup import clean

if TYPE_CHECKING:
    from outvote.experiment.plan import RunEnd

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


class PlainLines(Lines, Plain):
    """Prints a line now and then, and messages and failed runs."""

    def __init__(self) -> None:
        super().__init__(print_message)


class Bars(RoundBars, Plain):
    """Shows bars; messages and failed runs are printed above them."""

    def on_message(self, text: str) -> None:
        """Print a line above the bars."""
        super().on_message(one_line(text))

    def print_traceback(self, text: str) -> None:
        """Print it above the bars."""
        self.bars.console.print(clean(text), markup=False, end="")


class BarsInNotebook(NotebookBars, Plain):
    """Shows bars in a notebook; messages and failed runs are printed."""

    def on_message(self, text: str) -> None:
        """Print a line."""
        print_message(text)


progress_option = click.option(
    "--progress",
    type=click.Choice(KINDS),
    default="auto",
    help="Bars; a line every 10 seconds; or messages only. auto: bars on a terminal, else lines.",
)


@contextmanager
def shown_progress(kind: ProgressKind = "auto") -> Iterator[Plain]:
    """Show the progress of runs."""
    kind = chosen_kind(kind)
    if kind == "none":
        yield Plain()
    elif kind == "lines":
        yield PlainLines()
    elif is_notebook():
        in_cell = BarsInNotebook()
        try:
            yield in_cell
        finally:
            in_cell.draw()
    else:
        with make_bars(is_forced=True) as bars:
            yield Bars(bars)


@contextmanager
def download_bars() -> Iterator[tuple[OnBytes, OnMessage]]:
    """Show the progress of downloads, and the addresses that are tried."""
    if not sys.stderr.isatty():
        yield (lambda *_: None), (lambda *_: None)
        return
    from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn

    with make_bars(BarColumn(), DownloadColumn(), TimeRemainingColumn()) as bars:
        tasks: dict[str, Any] = {}

        def show(name: str, done: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name)
            bars.update(tasks[name], completed=done, total=total)

        yield show, lambda text: bars.console.print(one_line(text))


@contextmanager
def file_bars() -> Iterator[Callable[[str, int, int], None] | None]:
    """Show how far every pass over files is."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, TaskProgressColumn, TimeRemainingColumn

    with make_bars(BarColumn(), TaskProgressColumn(), TimeRemainingColumn()) as bars:
        tasks: dict[str, Any] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what)
            bars.update(tasks[what], completed=done, total=total)

        yield show
