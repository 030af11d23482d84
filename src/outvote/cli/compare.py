"""`outvote compare A B`: paired differences between two sets of runs."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outvote.cli.output import (
    FC,
    NumberColumn,
    file_option,
    json_text,
    print_table,
    print_text,
    write_or_print,
)
from outvote.cli.runs import read_runs
from outvote.cli.table import METRIC, METRICS
from outvote.cli.verb import Verb, typed_command, usage_errors

if TYPE_CHECKING:
    from outvote.report.compare import Comparison
    from outvote.report.runs import Runs

WORDS = ("rule", "attack", "seed", "suite", "outcome")
"""What `Runs.select` takes by name; everything else is a setting."""


def _select_option(side: str) -> Callable[[FC], FC]:
    return click.option(
        f"--{side}",
        f"select_{side}",
        metavar="KEY=VALUE",
        multiple=True,
        help=f"Only these runs of {side.upper()}, as in rule='gas(median)' or data.beta=0.5; the "
        "same key again: one of the values.",
    )


@click.command("compare", cls=Verb)
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path), required=False)
@_select_option("a")
@_select_option("b")
@click.option(
    "--metric",
    type=METRIC,
    help="As in `outvote table`.  [default: best; the test loss where there is no accuracy]",
)
@click.option(
    "--format",
    "format_",
    type=click.Choice(("text", "md", "json")),
    default="text",
    help="A table for the terminal, Markdown, or JSON.",
)
@click.option(
    "--report",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write the HTML report of all runs, with the comparison in it.",
)
@file_option("The file to write, Markdown or JSON; default: print.")
def command(  # noqa: PLR0913, PLR0917  (one for each option)
    a: Path,
    b: Path | None,
    select_a: tuple[str, ...],
    select_b: tuple[str, ...],
    metric: str | None,
    format_: str,
    report: Path | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Compare two sets of runs seed by seed: B minus A, with 95 % bootstrap intervals.

    A and B are folders of runs, or exports; without B, both are chosen from A. What they differ in
    is found: the settings without a value in common. Pairs have all other settings and the seed
    in common; runs without a partner are named.

    \b
    outvote compare runs/before runs/after
    outvote compare runs/mine --a rule=median --b 'rule=gas(median)'
    outvote compare old.csv.gz runs/new --metric last-ten --format md -o compared.md
    """  # noqa: D301  (click wants the backspace)
    from outvote.report.compare import compare

    if b is None and not (select_a and select_b):
        raise click.UsageError(
            "there is nothing to compare with; give B, or choose two sets of runs by --a and --b."
        )
    with usage_errors(ValueError):
        ours, theirs = _chosen(a, select_a), _chosen(b or a, select_b)
        found = compare(ours, theirs, metric=METRICS[metric] if metric else None)
    chosen = "json" if as_json else format_
    if output is not None and chosen == "text":
        chosen = "json" if output.suffix == ".json" else "md"
    _show(found, chosen, output)
    if report is not None:
        found.report(report, command=typed_command())
        click.echo(f"Report: {report}", err=True)


def _chosen(path: Path, conditions: tuple[str, ...]) -> "Runs":
    from outvote.report.runs import Runs
    from outvote.text import read_value

    wanted: dict[str, list[Any]] = {}
    for each in conditions:
        key, found, value = each.partition("=")
        if not found or not key or not value:
            raise click.UsageError(f"a choice is KEY=VALUE, as in rule=median, got {each!r}.")
        is_text = key in WORDS and key != "seed"
        wanted.setdefault(key, []).append(value if is_text else read_value(value))
    words: dict[str, Any] = {key: wanted.pop(key) for key in WORDS if key in wanted}
    chosen = Runs(read_runs([path])).select(wanted, **words)
    if not len(chosen):
        raise click.UsageError(f"no run in {path} is as {', '.join(conditions)} has it.")
    return chosen


def _show(found: "Comparison", format_: str, output: Path | None) -> None:
    if format_ == "text":
        columns, num_text, rows = found.table()
        titles = [*columns[:num_text], *map(NumberColumn, columns[num_text:])]
        print_table(titles, rows, found.title)
        for note in found.notes():
            print_text(note)
        return
    text = found.to_markdown() if format_ == "md" else json_text(found.to_dict()) + "\n"
    write_or_print(text, output)
