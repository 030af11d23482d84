"""`outvote bench SUITE`: play the paper's tables and figures, or a suite of one's own."""

import shlex
import sys
from typing import TYPE_CHECKING, Any

import click

from outvote.cli.run import (
    checkpoint_option,
    device_option,
    output_option,
    set_option,
    weights_option,
)
from outvote.cli.verb import Verb, WorkFailed

if TYPE_CHECKING:
    from outvote.cli.simulate import How
    from outvote.suites.suite import Suite

PRECISIONS = ("float32", "tf32", "bfloat16")


@click.command("bench", cls=Verb)
@click.argument("suite")
@click.option(
    "--rule", "rules", multiple=True, help="Only this rule, by name or full text; or a new row."
)
@click.option("--attack", "attacks", multiple=True, help="Only this attack; or a new column.")
@click.option("--part", "parts", multiple=True, help="Only this part of the suite.")
@click.option("--seeds", type=click.IntRange(min=1), help="So many seeds, from 0 on.")
@set_option
@device_option
@click.option("--precision", type=click.Choice(PRECISIONS), help="Short for --set precision=...")
@output_option
@click.option(
    "--dry-run", is_flag=True, help="Count runs, say what is done, estimate; play nothing."
)
@click.option("-j", "num_processes", type=click.IntRange(min=1), help="Processes on this machine.")
@click.option("--dask", metavar="ADDRESS", help="Play on the workers of a Dask scheduler.")
@click.option(
    "--max-minutes",
    type=click.FloatRange(min=0, min_open=True),
    help="Then finish the round, save and end with exit code 0.",
)
@click.option(
    "--max-stacked",
    type=click.IntRange(min=1),
    help="The most runs played side by side.  [default: as many as memory allows]",
)
@checkpoint_option
@weights_option
def command(suite: str, dry_run: bool, as_json: bool, **options: Any) -> int:
    """Play a suite: `outvote list suites` names them, or give a path.toml of your own.

    What is finished is not played again, also if another suite of the store has it; what is half
    done goes on. Ctrl-C and SIGTERM finish the round, save, and end with exit code 130 or 143.

    \b
    outvote bench table1-cifar10 --dry-run
    outvote bench smoke -j 2
    outvote bench table1-cifar10 --attack lie --rule median --rule mine.py:MyRule --seeds 2
    """  # noqa: D301  (click wants the backspace)
    chosen, how = _chosen(suite, options), _how(options)
    if dry_run:
        return _foretell(chosen, how, as_json)
    return _play(chosen, how, as_json)


def _chosen(name: str, options: dict[str, Any]) -> "Suite":
    from outvote.experiment.choosing import Choice, choose
    from outvote.suites.suite import read_suite

    precision = options["precision"]
    extra = () if precision is None else (f"precision={precision}",)
    choice = Choice(
        settings=(*options["settings"], *extra),
        parts=options["parts"],
        rules=options["rules"],
        attacks=options["attacks"],
        num_seeds=options["seeds"],
    )
    try:
        return choose(read_suite(name), choice)
    except (ValueError, TypeError) as error:
        raise click.UsageError(str(error)) from error


def _how(options: dict[str, Any]) -> "How":
    from outvote.cli.simulate import How

    if options["num_processes"] is not None and options["dask"] is not None:
        raise click.UsageError("-j and --dask exclude each other; give one of them.")
    return How(
        output=options["output"],
        device=options["device"],
        checkpoint_every=options["checkpoint_every"],
        max_stacked=options["max_stacked"],
        keep_weights=not options["no_weights"],
        adopts=True,
        max_minutes=options["max_minutes"],
        num_processes=options["num_processes"],
        dask=options["dask"],
    )


def _foretell(suite: "Suite", how: "How", as_json: bool) -> int:
    from outvote.cli.bench_show import print_forecast
    from outvote.cli.simulate import find_device, threads_each
    from outvote.experiment.environment import device_name
    from outvote.experiment.forecast import forecast
    from outvote.results.faults import StoreError

    device = find_device(how.device, must_be_here=False)
    number = how.num_processes or 1
    num_cores = number * threads_each(number) if device.type == "cpu" else 1
    try:
        found = forecast(suite, how.output, device_name(device), num_cores)
    except (ValueError, TypeError) as error:
        raise click.UsageError(str(error)) from error
    except StoreError as error:
        raise WorkFailed(str(error)) from error
    print_forecast(suite, found, how.output, as_json)
    return 0


def _play(suite: "Suite", how: "How", as_json: bool) -> int:
    from outvote.cli.bench_show import print_cells
    from outvote.cli.simulate import play
    from outvote.experiment.suites import plan_parts, together

    try:
        plans = plan_parts(suite)
    except (ValueError, TypeError) as error:
        raise click.UsageError(str(error)) from error
    done = play(together(suite, plans), how)
    print_cells(suite, plans, done, how.output / suite.name, as_json)
    done.how_to_go_on(shlex.join(["outvote", *sys.argv[1:]]))
    return done.exit_code
