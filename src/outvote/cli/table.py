"""`outvote table RUNS`: what rules come to under attacks, beside the numbers of the paper."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from outvote.cli.output import clean, json_text, write_file
from outvote.cli.runs import paths_argument, read_runs, suites_option
from outvote.cli.verb import Verb

if TYPE_CHECKING:
    from outvote.report.cells import Metric
    from outvote.report.grid import Grid

METRICS: "dict[str, Metric]" = {
    "best": "best",
    "final": "final",
    "last-ten": "last_ten",
    "kept": "kept_byzantine",
    "liars-share": "byzantine_weight",
    "deviation": "deviation",
}
FORMATS = ("md", "latex", "csv", "json")


@click.command("table", cls=Verb)
@paths_argument
@click.option(
    "--format",
    "format_",
    type=click.Choice(FORMATS),
    default="md",
    show_default=True,
    help="Markdown, LaTeX (booktabs), or a record for each cell.",
)
@click.option("--paper", is_flag=True, help="The paper's value beside each of ours.")
@click.option(
    "--metric",
    type=click.Choice(tuple(METRICS)),
    help="Accuracy of the best round (the paper's), the last, the last ten; liars kept, or "
    "their share of the weights; or the distance to the honest mean.  [default: what each part of "
    "a suite is about, else best]",
)
@click.option("--part", help="Only this part of the suite.")
@suites_option
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file to write; default: print.",
)
def command(
    paths: tuple[Path, ...],
    format_: str,
    paper: bool,
    metric: str | None,
    part: str | None,
    suites: tuple[str, ...],
    output: Path | None,
    as_json: bool,
) -> None:
    """Make tables of runs: mean ± standard deviation over seeds, worst cases, what is missing.

    RUNS are folders of runs, or exports. Runs of a suite that comes with outvote, or that --suite
    gives, are laid out as the suite has them; of others, rules are rows, and attacks or whatever
    differs are columns.
    Parts of which nothing was run are only named. The same runs always give the same text.

    \b
    outvote table runs/table1-cifar10 --paper
    outvote table table1-cifar10.csv.gz --format latex -o table1.tex
    outvote table runs/mine --suite mine.toml
    """  # noqa: D301  (click wants the backspace)
    from outvote.report.cells import ACCURACIES
    from outvote.report.layout import grids_of

    wanted = None if metric is None else METRICS[metric]
    if paper and wanted is not None and wanted not in ACCURACIES:
        raise click.UsageError(
            f"--paper goes with accuracies: the paper has no numbers for --metric {metric}."
        )
    try:
        grids = grids_of(read_runs(paths), part, suites)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    text = write_table(grids, "json" if as_json else format_, wanted, paper=paper)
    if output is None:
        click.echo(text, nl=False)
    else:
        write_file(output, text.encode())


def write_table(
    grids: "list[Grid]", format_: str, metric: "Metric | None" = None, *, paper: bool = False
) -> str:
    """Return tables in a format."""
    if format_ == "json":
        from outvote.report.table_data import as_json

        return json_text(as_json(grids, metric, paper=paper)) + "\n"
    if format_ == "csv":
        from outvote.report.table_data import to_csv

        return clean(to_csv(grids, metric, paper=paper))
    if format_ == "latex":
        from outvote.report.table_latex import latex

        return clean(latex(grids, metric, paper=paper))
    from outvote.report.table_markdown import markdown

    return clean(markdown(grids, metric, paper=paper))
