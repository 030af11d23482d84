"""Aggregates the files of many clients with a rule, and writes the new update or model."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from outvote.files.client_files import (
    Base,
    Client,
    FilesError,
    Named,
    check_base,
    check_output,
    find_files,
    read_clients,
)
from outvote.flat import to_float
from outvote.results.disk import write_whole
from outvote.rules.rule import Rule
from outvote.rules.rule_spec import make_rule
from outvote.rules.verdict import Verdict
from outvote.text import shortened

PathLike = str | os.PathLike[str]


def aggregate_files(  # noqa: PLR0913  (all that a round may have, by name)
    updates: PathLike | Sequence[PathLike],
    *,
    rule: Rule | str,
    num_byzantine: int | None = None,
    byzantine_fraction: float | None = None,
    base: PathLike | None = None,
    seed: int | None = None,
    when_too_many: str = "raise",
    sample_counts: Mapping[str, float] | None = None,
    output: PathLike | None = None,
) -> Verdict:
    """Aggregate the safetensors files of many clients; return the verdict.

    `updates` are files, folders or patterns such as "updates/*.safetensors". Without `base` the
    files are updates (gradients or differences), and so is the `output`. With `base` they are whole
    models: updates are their differences to the base, and the output is the new model. A file that
    is unreadable, not finite, or unlike the base (or unlike most files) is rejected and counts as
    one Byzantine client; `verdict.notes` has the reason. Integer tensors become the maximum over
    the kept clients. `sample_counts` weigh the clients, named as in the verdict; none counts more
    than three times the median. The output is written in full or not at all.
    """
    return aggregate_clients(
        updates,
        rule=rule,
        num_byzantine=num_byzantine,
        byzantine_fraction=byzantine_fraction,
        base=base,
        seed=seed,
        when_too_many=when_too_many,
        sample_counts=sample_counts,
        output=output,
    ).verdict


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FilesResult:
    """A verdict on files, and the record of each client."""

    verdict: Verdict
    model: Named
    """What is written: the update, or the new model."""
    clients: list[dict[str, Any]]
    """In the order of the files: client, path, status, score, share, norm, cosine, reason."""


def aggregate_clients(
    updates: PathLike | Sequence[PathLike],
    *,
    rule: Rule | str,
    base: PathLike | None = None,
    output: PathLike | None = None,
    **options: Any,
) -> FilesResult:
    """Do the work of `aggregate_files`, and return the record of each client too."""
    words = [updates] if isinstance(updates, str | os.PathLike) else updates
    paths = find_files([str(word) for word in words])
    base_path = None if base is None else Path(base)
    if base_path is not None:
        check_base(base_path, paths)
    if output is not None:
        check_output(Path(output), paths if base_path is None else [*paths, base_path])
    rule = make_rule(rule) if isinstance(rule, str) else rule
    clients, start = read_clients(paths, base_path)
    verdict = _aggregate(rule, clients, options)
    model = _new_model(verdict, clients, start)
    if output is not None:
        metadata = {"format": "pt"} if start is None else start.metadata
        write_tensors(Path(output), model, metadata)
    return FilesResult(verdict=verdict, model=model, clients=_records(verdict, clients))


def write_tensors(path: Path, tensors: Named, metadata: dict[str, str]) -> None:
    """Write a safetensors file whole or not at all; a failure is a StoreError."""
    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    content = safetensors.torch.save(whole, metadata=dict(metadata) or None)
    write_whole(path, content, stays="what was there stays")


def _aggregate(rule: Rule, clients: Sequence[Client], options: dict[str, Any]) -> Verdict:
    """Call the rule; an unusable file takes part as a row of NaN, which every rule rejects."""
    usable = [client for client in clients if not client.reason]
    if not usable:
        raise _nothing_usable(clients)
    like = usable[0].update
    if not like:
        raise FilesError("the files hold no floating-point tensor, so there is no update")
    nothing = {
        name: tensor.new_full((), torch.nan).expand_as(tensor) for name, tensor in like.items()
    }
    counts = options.pop("sample_counts", None)
    verdict = rule.inspect(
        [nothing if client.reason else client.update for client in clients],
        clients=[client.name for client in clients],
        sample_counts=None if counts is None else _counts(counts, clients),
        **options,
    )
    for client in usable:
        if client.name in verdict.rejected:
            client.reason = (
                f"NaN, infinity or too large numbers in {shortened(_worst(client.update))!r}"
            )
    if len(verdict.rejected) == len(clients):
        raise _nothing_usable(clients)
    return verdict


def _counts(counts: Mapping[str, float], clients: Sequence[Client]) -> list[float]:
    """Return the counts in the order of the clients; each must have one."""
    missing = [client.name for client in clients if client.name not in counts]
    if missing:
        raise ValueError(
            f"sample_counts must have every client, got none for {missing[0]!r}; add it, or leave "
            "sample_counts out."
        )
    return [counts[client.name] for client in clients]


def _nothing_usable(clients: Sequence[Client]) -> FilesError:
    reasons = [f"{client.path}: {client.reason}" for client in clients[:3]]
    more = f"; and {len(clients) - 3} more" if len(clients) > 3 else ""
    return FilesError(
        f"none of the {len(clients)} files can be used, nothing was written; "
        f"{'; '.join(reasons)}{more}"
    )


def _new_model(verdict: Verdict, clients: Sequence[Client], base: Base | None) -> Named:
    """Return the update, or the base moved by it; counters are the maximum over the kept."""
    tensors: Named = dict(verdict.update)
    if base is not None:
        for name, step in verdict.update.items():
            start = base.tensors[name]
            tensors[name] = to_float(start.to(step.dtype) + step, start.dtype)
    usable = [client for client in clients if not client.reason]
    names = set(verdict.kept or ())
    kept = [client for client in usable if client.name in names] or usable
    for name in kept[0].counters:
        values = np.stack([client.counters[name].numpy() for client in kept])
        tensors[name] = torch.from_numpy(np.asarray(values.max(axis=0)))
    return tensors


def _records(verdict: Verdict, clients: Sequence[Client]) -> list[dict[str, Any]]:
    scores, shares = verdict.scores.tolist(), verdict.weights
    length = norm(verdict.update)
    records = []
    for k, client in enumerate(clients):
        record: dict[str, Any] = {"client": client.name, "path": str(client.path)}
        record |= dict.fromkeys(("score", "share", "norm", "cosine")) | {"status": "rejected"}
        if not client.reason:
            own = norm(client.update)
            share = None if shares is None else float(shares[k])
            record |= {
                "status": "used" if share is None else "kept" if share > 0 else "dropped",
                "score": scores[k],
                "share": share,
                "norm": own,
                "cosine": _cosine(client.update, verdict.update, own * length),
            }
        records.append(record | {"reason": client.reason})
    return records


def norm(named: Named) -> float:
    """Return the Euclidean norm over all tensors, in float64."""
    parts = [torch.linalg.vector_norm(tensor, dtype=torch.float64) for tensor in named.values()]
    return float(torch.linalg.vector_norm(torch.stack(parts)))


def _cosine(first: Named, second: Named, scale: float) -> float | None:
    def flat(tensor: Tensor) -> Tensor:
        return tensor.reshape(-1).double()

    if scale == 0:
        return None
    return sum(float(torch.dot(flat(first[key]), flat(second[key]))) for key in first) / scale


def _worst(named: Named) -> str:
    """Return the name of the first tensor that is not finite, else of the largest."""
    for name, tensor in named.items():
        if not bool(tensor.isfinite().all()):
            return name
    filled = [name for name, tensor in named.items() if tensor.numel()]
    return max(filled, key=lambda name: float(named[name].abs().max()))
