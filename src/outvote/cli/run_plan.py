"""Executes a plan for `run`, `bench` and `demo`: signals, workers, the table at the end."""

import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import TYPE_CHECKING, Any, final

import click

from outvote.cli.output import Column, percent, print_json, print_table
from outvote.cli.progress import shown_progress
from outvote.cli.verb import usage_errors

if TYPE_CHECKING:
    import torch

    from outvote.experiment.plan import Plan, RunEnd
    from outvote.experiment.scheduler import Workers

SIGNALS = (signal.SIGINT, signal.SIGTERM)
NUMBERS = {
    "best": "best",
    "final": "final",
    "last_ten": "last 10",
    "kept_byzantine": "Byzantine selection rate",
}
"""The numbers of a run that are printed, and their titles."""
NUMBERS_NOTE = (
    "Accuracies in percent; Byzantine selection rate: the percentage of the sampled Byzantine "
    "clients that the rule kept."
)
OVER = ("finished", "diverged")

device_option = click.option(
    "--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:1."
)
checkpoint_option = click.option(
    "--checkpoint-every",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    help="Seconds between two checkpoints; 0: after every round.",
)
set_option = click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override a setting."
)
output_option = click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("runs"),
    show_default=True,
    help="The store: results go to its folder of the suite's name.",
)
weights_option = click.option(
    "--no-weights",
    is_flag=True,
    help="Do not keep the final weights of finished runs; tables do not need them.",
)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """How to execute a plan: no result depends on it, but for the device in the last bits."""

    output: Path
    device: str = "auto"
    checkpoint_every: float = 60.0
    max_stacked: int | None = None
    keep_weights: bool = True
    adopts: bool = False
    max_minutes: float | None = None
    num_processes: int | None = None
    """None: this one alone."""
    dask: str | None = None
    """The address of a scheduler."""


def run_plan(plan: "Plan", how: Execution) -> "Outcomes":
    """Execute all runs, with progress bars; a signal or the end of the time saves and stops."""
    from outvote.experiment.runner import Runner
    from outvote.experiment.scheduler import execute_on

    device = find_device(how.device)
    until = float("inf") if how.max_minutes is None else monotonic() + 60 * how.max_minutes
    check_data(plan)
    with stop_signals() as stop, shown_progress() as listener, _workers(how) as workers:
        runner = Runner(
            output=how.output,
            device=device,
            checkpoint_every=how.checkpoint_every,
            listener=listener,
            should_stop=lambda: stop() or monotonic() >= until,
            max_stacked=how.max_stacked,
            keep_weights=how.keep_weights,
            adopts=how.adopts,
        )
        with usage_errors(ValueError):
            runner.check(plan)
        ends = execute_on(workers, runner, plan) if workers else runner.execute(plan)
    is_time_up = monotonic() >= until
    return Outcomes(ends, stop.exit_code if stop() else 0, is_time_up=is_time_up)


def check_data(plan: "Plan") -> None:
    """Refuse to start if a dataset is missing."""
    from outvote.data.dataset import MissingDataError
    from outvote.data.loader import find_entry, locate

    for name in dict.fromkeys(spec.data.name for spec in plan.specs):
        with usage_errors(MissingDataError):
            locate(find_entry(name))


def find_device(name: str, *, must_be_here: bool = True) -> "torch.device":
    """Return a device; "auto" is a GPU if there is one."""
    from outvote.experiment.environment import choose_device

    with usage_errors(ValueError):
        return choose_device(name, must_be_here=must_be_here)


