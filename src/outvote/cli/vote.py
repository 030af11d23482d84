"""From updates to the new model: let the rule judge, and tell how."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click
import numpy as np
import torch
from torch import Tensor

from outvote.cli.collect import Base, Client, Named, nothing_usable
from outvote.cli.verb import WorkFailed
from outvote.errors import TooManyByzantine
from outvote.flat import to_float
from outvote.rules.aggregate import num_from_fraction, resolve_num_byzantine
from outvote.rules.rule import Rule
from outvote.rules.verdict import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What the user says about the round."""

    num_byzantine: int | None
    byzantine_fraction: float | None
    when_too_many: str
    seed: int | None

    def num_byzantine_assumed(self, num_clients: int) -> int | None:
        """Return the number before any limit; None if the user gave none."""
        if self.byzantine_fraction is None:
            return self.num_byzantine
        return num_from_fraction(self.byzantine_fraction, num_clients)


def num_tolerated(rule: Rule, num_clients: int, told: Told) -> int:
    """Return how many of the received files the rule shall take for Byzantine."""
    f, fraction = told.num_byzantine, told.byzantine_fraction
    if f is None and fraction is None and rule.traits.uses_num_byzantine:
        raise click.UsageError(
            f"{rule} must be told how many clients may lie; add --num-byzantine, or "
            "--byzantine-fraction 0.2 if the number is unknown"
        )
    if f is not None and fraction is not None:
        raise click.UsageError("give --num-byzantine or --byzantine-fraction, not both")
    try:
        return resolve_num_byzantine(rule, num_clients, f, fraction, told.when_too_many)
    except TooManyByzantine as error:
        raise click.UsageError(
            f"{rule} tolerates at most {error.limit} Byzantine of {error.num_clients} clients, got "
            f"{error.got}; collect more updates, lower --num-byzantine, or add "
            "--when-too-many lower"
        ) from error
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def vote(rule: Rule, clients: Sequence[Client], num_byzantine: int, seed: int | None) -> Verdict:
    """Let the rule judge what is usable; an unusable file counts as one Byzantine client less."""
    usable = [client for client in clients if not client.reason]
    if not usable:
        raise nothing_usable(clients)
    if not usable[0].update:
        raise WorkFailed("the files hold no floating-point tensor, so there is nothing to vote on")
    left = max(0, num_byzantine - (len(clients) - len(usable)))
    try:
        verdict = rule.inspect(
            [client.update for client in usable],
            num_byzantine=left,
            when_too_many="lower",
            seed=seed,
            clients=[client.name for client in usable],
        )
    except (ValueError, TypeError) as error:
        raise click.UsageError(str(error)) from error
    for client in usable:
        if client.name in verdict.rejected:
            client.reason = f"NaN, infinity or too large numbers in {_worst(client.update)!r}"
    if len(verdict.rejected) == len(usable):
        raise nothing_usable(clients)
    return verdict


def new_model(verdict: Verdict, clients: Sequence[Client], base: Base | None) -> Named:
    """Return the update, or the base moved by it; counters are the maximum over the kept."""
    tensors: Named = dict(verdict.update)
    if base is not None:
        for name, step in verdict.update.items():
            start = base.tensors[name]
            tensors[name] = to_float(start.to(step.dtype) + step, start.dtype)
    usable = [client for client in clients if not client.reason]
    kept = [client for client in usable if client.name in (verdict.kept or ())] or usable
    for name in kept[0].counters:
        values = np.stack([client.counters[name].numpy() for client in kept])
        tensors[name] = torch.from_numpy(np.asarray(values.max(axis=0)))
    return tensors


def judgements(verdict: Verdict, clients: Sequence[Client]) -> list[dict[str, Any]]:
    """Tell what became of each client, in the order of the files."""
    scores = dict(zip(verdict.clients, verdict.scores.tolist(), strict=True))
    is_known = verdict.weights is not None
    weights = verdict.weights if verdict.weights is not None else np.zeros(len(verdict.clients))
    shares = dict(zip(verdict.clients, weights.tolist(), strict=True))
    length = norm(verdict.update)
    rows = []
    for client in clients:
        row: dict[str, Any] = {"client": client.name, "path": str(client.path)}
        row |= dict.fromkeys(("score", "share", "norm", "cosine"))
        if client.reason:
            row |= {"status": "rejected"}
        else:
            own = norm(client.update)
            status = "kept" if shares[client.name] > 0 else "dropped"
            row |= {
                "status": status if is_known else "used",
                "score": scores[client.name],
                "share": shares[client.name] if is_known else None,
                "norm": own,
                "cosine": _cosine(client.update, verdict.update, own * length),
            }
        rows.append(row | {"reason": client.reason})
    return rows


def norm(named: Named) -> float:
    """Return the Euclidean norm over all tensors, worked out in float64."""
    parts = [torch.linalg.vector_norm(tensor, dtype=torch.float64) for tensor in named.values()]
    return float(torch.linalg.vector_norm(torch.stack(parts)))


def _cosine(first: Named, second: Named, scale: float) -> float | None:
    if scale == 0:
        return None
    return sum(_dot(first[name], second[name]) for name in first) / scale


def _dot(first: Tensor, second: Tensor) -> float:
    return float(torch.dot(first.reshape(-1).double(), second.reshape(-1).double()))


def _worst(named: Named) -> str:
    """Return the name of the first tensor that is not finite, else of the largest."""
    for name, tensor in named.items():
        if not bool(tensor.isfinite().all()):
            return name
    filled = [name for name, tensor in named.items() if tensor.numel()]
    return max(filled, key=lambda name: float(named[name].abs().max()))
