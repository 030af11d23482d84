"""Executes a plan for `run`, `bench` and `demo`: signals, workers, the table at the end."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import reduce
from importlib import import_module
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, final

import click

from outvote.cli.output import FC, print_json, print_text
from outvote.cli.progress import progress_option, shown_progress
from outvote.cli.table import print_tables
from outvote.cli.verb import typed_command, usage_errors
from outvote.errors import plural, warn_notes
from outvote.experiment.stop_signal import StopSignal

if TYPE_CHECKING:
    import torch

    from outvote.experiment.plan import Plan, RunEnd
    from outvote.experiment.progress import ProgressKind
    from outvote.experiment.scheduler import ProcessPool
    from outvote.results.round import Round
    from outvote.suites.suite import Suite

OVER = ("finished", "diverged")

allow_code_option = click.option(
    "--allow-code",
    is_flag=True,
    envvar="OUTVOTE_ALLOW_CODE",
    show_envvar=True,
    help="Execute the Python files that the settings name (path.py:name).",
)
EXECUTION = (
    click.option(
        "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override a setting."
    ),
    click.option("--device", default="auto", help="auto, cpu, cuda or cuda:1."),
    click.option(
        "--output",
        "-o",
        type=click.Path(path_type=Path, file_okay=False),
        default=Path("runs"),
        help="The store: results go to its folder of the suite's name.",
    ),
    click.option(
        "--checkpoint-every",
        type=click.FloatRange(min=0),
        default=60.0,
        help="Seconds between two checkpoints; 0: after every round.",
    ),
    progress_option,
)
"""The options of a verb that executes runs."""
SWEEP = (
    *EXECUTION,
    click.option("--seeds", "num_seeds", type=click.IntRange(min=1), help="So many seeds, from 0."),
    click.option(
        "--dry-run", is_flag=True, help="Count the runs and estimate the time; run nothing."
    ),
    click.option(
        "-j", "num_processes", type=click.IntRange(min=1), help="Processes on this machine."
    ),
    click.option(
        "--no-weights",
        is_flag=True,
        help="Do not keep the final weights of finished runs; tables do not need them.",
    ),
    allow_code_option,
)
"""The options of a verb whose runs are the user's."""


def with_options(options: Sequence[Callable[[FC], FC]]) -> Callable[[FC], FC]:
    """Return the decorator that adds some options to a command, in their order."""
    return lambda command: reduce(lambda found, option: option(found), reversed(options), command)


def consent(
    allow_code: bool, texts: Iterable[str], folder: Path = Path()
) -> AbstractContextManager[None]:
    """Allow the code that the user named on the command line, and all code with --allow-code.

    Settings may be those of others: reading them executes nothing. What is named is looked for in
    the working directory, then in a folder.
    """
    if allow_code:
        return nullcontext()
    from outvote.loading import only_code_of
    from outvote.results.labels import user_files

    named = [Path(path) for text in texts for path in user_files(text)]
    return only_code_of(path if path.is_file() else folder / path for path in named)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """How to execute a plan: no result depends on it, but for the device in the last bits."""

    output: Path
    device: str = "auto"
    checkpoint_every: float = 60.0
    max_stacked: int | None = None
    no_weights: bool = False
    adopts: bool = False
    max_minutes: float | None = None
    num_processes: int | None = None
    """None: this one alone."""
    dask: str | None = None
    """The address of a scheduler."""
    progress: "ProgressKind" = "auto"


def run_plan(plan: "Plan", how: Execution) -> "Outcomes":
    """Execute all runs, with progress bars; a signal or the end of the time saves and stops."""
    from outvote.experiment.runner import Runner
    from outvote.experiment.scheduler import execute_on

    device = find_device(how.device)
    until = float("inf") if how.max_minutes is None else monotonic() + 60 * how.max_minutes
    check_data(plan)
    warn_notes(plan.notes)
    with (
        shown_progress(how.progress) as listener,
        StopSignal(listener.describe_stop) as stop,
        _workers(how) as workers,
    ):
        runner = Runner(
            output=how.output,
            device=device,
            checkpoint_every=how.checkpoint_every,
            listener=listener,
            should_stop=lambda: stop() or monotonic() >= until,
            max_stacked=how.max_stacked,
            keep_weights=not how.no_weights,
            adopts=how.adopts,
        )
        with usage_errors(ValueError):
            runner.check(plan)
        ends = execute_on(workers, runner, plan) if workers else runner.execute(plan)
    return Outcomes(ends, stop.exit_code, is_time_up=monotonic() >= until)


