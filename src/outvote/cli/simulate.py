"""What `run`, `bench` and `demo` share: playing a plan, here or by many processes."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, final

import click

from outvote.cli.played import Played
from outvote.cli.progress import shown_progress
from outvote.cli.signals import listening
from outvote.cli.verb import WorkFailed

if TYPE_CHECKING:
    import torch

    from outvote.experiment.parallel import Workers
    from outvote.experiment.reading import Plan


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """How to play: nothing in here changes a result, but the device in the last bits."""

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


def play(plan: "Plan", how: How) -> Played:
    """Play all runs; bars, signals, the time and the disk are looked after."""
    from outvote.experiment.parallel import play_with
    from outvote.experiment.runner import Runner
    from outvote.results.faults import StoreError

    chosen, until = find_device(how.device), _until(how)
    check_data(plan)
    with listening() as asked, shown_progress() as listener, _workers(how) as workers:
        runner = Runner(
            output=how.output,
            device=chosen,
            checkpoint_every=how.checkpoint_every,
            listener=listener,
            should_stop=lambda: asked() or monotonic() >= until,
            max_stacked=how.max_stacked,
            keep_weights=how.keep_weights,
            adopts=how.adopts,
        )
        try:
            runner.check(plan)
        except ValueError as error:
            raise click.UsageError(str(error)) from error
        try:
            ends = play_with(workers, runner, plan) if workers else runner.play(plan)
        except StoreError as error:
            raise WorkFailed(str(error)) from error
    is_time_up = monotonic() >= until
    return Played(ends, asked.exit_code if asked() else 0, is_time_up=is_time_up)


def check_data(plan: "Plan") -> None:
    """Refuse to begin if a dataset is not there."""
    from outvote.data.dataset import MissingDataError
    from outvote.data.loader import find_entry, locate

    for name in dict.fromkeys(spec.data.name for spec in plan.specs):
        try:
            locate(find_entry(name))
        except MissingDataError as error:
            raise click.UsageError(str(error)) from error


def find_device(name: str, *, must_be_here: bool = True) -> "torch.device":
    """Return a device; "auto" is a GPU if there is one."""
    from outvote.experiment.device import choose_device

    try:
        return choose_device(name, must_be_here=must_be_here)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def threads_each(num_processes: int) -> int:
    """Return how many threads each of so many processes has."""
    from outvote.experiment.device import num_cores

    return max(1, num_cores() // num_processes)


def _until(how: How) -> float:
    return float("inf") if how.max_minutes is None else monotonic() + 60 * how.max_minutes


@contextmanager
def _workers(how: How) -> Iterator["Workers | None"]:
    """Start processes, or find those of Dask; None: this process plays."""
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
    from outvote.experiment.parallel import Workers
    from outvote.experiment.processes import Processes

    pool = Processes(number)
    try:
        yield Workers(executor=pool, number=number, num_threads=threads_each(number))
    except BaseException:
        pool.kill()
        raise
    pool.shutdown()


@contextmanager
def _dask(address: str, device: str) -> Iterator["Workers"]:
    from outvote.experiment.parallel import Workers

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
