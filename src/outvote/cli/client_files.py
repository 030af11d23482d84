"""Which files are meant, which client each comes from, and where the answer may be written."""

import glob
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click

SUFFIX = ".safetensors"


def find_files(words: Sequence[str]) -> list[Path]:
    """Return the files that paths, folders and quoted patterns name, each once."""
    found: dict[str, Path] = {}
    for word in words:
        for path in _expand(word):
            found.setdefault(os.path.abspath(path), path)  # noqa: PTH100  (links stay links)
    return list(found.values())


def client_ids(paths: Sequence[Path]) -> list[str]:
    """Name every client by its file: the name without suffix, or the path where names repeat."""
    stems = Counter(path.stem for path in paths)
    return [path.stem if stems[path.stem] == 1 else str(path) for path in paths]


def check_output(output: Path, inputs: Sequence[Path]) -> None:
    """Refuse a place that cannot be written, or that would overwrite what is read."""
    for path in inputs:
        if _is_same(output, path):
            raise click.UsageError(
                f"--output {output} is one of the files that are read; choose another name"
            )
    if output.exists() and not output.is_file():
        raise click.UsageError(f"--output {output} is not a file; name a file to write")
    if not output.parent.is_dir():
        raise click.UsageError(f"--output {output}: there is no folder {output.parent}; create it")
    if not os.access(output.parent, os.W_OK):
        raise click.UsageError(
            f"--output {output}: the folder {output.parent} cannot be written; choose another"
        )


def check_base(base: Path | None, updates: Sequence[Path]) -> None:
    """Refuse a base that is not there, or that would vote on itself."""
    if base is None:
        return
    if not base.exists():
        raise click.UsageError(f"--base: there is no file {base}; check the path")
    if any(_is_same(base, path) for path in updates):
        raise click.UsageError(
            f"--base {base} is also one of the updates; a base does not vote, take it out of them"
        )


def _expand(word: str) -> list[Path]:
    path = Path(word)
    # A folder that calls itself a file stands for a client that sent nonsense.
    if path.is_dir() and path.suffix != SUFFIX:
        return _files_in(path)
    if os.path.lexists(path):
        return [path]
    matches = [Path(match) for match in sorted(glob.glob(word, recursive=True))]  # noqa: PTH207
    if not matches:
        kind = "no file matches" if glob.has_magic(word) else "there is no file"
        raise click.UsageError(f"{kind} {word!r}; check the path")
    return matches


def _files_in(folder: Path) -> list[Path]:
    files = [path for path in sorted(folder.glob(f"*{SUFFIX}")) if not path.name.startswith(".")]
    if not files:
        raise click.UsageError(f"the folder {folder} holds no *{SUFFIX} file; check the path")
    return files


def _is_same(first: Path, second: Path) -> bool:
    try:
        return first.samefile(second)
    except OSError:
        return os.path.abspath(first) == os.path.abspath(second)  # noqa: PTH100
