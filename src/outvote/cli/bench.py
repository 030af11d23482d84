"""`outvote bench SUITE`: run the paper's tables and figures, or a suite of your own."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from outvote.cli.output import NumberColumn, print_json, print_table
from outvote.cli.progress import progress_option
from outvote.cli.run_plan import (
    OVER,
    Execution,
    allow_code_option,
    checkpoint_option,
    consent,
    device_option,
    find_device,
    output_option,
    run_plan,
    set_option,
    threads_each,
    weights_option,
)
from outvote.cli.verb import Verb, usage_errors
from outvote.errors import plural

if TYPE_CHECKING:
    from outvote.cli.run_plan import Outcomes
    from outvote.experiment.forecast import Counts, Forecast, PartForecast
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
@click.option("--seeds", type=click.IntRange(min=1), help="So many seeds, from 0 on.")
@set_option
@device_option
@click.option("--precision", type=click.Choice(PRECISIONS), help="Short for --set precision=...")
@output_option
@click.option("--dry-run", is_flag=True, help="Count the runs and estimate the time; run nothing.")
@click.option("-j", "num_processes", type=click.IntRange(min=1), help="Processes on this machine.")
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
            _print_forecast(chosen, _forecast(chosen, how), how.output, as_json)
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
        num_seeds=options.pop("seeds"),
    )
    with usage_errors(ValueError, TypeError):
        return choose(read_suite(name), choice)


def _forecast(suite: "Suite", how: Execution) -> "Forecast":
    from outvote.experiment.environment import device_name
    from outvote.experiment.forecast import forecast

    device = find_device(how.device, must_be_here=False)
    number = how.num_processes or 1
    num_cores = number * threads_each(number) if device.type == "cpu" else 1
    with usage_errors(ValueError, TypeError):
        return forecast(suite, how.output, device_name(device), num_cores)


def _print_forecast(suite: "Suite", found: "Forecast", store: Path, as_json: bool) -> None:
    estimate = _estimate(found, store)
    if as_json:
        about = {"suite": suite.name, "title": suite.title}
        print_json({**about, **asdict(found), "estimate": estimate})
        return
    click.echo(f"{suite.name}: {suite.title}\n")
    for part in found.parts:
        click.echo(f"{part.name}: {_product(part)}")
        click.echo(f"  rules: {', '.join(part.rules)}")
        click.echo(f"  {_columns(part.columns)}: {', '.join(str(each) for each in part.values)}")
        if part.num_groups:
            click.echo(f"  p of gas: {', '.join(f'{each:,}' for each in part.num_groups)}")
        if part.settings:
            click.echo(f"  settings: {'; '.join(map(_setting, part.settings.items()))}")
        click.echo(f"  {_counts(part.counts)}\n")
    click.echo(f"all: {plural(found.counts.runs, 'run')}, {_counts(found.counts)}")
    click.echo(estimate)


def _print_cells(suite: "Suite", plans: Sequence["Plan"], done: "Outcomes", folder: Path) -> None:
    for part, plan in zip(suite.parts, plans, strict=True):
        _print_part(part, plan, done)
    click.echo(
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


def _setting(item: tuple[str, list[Any]]) -> str:
    key, values = item
    return f"{key} = {', '.join('none' if each is None else str(each) for each in values)}"


def _product(part: "PartForecast") -> str:
    """Return "360 runs = 12 rules × 6 attacks × 5 seeds"."""
    factors = (len(part.rules), len(part.values), len(part.seeds))
    values = f"{factors[1]} {_columns(part.columns, factors[1])}"
    text = f"{plural(factors[0], 'rule')} × {values} × {plural(factors[2], 'seed')}"
    is_all = factors[0] * factors[1] * factors[2] == part.counts.runs
    return f"{plural(part.counts.runs, 'run')} {'=' if is_all else 'in'} {text}"


def _columns(name: str, number: int = 2) -> str:
    end = "" if number == 1 else "s"
    return f"attack{end}" if name == "attack" else f"value{end} of {name}"


def _counts(counts: "Counts") -> str:
    return (
        f"{counts.finished} finished, {counts.half_done} half done, {counts.adoptable} adoptable "
        f"from another suite, {counts.to_do} to do"
    )


def _estimate(found: "Forecast", store: Path) -> str:
    if found.counts.half_done + found.counts.to_do == 0:
        return "nothing is left to run."
    if found.seconds is None:
        return f"no estimate: no run like these is in {store}/."
    text = f"about {_duration(found.seconds)} at the speed of the runs in {store}/"
    if found.num_unknown:
        text += f", and {plural(found.num_unknown, 'run')} more that none there is like"
    return f"{text}."


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"