def check_data(plan: "Plan") -> None:
    """Refuse to start if a dataset is missing."""
    from outvote.data.faults import MissingDataError
    from outvote.data.loader import find_entry, is_own_dataset, locate

    names = dict.fromkeys(spec.data.name for spec in plan.specs)
    with usage_errors(MissingDataError):
        for name in names:
            if not is_own_dataset(name):
                locate(find_entry(name))


def find_device(name: str, *, must_be_here: bool = True) -> "torch.device":
    """Return a device; "auto" is a GPU if there is one."""
    from outvote.experiment.environment import choose_device

    with usage_errors(ValueError):
        return choose_device(name, must_be_here=must_be_here)


def threads_each(num_processes: int) -> int:
    """Return how many threads each of so many processes has."""
    from outvote.ops.process import num_cores

    return max(1, num_cores() // num_processes)


def _workers(how: Execution) -> AbstractContextManager["ProcessPool | None"]:
    """Start processes, or connect to those of Dask; None: this process alone."""
    if how.dask is not None:
        return _dask(how.dask, how.device)
    return nullcontext() if how.num_processes is None else _processes(how.num_processes)


@contextmanager
def _processes(number: int) -> Iterator["ProcessPool"]:
    from outvote.experiment.processes import Processes
    from outvote.experiment.scheduler import ProcessPool

    pool = Processes(number)
    try:
        yield ProcessPool(executor=pool, number=number, num_threads=threads_each(number))
    except BaseException:
        pool.kill()
        raise
    pool.shutdown()


@contextmanager
def _dask(address: str, device: str) -> Iterator["ProcessPool"]:
    from outvote.experiment.scheduler import ProcessPool

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
        yield ProcessPool(executor=client.get_executor(pure=False), number=number, device=device)


class Outcomes:
    """The outcomes of all runs: the table at the end, and how to resume."""

    def __init__(
        self, ends: Sequence["RunEnd"], signal_code: int, *, is_time_up: bool = False
    ) -> None:
        """Read the results of runs that are over or half done; of a damaged one there are none."""
        from outvote.results.check import check_run
        from outvote.results.series import series_of, summary_of

        def rounds(end: "RunEnd") -> "list[Round]":
            found = check_run(end.job.folder)
            return found.rounds if found.is_usable else []

        self.ends, self.signal_code, self.is_time_up = ends, signal_code, is_time_up
        self.summaries = [
            summary_of(series_of(rounds(end)), attack=end.job.spec.attack) for end in ends
        ]

    @property
    def exit_code(self) -> int:
        """0, 1 if a run failed or is not over, or 128 + the signal that stopped it.

        Runs that are left because the time is up are no failure.
        """
        bad = ("failed", "busy") if self.is_time_up else ("failed", "busy", "interrupted")
        return self.signal_code or int(any(end.outcome in bad for end in self.ends))

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

    def print(
        self, as_json: bool, folder: Path, suite: "Suite | None" = None, source: str = ""
    ) -> None:
        """Print the tables of the runs that are over, as `outvote table` does, and how to resume.

        `suite` is that of the runs, if they have one, and `source` what it was read from.
        """
        over = [end.job.folder.path for end in self.ends if end.outcome in OVER]
        if as_json:
            print_json(self.as_json())
        else:
            if over:
                print_tables(over, suite, source)
            what = plural(len(self.ends), "run")
            print_text(f"{len(over)} of {what} are over. Results: {folder}")
        self.print_how_to_resume()

    def print_how_to_resume(self) -> None:
        """Print the command to resume with, if some runs are not over."""
        command = typed_command()
        busy = [end for end in self.ends if end.outcome == "busy"]
        if busy:
            click.echo(
                f"another process works on {len(busy)} of {plural(len(self.ends), 'run')}, such as "
                f"{busy[0].job.name}; when it has ended: {command}",
                err=True,
            )
        if self.signal_code:
            click.echo(f"stopped and saved; to resume: {command}", err=True)
        elif self.is_time_up and any(end.outcome == "interrupted" for end in self.ends):
            num_over = sum(end.outcome in OVER for end in self.ends)
            click.echo(
                f"time is up, {num_over} of {plural(len(self.ends), 'run')} done, the rest is "
                f"saved; to resume: {command}",
                err=True,
            )
