"""From files to comparable updates: who sent something usable, and why the others did not."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click
import torch
from torch import Tensor

from outvote.cli.client_files import client_ids
from outvote.cli.safetensors_file import Header, UnusableFile, read_header, read_tensors
from outvote.cli.verb import WorkFailed
from outvote.flat import FLOATS

Named = dict[str, Tensor]


@dataclass(slots=True)
class Client:
    """What one client sent; `reason` says why it cannot be used, and is empty if it can."""

    name: str
    path: Path
    reason: str = ""
    update: Named = field(default_factory=dict)
    counters: Named = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Base:
    """The global model that the clients started from."""

    tensors: Named
    metadata: dict[str, str]


def collect(paths: Sequence[Path], base_path: Path | None) -> tuple[list[Client], Base | None]:
    """Read the files; with a base they are whole models, and what counts is the difference to it.

    Float tensors are what the clients vote on, all others are counters.
    """
    clients = [Client(name, path) for name, path in zip(client_ids(paths), paths, strict=True)]
    base, expected = (None, None) if base_path is None else _read_base(base_path)
    headers = [_header_of(client) for client in clients]
    expected = expected or most_common([header for header in headers if header is not None])
    for client, header in zip(clients, headers, strict=True):
        if header is not None and expected is not None:
            _read(client, header, expected, base)
    return clients, base


def most_common(headers: Sequence[Header]) -> Header | None:
    """Return the layout that most files have; None where there are no files."""
    counts = Counter(header.entries for header in headers).most_common(2)
    if not counts:
        return None
    if len(counts) == 2 and counts[0][1] == counts[1][1]:
        fault = Header(counts[1][0], {}).fault(Header(counts[0][0], {}))
        raise WorkFailed(
            f"the files disagree on what they hold, and no side has more of them ({fault}); "
            "take the wrong ones out"
        )
    return Header(counts[0][0], {})


def nothing_usable(clients: Sequence[Client]) -> WorkFailed:
    """Say that every file is unusable, and why the first ones are."""
    reasons = [f"{client.path}: {client.reason}" for client in clients[:3]]
    more = f"; and {len(clients) - 3} more" if len(clients) > 3 else ""
    return WorkFailed(
        f"none of the {len(clients)} files can be used, nothing was written; "
        f"{'; '.join(reasons)}{more}"
    )


def _read_base(path: Path) -> tuple[Base, Header]:
    try:
        header = read_header(path)
        tensors = read_tensors(path, header)
    except UnusableFile as error:
        raise click.UsageError(f"--base {path} {error}; give the global model") from error
    for name, tensor in tensors.items():
        if tensor.dtype in FLOATS and not bool(tensor.isfinite().all()):
            raise click.UsageError(
                f"--base {path} has NaN or infinity in tensor {name!r}; give a finite model"
            )
    return Base(tensors, dict(header.metadata)), header


def _header_of(client: Client) -> Header | None:
    try:
        return read_header(client.path)
    except UnusableFile as error:
        client.reason = str(error)
        return None


def _read(client: Client, header: Header, expected: Header, base: Base | None) -> None:
    client.reason = header.fault(expected)
    if client.reason:
        return
    try:
        tensors = read_tensors(client.path, header)
    except UnusableFile as error:
        client.reason = str(error)
        return
    for name, tensor in tensors.items():
        if tensor.dtype not in FLOATS:
            client.counters[name] = tensor
        else:
            client.update[name] = tensor if base is None else moved(base.tensors[name], tensor)


def moved(start: Tensor, end: Tensor) -> Tensor:
    """Return end - start, in float32 at least: half precision would round small steps away."""
    work = torch.promote_types(start.dtype, torch.float32)
    return end.to(work) - start.to(work)
