"""`outvote export RUNS -o results.csv.gz`: many runs in one small file."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from outvote.cli.output import file_option, print_text, print_written, write_file
from outvote.cli.runs import paths_argument, read_runs
from outvote.cli.verb import Verb, usage_errors
from outvote.errors import plural

if TYPE_CHECKING:
    from outvote.results.run import Result

ENDINGS = {"runs": (".csv.gz", ".csv"), "long": (".csv.gz", ".csv"), "parquet": (".parquet",)}
"""How the file of each format may end."""


@click.command("export", cls=Verb)
@paths_argument
@file_option(
    "The file to write: .csv.gz, or .csv for one that is not packed; .parquet.", required=True
)
@click.option(
    "--format",
    "format_",
    type=click.Choice(tuple(ENDINGS)),
    default="runs",
    help="What a row is; see above.",
)
@click.option("--all", "with_all", is_flag=True, help="Unfinished runs, too.")
def command(
    paths: tuple[Path, ...], output: Path, format_: str, with_all: bool, as_json: bool
) -> None:
    """Put everything that tables and figures need into one file, small enough to commit.

    RUNS are folders of runs, or exports; several are put together, and the same run is there once.
    The same runs always give the same file.

    \b
    runs     CSV, one row per run; every verb that takes RUNS reads it back
    long     CSV, one row per run and round, settings as columns: for pandas, R, DuckDB
    parquet  the same as Parquet; needs pyarrow

    \b
    outvote export runs/table1-cifar10 -o table1-cifar10.csv.gz
    outvote export runs --format parquet -o runs.parquet
    """  # noqa: D301  (click wants the backspace)
    _check_ending(output, format_)
    found = read_runs(paths)
    chosen = [result for result in found if result.is_over or with_all]
    if not chosen:
        raise click.UsageError(
            f"{plural(len(found), 'run')}, none finished; run them to the end, or add --all."
        )
    content = _content(chosen, format_, is_packed=output.name.endswith(".gz"))
    write_file(output, content)
    num_left = len(found) - len(chosen)
    what = f"{plural(len(chosen), 'run')}, "
    print_written(output, as_json, what, runs=len(chosen), left_out=num_left)
    if num_left and not as_json:
        print_text(f"Left out because they are unfinished: {num_left}; --all takes them too.")


def _check_ending(output: Path, format_: str) -> None:
    if output.name.endswith(ENDINGS[format_]):
        return
    fitting = [name for name, endings in ENDINGS.items() if output.name.endswith(endings)]
    remedy = f"; add --format {fitting[0]}" if fitting else ""
    raise click.UsageError(
        f"the --output of --format {format_} must end in {' or '.join(ENDINGS[format_])}, "
        f"got {output}{remedy}."
    )


def _content(results: "list[Result]", format_: str, *, is_packed: bool) -> bytes:
    from outvote.results.export import to_export
    from outvote.results.long_table import to_long_csv, to_parquet

    if format_ == "parquet":
        with usage_errors(ImportError):
            return to_parquet(results)
    return {"runs": to_export, "long": to_long_csv}[format_](results, is_packed=is_packed)