def threads_each(num_processes: int) -> int:
    """Return how many threads each of so many processes has."""
    from outvote.experiment.environment import num_cores

    return max(1, num_cores() // num_processes)


class StopSignal:
    """Ctrl-C and SIGTERM: the first asks to save and stop, the second ends at once."""

    def __init__(self) -> None:
        """Start without a signal."""
        self.number = 0

    def __call__(self) -> bool:
        """Return whether to stop."""
        return self.number != 0

    @property
    def exit_code(self) -> int:
        """The code that a shell reports for the signal."""
        return 128 + self.number

    def receive(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        del frame
        if self.number:
            raise KeyboardInterrupt
        self.number = number


@contextmanager
def stop_signals() -> Iterator[StopSignal]:
    """Handle the signals, and restore the handlers."""
    stop = StopSignal()
    before = {number: signal.signal(number, stop.receive) for number in SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _workers(how: Execution) -> Iterator["Workers | None"]:
    """Start processes, or connect to those of Dask; None: this process alone."""
    if how.dask is not None:
        with _dask(how.dask, how.device) as workers:
            yield workers
    elif how.num_processes is not None:
        with _processes(how.num_processes) as workers:
            yield workers
    else:
        yield None


@contextmanager
def _processes(number: int) -> Iterator["Workers"]:
    from outvote.experiment.processes import Processes
    from outvote.experiment.scheduler import Workers

    pool = Processes(number)
    try:
        yield Workers(executor=pool, number=number, num_threads=threads_each(number))
    except BaseException:
        pool.kill()
        raise
    pool.shutdown()


@contextmanager
def _dask(address: str, device: str) -> Iterator["Workers"]:
    from outvote.experiment.scheduler import Workers

    try:
        library: Any = import_module("distributed")
    except ImportError as error:
        raise click.UsageError("--dask needs Dask: pip install 'outvote[dask]'.") from error
    try:
        client = library.Client(address, timeout="10s")
    except (OSError, ValueError, TimeoutError) as error:
        raise click.UsageError(
            f"--dask: no scheduler answers at {address!r} ({type(error).__name__}); check the "
            "address, as in tcp://127.0.0.1:8786."
        ) from error
    with client:
        number = max(1, sum(client.nthreads().values()))
        yield Workers(executor=client.get_executor(pure=False), number=number, device=device)


class Outcomes:
    """The outcomes of all runs: the table at the end, and how to resume."""

    def __init__(
        self, ends: Sequence["RunEnd"], signal_code: int, *, is_time_up: bool = False
    ) -> None:
        """Read the results of runs that are over or half done."""
        from outvote.results.series import series_of, summary_of

        self.ends, self.signal_code, self.is_time_up = ends, signal_code, is_time_up
        self.summaries = [
            summary_of(series_of(end.job.folder.rounds()), attack=end.job.spec.attack)
            for end in ends
        ]

    @property
    def exit_code(self) -> int:
        """0, 1 if a run failed or is not over, or 128 + the signal that stopped it.

        Runs that are left because the time is up are no failure.
        """
        bad = ("failed", "busy") if self.is_time_up else ("failed", "busy", "interrupted")
        is_bad = any(end.outcome in bad for end in self.ends)
        return self.signal_code or int(is_bad)

    @property
    def num_over(self) -> int:
        """How many runs are finished or diverged."""
        return sum(end.outcome in OVER for end in self.ends)

    def as_json(self) -> list[dict[str, Any]]:
        """Return one entry per run."""
        return [
            {
                "rule": end.job.spec.rule,
                "attack": end.job.spec.attack,
                "seed": end.job.spec.seed,
                "outcome": end.outcome,
                "reason": end.reason,
                "folder": str(end.job.folder.path),
                **asdict(summary),
            }
            for end, summary in zip(self.ends, self.summaries, strict=True)
        ]

    def print(self, as_json: bool) -> None:
        """Print one row per run, with the settings that differ between them."""
        if as_json:
            print_json(self.as_json())
            return
        flats = [_flat(end.job.spec) for end in self.ends]
        keys = ["rule", "attack", *_differing(flats)]
        columns = [Column(key) for key in keys]
        columns += [Column(title, is_number=True) for title in NUMBERS.values()]
        rows = [
            [*(str(flat[key]) for key in keys), *(percent(getattr(s, name)) for name in NUMBERS)]
            for flat, s in zip(flats, self.summaries, strict=True)
        ]
        if any(end.outcome != "finished" for end in self.ends):
            columns.append(Column("outcome"))
            for row, end in zip(rows, self.ends, strict=True):
                row.append("" if end.outcome == "finished" else end.outcome)
        print_table(columns, rows)
        click.echo(NUMBERS_NOTE)

    def print_how_to_resume(self) -> None:
        """Print the command to resume with, if some runs are not over."""
        command = shlex.join(["outvote", *sys.argv[1:]])
        busy = [end for end in self.ends if end.outcome == "busy"]
        if busy:
            click.echo(
                f"another process works on {len(busy)} of the {len(self.ends)} runs, such as "
                f"{busy[0].job.name}; when it has ended: {command}",
                err=True,
            )
        if self.signal_code:
            click.echo(f"stopped and saved; to resume: {command}", err=True)
        elif self.is_time_up and any(end.outcome == "interrupted" for end in self.ends):
            click.echo(
                f"time is up, {self.num_over} of {len(self.ends)} runs are over, the others are "
                f"saved; to resume: {command}",
                err=True,
            )


def _flat(spec: Any) -> dict[str, Any]:
    import msgspec

    from outvote.grids import flat

    return flat(msgspec.to_builtins(spec))


def _differing(flats: Sequence[dict[str, Any]]) -> list[str]:
    keys = [key for key in flats[0] if key not in ("rule", "attack")]
    return [key for key in keys if len({str(flat[key]) for flat in flats}) > 1]
