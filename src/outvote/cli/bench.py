"""`outvote bench SUITE`: run the paper's tables and figures, or a suite of your own."""

from typing import TYPE_CHECKING, Any

import click

from outvote.cli.forecast import print_forecast
from outvote.cli.run_plan import SWEEP, Execution, consent, run_plan, with_options
from outvote.cli.verb import Verb, usage_errors

if TYPE_CHECKING:
    from outvote.suites.suite import Suite

PRECISIONS = ("float32", "tf32", "bfloat16")


@click.command("bench", cls=Verb)
@click.argument("suite")
@click.option(
    "--rule", "rules", multiple=True, help="Only this rule, by name or full text; or a new row."
)
@click.option("--attack", "attacks", multiple=True, help="Only this attack; or a new column.")
@click.option("--part", "parts", multiple=True, help="Only this part of the suite.")
@click.option("--precision", type=click.Choice(PRECISIONS), help="Short for --set precision=...")
@click.option("--dask", metavar="ADDRESS", help="Use the workers of a Dask scheduler.")
@click.option(
    "--max-minutes",
    type=click.FloatRange(min=0, min_open=True),
    help="Then finish the round, save and end with exit code 0.",
)
@click.option(
    "--max-stacked",
    type=click.IntRange(min=1),
    help="The most runs trained together.  [default: as many as memory allows]",
)
@with_options(SWEEP)
def command(suite: str, dry_run: bool, allow_code: bool, as_json: bool, **options: Any) -> int:
    """Run a suite: `outvote list suites` names them, or give a path.toml of your own.

    Finished runs are skipped, also those that another suite of the store has; half-done ones
    resume. Ctrl-C and SIGTERM finish the round, save, and end with exit code 130 or 143. Python
    files that a suite names are executed with --allow-code only, or where an option names them.

    \b
    outvote bench table1-cifar10 --dry-run
    outvote bench smoke -j 2
    outvote bench table1-cifar10 --attack lie --rule median --rule mine.py:MyRule --seeds 2
    """  # noqa: D301  (click wants the backspace)
    from outvote.experiment.plan import join_plans, plan_parts

    if options["num_processes"] is not None and options["dask"] is not None:
        raise click.UsageError("-j and --dask exclude each other; give one of them.")
    typed = [text for key in ("rules", "attacks", "settings") for text in options[key]]
    with consent(allow_code, typed):
        chosen = _chosen(suite, options)
        how = Execution(**options, adopts=True)
        if dry_run:
            print_forecast(chosen, how, as_json)
            return 0
        with usage_errors(ValueError, TypeError):
            plans = plan_parts(chosen)
    done = run_plan(join_plans(chosen, plans), how)
    done.print(as_json, how.output / chosen.name, chosen, suite)
    return done.exit_code


def _chosen(name: str, options: dict[str, Any]) -> "Suite":
    """Take the options that choose runs out of all options, and return what they leave."""
    from outvote.experiment.choosing import Choice, choose
    from outvote.suites.suite import read_suite

    precision = options.pop("precision")
    extra = () if precision is None else (f"precision={precision}",)
    choice = Choice(
        settings=(*options.pop("settings"), *extra),
        **{key: options.pop(key) for key in ("parts", "rules", "attacks")},
        num_seeds=options.pop("num_seeds"),
    )
    with usage_errors(ValueError, TypeError):
        return choose(read_suite(name), choice)
