"""`outvote export RUNS -o results.csv.gz`: many runs in one small file."""

from pathlib import Path

import click

from outvote.cli.output import file_option, print_json, write_file
from outvote.cli.runs import paths_argument, read_runs
from outvote.cli.verb import Verb


@click.command("export", cls=Verb)
@paths_argument
@file_option("The file to write: .csv.gz, or .csv for one that is not packed.", required=True)
@click.option("--all", "with_all", is_flag=True, help="Unfinished runs, too.")
def command(paths: tuple[Path, ...], output: Path, with_all: bool, as_json: bool) -> None:
    """Put everything that tables and figures need into one file, small enough to commit.

    RUNS are folders of runs, or exports; several are put together, and the same run is there once.
    One row is one run; the same runs always give the same file.

    \b
    outvote export runs/table1-cifar10 -o table1-cifar10.csv.gz
    """  # noqa: D301  (click wants the backspace)
    from outvote.results.export import to_export

    if not output.name.endswith((".csv.gz", ".csv")):
        raise click.UsageError(f"--output must end in .csv.gz or .csv, got {output}.")
    found = read_runs(paths)
    chosen = [result for result in found if result.is_over or with_all]
    if not chosen:
        raise click.UsageError(
            f"none of the {len(found)} runs is finished; run them to the end, or add --all."
        )
    content = to_export(chosen, is_packed=output.name.endswith(".gz"))
    write_file(output, content)
    num_left = len(found) - len(chosen)
    if as_json:
        about = {"path": str(output), "runs": len(chosen), "left_out": num_left}
        print_json({**about, "bytes": len(content)})
        return
    click.echo(f"{output}: {len(chosen)} runs, {len(content):,} bytes.")
    if num_left:
        click.echo(f"Left out because they are unfinished: {num_left}; --all takes them too.")
