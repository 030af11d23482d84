"""The progress of runs: bars by rich on a terminal and in a notebook, else a line now and then."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

from outvote.errors import duration, plural

if TYPE_CHECKING:
    from rich.progress import Progress
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


ProgressKind = Literal["auto", "bar", "lines", "none"]
KINDS: tuple[ProgressKind, ...] = ("auto", "bar", "lines", "none")
LINES_EVERY = 10.0
"""Seconds between two lines."""
REDRAWN_EVERY = 0.5
"""Seconds between two states of a bar in a notebook."""
SMOOTHING = 0.3
"""The weight of the newest round in the number of samples per second of a bar."""

Write = Callable[[str], None]


def chosen_kind(kind: ProgressKind) -> ProgressKind:
    """Return what "auto" stands for: a bar on a terminal and in a notebook, lines elsewhere."""
    if kind != "auto":
        return kind
    return "bar" if sys.stderr.isatty() or is_notebook() else "lines"


def is_notebook() -> bool:
    """Return whether the program is a notebook's kernel, which shows what is displayed."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return hasattr(shell, "kernel")


class Lines(Listener):
    """Writes a line on all runs after a round, if the last line is ten seconds ago."""

    def __init__(self, write: Write, clock: Callable[[], float] = monotonic) -> None:
        self.write, self.clock = write, clock
        self.begun = self.written = clock()
        self.num_rounds: int | None = None
        self.num_done = self.num_samples = 0
        self.accuracies: tuple[float, ...] = ()

    def on_plan(self, num_rounds: int) -> None:
        """Take the number of rounds over all runs; the time begins to count."""
        self.num_rounds, self.begun = num_rounds, self.clock()
        self.written, self.num_done = self.begun, 0

    def on_round(self, progress: RoundProgress) -> None:
        """Count a round, and write a line if it is time."""
        super().on_round(progress)
        self.num_done += progress.num_runs
        self.num_samples += progress.num_samples
        self.accuracies = progress.accuracies or self.accuracies
        now = self.clock()
        if now - self.written >= LINES_EVERY:
            self.write(self._line(progress, now))
            self.written, self.num_samples = now, 0

    def on_message(self, text: str) -> None:
        """Write a message."""
        self.write(text)

    def _line(self, progress: RoundProgress, now: float) -> str:
        rate = self.num_samples / max(now - self.written, 1e-9)
        parts = [
            f"{plural(progress.num_runs, 'run')}: round {progress.round} of {progress.num_rounds}",
            *([accuracy_text(self.accuracies)] if self.accuracies else []),
            f"{rate:,.0f} samples/s",
        ]
        if self.num_rounds:
            left = (now - self.begun) * (self.num_rounds - self.num_done) / self.num_done
            parts.append(f"{self.num_done:,} of {self.num_rounds:,} rounds of all runs")
            parts.append(f"about {duration(max(left, 0.0))} left")
        return ", ".join(parts)


class RoundBars(Listener):
    """Shows two bars: all rounds of all runs, and the runs that train now."""

    def __init__(self, bars: "Progress") -> None:
        self.bars = bars
        self.all = bars.add_task("all runs", total=None, note="")
        self.now = bars.add_task("now", total=None, note="", visible=False)
        self.rate = 0.0
        self.accuracies: tuple[float, ...] = ()

    def on_plan(self, num_rounds: int) -> None:
        """Show how many rounds there are."""
        self.bars.update(self.all, total=num_rounds)

    def on_round(self, progress: RoundProgress) -> None:
        """Advance by a round."""
        super().on_round(progress)
        rate = progress.num_samples / max(progress.seconds, 1e-9)
        self.rate = rate if not self.rate else self.rate + SMOOTHING * (rate - self.rate)
        self.accuracies = progress.accuracies or self.accuracies
        note = f"{self.rate:,.0f} samples/s"
        if self.accuracies:
            note = f"{accuracy_text(self.accuracies)}, {note}"
        self.bars.update(self.all, advance=progress.num_runs)
        self.bars.update(
            self.now,
            description=f"{plural(progress.num_runs, 'run')}, round",
            completed=progress.round,
            total=progress.num_rounds,
            note=note,
            visible=True,
        )

    def on_message(self, text: str) -> None:
        """Print a line above the bars."""
        self.bars.console.print(text, markup=False)


class NotebookBars(RoundBars):
    """Shows the bars as the output of a cell, which is replaced while the runs go on."""

    def __init__(self) -> None:
        super().__init__(make_bars())
        display: Any = import_module("IPython.display").display
        self.shown = display(self.bars, display_id=True)
        self.drawn = monotonic()

    def on_round(self, progress: RoundProgress) -> None:
        """Advance by a round, and draw the bars again if it is time."""
        super().on_round(progress)
        if monotonic() - self.drawn >= REDRAWN_EVERY:
            self.draw()

    def draw(self) -> None:
        """Draw the bars as they are now."""
        self.shown.update(self.bars)
        self.drawn = monotonic()

    def on_message(self, text: str) -> None:
        """Print a line below the cell."""
        sys.stderr.write(f"{text}\n")


def make_bars(*columns: Any, is_forced: bool = False) -> "Progress":
    """Return bars on stderr; by default with counts, the time left and a note.

    Without a terminal they are drawn only if `is_forced`.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    usual = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), "{task.fields[note]}")
    terminal = True if is_forced else None
    console = Console(
        stderr=True, highlight=False, markup=False, force_terminal=terminal, force_jupyter=False
    )
    return Progress("{task.description}", *(columns or usual), console=console)


@contextmanager
def shown_on_stderr(kind: ProgressKind) -> Iterator[Listener]:
    """Show the progress of runs that a Python program executes; "none": messages neither."""
    if kind == "auto":
        kind = chosen_kind(kind)
    if kind == "none":
        yield Listener()
    elif kind == "lines":
        yield Lines(lambda text: print(text, file=sys.stderr, flush=True))  # noqa: T201
    elif is_notebook():
        bars = NotebookBars()
        try:
            yield bars
        finally:
            bars.draw()
    else:
        with make_bars(is_forced=True) as made:
            yield RoundBars(made)


def accuracy_text(accuracies: tuple[float, ...]) -> str:
    """Return the accuracies of runs that train together.

    >>> accuracy_text((0.5, 0.7)), accuracy_text((0.5,))
    ('accuracy 0.500 to 0.700', 'accuracy 0.500')
    """
    low, high = f"{min(accuracies):.3f}", f"{max(accuracies):.3f}"
    return f"accuracy {low}" if len(accuracies) == 1 else f"accuracy {low} to {high}"
