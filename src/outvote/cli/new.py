"""`outvote new DIR`: a small project that runs, to start one's own from."""

from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath

import click

from outvote.cli.output import print_json
from outvote.cli.verb import Verb, WorkFailed

ROOT = PurePosixPath()
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
    written = []
    for name, template in _templates(files("outvote.cli") / "templates" / "project", ROOT):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(template.read_bytes())
        written.append(str(name))
    return written


def _templates(
    folder: Traversable, where: PurePosixPath
) -> Iterator[tuple[PurePosixPath, Traversable]]:
    """Return the files of a folder by their paths, in order, without caches."""
    for each in sorted(folder.iterdir(), key=lambda found: found.name):
        if each.is_file():
            yield where / each.name, each
        elif not each.name.startswith(("_", ".")):
            yield from _templates(each, where / each.name)
