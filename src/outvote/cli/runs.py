"""The argument RUNS of a verb: folders and exports."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from outvote.cli.output import print_message

if TYPE_CHECKING:
    from outvote.results.run import Result

paths_argument = click.argument(
    "paths", metavar="RUNS...", nargs=-1, required=True, type=click.Path(path_type=Path)
)

suites_option = click.option(
    "--suite",
    "suites",
    metavar="FILE",
    multiple=True,
    help="The path.toml of a suite of your own, to lay its runs out as it has them.",
)


def read_runs(paths: Sequence[Path]) -> "list[Result]":
    """Read all runs below some paths; those that are damaged are named on stderr and left out."""
    from outvote.results.collect import collect

    with read_errors():
        return collect(paths, print_message)


@contextmanager
def read_errors() -> Iterator[None]:
    """Turn a damaged file into exit code 1, and a path without runs into exit code 2."""
    from outvote.results.disk import DamagedFileError, StoreError

    try:
        yield
    except DamagedFileError:
        raise
    except StoreError as error:
        raise click.UsageError(str(error)) from error
