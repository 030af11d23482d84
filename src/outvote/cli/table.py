"""`outvote table RUNS`: results of rules under attacks, beside the numbers of the paper."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from outvote.cli.output import (
    NumberColumn,
    file_option,
    is_terminal,
    json_text,
    print_table,
    print_text,
    write_or_print,
)
from outvote.cli.runs import paths_argument, read_runs, suites_option
from outvote.cli.verb import Verb, usage_errors
from outvote.markup import clean

if TYPE_CHECKING:
    from outvote.report.cells import Metric
    from outvote.report.rendered_table import Rendered
    from outvote.suites.suite import Suite

METRICS: "dict[str, Metric]" = {
    "best": "best",
    "final": "final",
    "last-ten": "last_ten",
    "selection-rate": "kept_byzantine",
    "byzantine-weight": "byzantine_weight",
    "deviation": "deviation",
    "client-accuracy": "client_accuracy",
    "worst-decile": "worst_decile",
    "least-kept": "least_kept",
}
METRIC = click.Choice(tuple(METRICS))
FORMATS = ("text", "md", "latex", "csv", "json")


@click.command("table", cls=Verb)
@paths_argument
@click.option(
    "--format",
    "format_",
    type=click.Choice(FORMATS),
    help="A table for the terminal, Markdown, LaTeX (booktabs), or a record for each cell.  "
    "[default: text on a terminal, else md]",
)
@click.option("--paper", is_flag=True, help="The paper's value beside each of ours.")
@click.option(
    "--metric",
    type=METRIC,
    help="Accuracy of the best round (the paper's), the last, the last ten; Byzantine selection "
    "rate; Byzantine clients' share of the weights; distance to the honest mean; accuracy on the "
    "own label distribution of honest clients, its worst decile; how rarely honest clients are "
    "kept.  "
    "[default: the metric of each part of a suite, else best]",
)
@click.option("--clients", is_flag=True, help="Add who pays: what honest clients get.")
@click.option("--part", help="Only this part of the suite.")
@suites_option
@file_option("The file to write; default: print.")
def command(  # noqa: PLR0913, PLR0917  (one for each option)
    paths: tuple[Path, ...],
    format_: str | None,
    paper: bool,
    metric: str | None,
    clients: bool,
    part: str | None,
    suites: tuple[str, ...],
    output: Path | None,
    as_json: bool,
) -> None:
    """Make tables of runs: mean ± standard deviation over seeds, worst cases, what is missing.

    RUNS are folders of runs, or exports. Runs of a suite that comes with outvote, or that --suite
    gives, are laid out as the suite has them; of others, rules are rows, and attacks or whatever
    differs are columns.
    Parts without a run are only named. The same runs always give the same text. What goes into a
    file or a pipe is Markdown, unless --format is given.

    \b
    outvote table runs/table1-cifar10 --paper
    outvote table table1-cifar10.csv.gz --format latex -o table1.tex
    outvote table runs/mine --suite mine.toml
    """  # noqa: D301  (click wants the backspace)
    from outvote.report.cells import ACCURACIES
    from outvote.report.layout import grids_of
    from outvote.report.rendered_table import render

    wanted = None if metric is None else METRICS[metric]
    if paper and wanted is not None and wanted not in ACCURACIES:
        raise click.UsageError(
            f"--paper goes with accuracies: the paper has no numbers for --metric {metric}."
        )
    with usage_errors(ValueError):
        grids = grids_of(read_runs(paths), part, suites)
    rendered = render(grids, wanted, paper=paper, clients=clients)
    chosen = "json" if as_json else format_ or ("text" if is_terminal() else "md")
    if chosen == "text" and output is None:
        _print(rendered)
        return
    if chosen == "csv":
        for note in rendered.provenance.protocol_notes():  # CSV has no comments.
            click.echo(note, err=True)
    text = _text(rendered, "md" if chosen == "text" else chosen)
    write_or_print(text, output)


def print_tables(paths: Sequence[Path], suite: "Suite | None" = None, source: str = "") -> None:
    """Print the tables of runs, as a suite has them that was read from `source`."""
    from outvote.report.layout import grids_of, grids_of_suite
    from outvote.report.rendered_table import render

    results = read_runs(paths)
    _print(render(grids_of_suite(suite, results, source) if suite else grids_of(results)))


def _print(rendered: "Rendered") -> None:
    """Print all tables for a terminal; * marks what Markdown has in bold."""
    from outvote.report.table_formats import as_text

    for part in as_text(rendered):
        print_text(f"\n{clean(part.title)}")
        for caption, columns, rows in part.tables:
            print_text(f"\n{clean(caption)}")
            print_table(["rule", *map(NumberColumn, columns)], rows)
        for note in part.notes:
            print_text(clean(note))
    provenance = rendered.provenance
    print_text(f"\n{clean(provenance.text())}")
    for command in provenance.commands:
        click.echo(f"    {clean(command)}")


def _text(rendered: "Rendered", format_: str) -> str:
    from outvote.report.table_formats import as_json, latex, markdown, to_csv

    if format_ == "json":
        return json_text(as_json(rendered)) + "\n"
    return clean({"md": markdown, "latex": latex, "csv": to_csv}[format_](rendered))
