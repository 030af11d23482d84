"""`outvote report RUNS -o report.html`: tables, curves and audits in one file, for any browser."""

from pathlib import Path

import click

from outvote.cli.output import file_option, print_written
from outvote.cli.runs import paths_argument, read_runs, suites_option
from outvote.cli.verb import Verb, typed_command, usage_errors
from outvote.errors import plural


@click.command("report", cls=Verb)
@paths_argument
@suites_option
@file_option("The file to write.", default=Path("report.html"))
def command(paths: tuple[Path, ...], suites: tuple[str, ...], output: Path, as_json: bool) -> None:
    """Write one HTML file that shows everything and needs no network.

    RUNS are folders of runs, or exports. The page has the tables, to be sorted and switched between
    best, final, worst case and the paper's numbers; the curves; and of each run the audit: every
    client's verdict in every round. Clients are not in an export, so audits need the folders.

    \b
    outvote report runs/table1-cifar10 -o report.html
    """  # noqa: D301  (click wants the backspace)
    from outvote.report.html_report import write_report

    results = read_runs(paths)
    with usage_errors(ValueError):
        write_report(results, output, command=typed_command(), suites=suites)
    print_written(output, as_json, f"{plural(len(results), 'run')}, ", runs=len(results))
