"""The files of clients: which are meant, whether they can be used, and why not."""

import glob
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from outvote.files.adapters import WEIGHTS, Config, config_fault, most_common_config, read_config
from outvote.files.safetensors_file import Header, UnusableFile
from outvote.files.sources import MovedSource, SafetensorsSource, Source

SUFFIX = ".safetensors"
Named = dict[str, Tensor]


class FilesError(Exception):
    """The files cannot be aggregated; nothing was written."""


@dataclass(slots=True)
class Client:
    """One client's file; `reason` is why it cannot be used, empty if it can."""

    name: str
    path: Path
    reason: str = ""
    file: SafetensorsSource | None = None
    config: Config | None = field(default=None, repr=False)
    """What is beside a LoRA adapter."""

    def source(self, base: Source | None) -> Source | UnusableFile:
        """Return the client's update: what the file holds, or its difference to the base."""
        if self.file is None:
            return UnusableFile(self.reason)
        return self.file if base is None else MovedSource(self.file, base)


def find_files(words: Sequence[str]) -> list[Path]:
    """Return the files that paths, folders and patterns name, each once."""
    found: dict[str, Path] = {}
    for word in words:
        for path in _expand(word):
            found.setdefault(os.path.abspath(path), path)  # noqa: PTH100  (links stay links)
    return list(found.values())


def client_ids(paths: Sequence[Path]) -> list[str]:
    """Name every client by its file: the name without suffix, or the path where names repeat.

    A LoRA adapter, whose file always has the same name, is named by its folder.
    """
    stems = [path.parent.name if path.name == WEIGHTS else path.stem for path in paths]
    counts = Counter(stems)
    names = [
        stem if stem and counts[stem] == 1 else str(path)
        for stem, path in zip(stems, paths, strict=True)
    ]
    # The path of one may be the name of another.
    return names if len(set(names)) == len(names) else [str(path) for path in paths]


def check_output(output: Path, inputs: Sequence[Path]) -> None:
    """Refuse an output that cannot be written, or that would overwrite an input."""
    for path in inputs:
        if _is_same(output, path):
            raise ValueError(f"output {output} is one of the input files; choose another name")
    if output.exists() and not output.is_file():
        raise ValueError(f"output {output} is not a file; name a file to write")
    if not output.parent.is_dir():
        raise ValueError(f"output {output}: there is no folder {output.parent}; create it")
    if not os.access(output.parent, os.W_OK):
        raise ValueError(
            f"output {output}: the folder {output.parent} cannot be written; choose another"
        )


def check_base(base: Path, updates: Sequence[Path]) -> None:
    """Refuse a base that does not exist, or that is also one of the updates."""
    if not base.exists():
        raise ValueError(f"base: there is no file {base}; check the path")
    if any(_is_same(base, path) for path in updates):
        raise ValueError(f"base {base} is also one of the updates; take it out of them")


def open_clients(
    paths: Sequence[Path], base_path: Path | None
) -> tuple[list[Client], SafetensorsSource | None]:
    """Open the files; with a base they are whole models, and updates are differences to it."""
    clients = [Client(name, path) for name, path in zip(client_ids(paths), paths, strict=True)]
    base = None if base_path is None else _open_base(base_path)
    for client in clients:
        with _reason_of(client):
            client.file = SafetensorsSource(client.path)
    headers = [client.file.header for client in clients if client.file is not None]
    expected = most_common(headers) if base is None else base.header
    for client in clients:
        with _reason_of(client):
            if client.file is not None and (fault := client.file.header.fault(expected)):
                raise UnusableFile(fault)
            client.config = read_config(client.path)
    _check_configs([client for client in clients if not client.reason])
    return clients, base


def _check_configs(clients: Sequence[Client]) -> None:
    """Leave out LoRA adapters that are scaled or placed in another way than most."""
    wanted = most_common_config([client.config for client in clients])
    for client in clients:
        with _reason_of(client):
            if fault := config_fault(client.config, wanted):
                raise UnusableFile(fault)


def most_common(headers: Sequence[Header]) -> Header:
    """Return the layout that most files have; none where there are no files."""
    counts = Counter(header.entries for header in headers).most_common(2) or [((), 0)]
    if len(counts) == 2 and counts[0][1] == counts[1][1]:
        fault = Header(counts[1][0]).fault(Header(counts[0][0]))
        raise FilesError(
            f"the files disagree on their tensors, and no side has more files ({fault}); take the "
            "wrong ones out"
        )
    return Header(counts[0][0])


def _expand(word: str) -> list[Path]:
    path = Path(word)
    # A folder with the suffix of a file is the invalid file of a client.
    if path.is_dir() and path.suffix != SUFFIX:
        files = sorted(each for each in path.glob(f"*{SUFFIX}") if not each.name.startswith("."))
        if not files:
            raise ValueError(f"the folder {path} holds no *{SUFFIX} file; check the path")
        return files
    if os.path.lexists(path):
        return [path]
    matches = [
        # A folder that a pattern matches is an adapter.
        path / WEIGHTS if (path / WEIGHTS).is_file() else path
        for path in map(Path, sorted(glob.glob(word, recursive=True)))  # noqa: PTH207
    ]
    if not matches:
        kind = "no file matches" if glob.has_magic(word) else "there is no file"
        raise ValueError(f"{kind} {word!r}; check the path")
    return matches


def _is_same(first: Path, second: Path) -> bool:
    try:
        return first.samefile(second)
    except OSError:
        return os.path.abspath(first) == os.path.abspath(second)  # noqa: PTH100


def _open_base(path: Path) -> SafetensorsSource:
    """Open the global model that the clients started from."""
    try:
        base = SafetensorsSource(path)
        bad = base.first_not_finite(slice(0, base.size))
    except UnusableFile as error:
        raise ValueError(f"base {path} {error}; give the global model") from error
    if bad < base.size:
        raise ValueError(
            f"base {path} has NaN, infinity or too large numbers {base.place(bad)}; give a finite "
            "model"
        )
    return base


@contextmanager
def _reason_of(client: Client) -> Iterator[None]:
    try:
        yield
    except UnusableFile as error:
        client.reason, client.file = client.reason or str(error), None
