"""`outvote new DIR`: a small project that runs, to start one's own from."""

from importlib.resources import as_file, files
from pathlib import Path
from shutil import copyfile, copytree, ignore_patterns

import click

from outvote.cli.output import print_json
from outvote.cli.verb import Verb, WorkFailed

NEXT = """\
{folder}: {names}.
Next:
  cd {folder}
  outvote run outvote.toml --allow-code
  pytest"""


@click.command("new", cls=Verb)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
def command(folder: Path, as_json: bool) -> None:
    """Write a small project: a rule, an attack, a model and data of your own, and their tests.

    It runs as it is, on two cores in less than a minute. DIR is made; if it exists, it must be
    empty.

    \b
    outvote new my-project
    cd my-project
    outvote run outvote.toml --allow-code
    pytest
    """  # noqa: D301  (click wants the backspace)
    if folder.exists() and not folder.is_dir():
        raise click.UsageError(f"DIR must be a new or an empty folder, got the file {folder}.")
    try:
        if folder.is_dir() and any(folder.iterdir()):
            raise click.UsageError(
                f"DIR must be a new or an empty folder, and {folder} has files; choose another."
            )
        written = write_project(folder)
    except OSError as error:
        reason = error.strerror or str(error)
        raise WorkFailed(f"{folder} could not be written: {reason}; check the folder.") from error
    if as_json:
        print_json({"path": str(folder), "files": written})
    else:
        click.echo(NEXT.format(folder=folder, names=", ".join(written)))


def write_project(folder: Path) -> list[str]:
    """Write the files of the project; return their names."""
    hidden = ignore_patterns("_*", ".*")
    with as_file(files("outvote.cli") / "templates" / "project") as project:
        copytree(project, folder, copy_function=copyfile, ignore=hidden, dirs_exist_ok=True)
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
