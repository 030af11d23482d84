"""`outvote bench SUITE`: run the paper's tables and figures, or a suite of your own."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from outvote.cli.forecast import dry_run_option, print_forecast_of_suite
from outvote.cli.output import NumberColumn, print_json, print_table, print_text
from outvote.cli.progress import progress_option
from outvote.cli.run_plan import (
    OVER,
    Execution,
    allow_code_option,
    checkpoint_option,
    consent,
    device_option,
    output_option,
    processes_option,
    run_plan,
    seeds_option,
    set_option,
    weights_option,
)
from outvote.cli.verb import Verb, usage_errors
from outvote.errors import plural

if TYPE_CHECKING:
    from outvote.cli.run_plan import Outcomes
    from outvote.experiment.plan import Plan
    from outvote.results.series import Summary
    from outvote.suites.suite import Part, Suite

PRECISIONS = ("float32", "tf32", "bfloat16")


class Shown(NamedTuple):
    """A number of a run that a table at the end shows."""

    title: str
    read: "Callable[[Summary], float | None]"
    is_percent: bool = True


BEST = Shown("Best accuracy of all rounds, in percent", lambda summary: summary.best)
SHOWN = {
    "selection": (
        Shown(
            "Honest clients' share of the update, in percent",
            lambda summary: summary.honest_share,
        ),
        BEST,
    ),
    "deviation": (
        Shown(
            "Distance of the update to the honest mean",
            lambda summary: summary.deviation,
            is_percent=False,
        ),
    ),
}
"""What the parts of the paper's figures are there for; all others: the best accuracy."""


@click.command("bench", cls=Verb)
@click.argument("suite")
@click.option(
    "--rule", "rules", multiple=True, help="Only this rule, by name or full text; or a new row."
)
@click.option("--attack", "attacks", multiple=True, help="Only this attack; or a new column.")
@click.option("--part", "parts", multiple=True, help="Only this part of the suite.")
@seeds_option
@set_option
@device_option
@click.option("--precision", type=click.Choice(PRECISIONS), help="Short for --set precision=...")
@output_option
@dry_run_option
@processes_option
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
@checkpoint_option
@weights_option
@progress_option
@allow_code_option
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
            print_forecast_of_suite(chosen, how, as_json)
            return 0
        with usage_errors(ValueError, TypeError):
            plans = plan_parts(chosen)
    done = run_plan(join_plans(chosen, plans), how)
    if as_json:
        print_json(done.as_json())
    else:
        _print_cells(chosen, plans, done, how.output / chosen.name)
    done.print_how_to_resume()
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


def _print_cells(suite: "Suite", plans: Sequence["Plan"], done: "Outcomes", folder: Path) -> None:
    for part, plan in zip(suite.parts, plans, strict=True):
        _print_part(part, plan, done)
    print_text(
        "Means over seeds; accuracies and shares in percent; in brackets how many seeds there are, "
        f"if not all.\n{done.num_over} of {plural(len(done.ends), 'run')} are over. "
        f"Results: {folder}"
    )


def _print_part(part: "Part", plan: "Plan", done: "Outcomes") -> None:
    """Print a table for each quantity that the part is there for."""
    from outvote.experiment.plan import table_cells

    where = table_cells(part, plan)
    names, values = (list(dict.fromkeys(each[k] for each in where.values())) for k in (0, 1))
    columns = ["rule", *(NumberColumn(str(each)) for each in values)]
    for number in SHOWN.get(part.kind, (BEST,)):
        cells: dict[tuple[str, Any], list[float | None]] = {}
        for end, summary in zip(done.ends, done.summaries, strict=True):
            if end.job.hash in where:
                found = cells.setdefault(where[end.job.hash], [])
                found.append(number.read(summary) if end.outcome in OVER else None)
        rows = [
            [row, *(_cell(cells.get((row, each), []), number) for each in values)] for row in names
        ]
        print_table(columns, rows, f"{part.name}: {part.title}\n{number.title}")


def _cell(found: list[float | None], number: "Shown") -> str:
    known = [each for each in found if each is not None]
    if not known:
        return "-"
    mean = sum(known) / len(known)
    text = f"{100 * mean:.1f}" if number.is_percent else f"{mean:.3g}"
    return text if len(known) == len(found) else f"{text} ({len(known)} of {len(found)})"
