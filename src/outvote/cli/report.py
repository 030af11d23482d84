"""`outvote report RUNS -o report.html`: tables, curves and audits in one file, for any browser."""

import shlex
import sys
from pathlib import Path

import click

from outvote.cli.output import print_json
from outvote.cli.runs import paths_argument, read_runs, suites_option
from outvote.cli.verb import Verb, WorkFailed


@click.command("report", cls=Verb)
@paths_argument
@suites_option
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("report.html"),
    show_default=True,
    help="The file to write.",
)
def command(paths: tuple[Path, ...], suites: tuple[str, ...], output: Path, as_json: bool) -> None:
    """Write one HTML file that shows everything and needs no network.

    RUNS are folders of runs, or exports. The page has the tables, to be sorted and switched between
    best, final, worst case and the paper's numbers; the curves; and of each run the audit: every
    client's verdict in every round. Clients are not in an export, so audits need the folders.

    \b
    outvote report runs/table1-cifar10 -o report.html
    """  # noqa: D301  (click wants the backspace)
    from outvote.report.html_report import write_report
    from outvote.results.disk import StoreError

    results = read_runs(paths)
    try:
        typed = shlex.join(["outvote", *sys.argv[1:]])
        write_report(results, output, command=typed, suites=suites)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    except StoreError as error:
        raise WorkFailed(str(error)) from error
    num_bytes = output.stat().st_size
    if as_json:
        print_json({"path": str(output), "runs": len(results), "bytes": num_bytes})
        return
    runs = "1 run" if len(results) == 1 else f"{len(results)} runs"
    click.echo(f"{output}: {runs}, {num_bytes:,} bytes. Open it in a browser.")
