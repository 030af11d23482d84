"""Many rounds at once: the rounds of runs that share a rule, judged together.

Kernels work on runs of one shape and one number of Byzantine clients. With client sampling both
differ from run to run, so runs that are alike are put together first; there are few kinds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outvote.axes import PerClient, Rows
from outvote.precision import plain_torch
from outvote.receive import finite_rows, norms_later
from outvote.rules.aggregation import Aggregation
from outvote.rules.base import RoundInfo, Rule
from outvote.rules.client_matrix import ClientMatrix
from outvote.rules.linalg import central_client, twin_pairs
from outvote.seeding import RandomStream


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What a rule decided on a batch of runs; rows that took no part have weight 0, score inf."""

    updates: Tensor
    scores: PerClient
    weights: PerClient
    is_rejected: Tensor
    num_byzantine: list[int]


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of the batch: its number, and the rows that can be judged."""

    number: int
    rows: list[int]
    norms: list[float]
    num_byzantine: int


def judge(
    rule: Rule,
    gradients: Rows,
    *,
    num_byzantine: Sequence[int],
    seeds: Sequence[int],
    is_present: Tensor | None = None,
) -> Judgement:
    """Aggregate ``gradients [runs, clients, dim]`` run by run, as the rule alone would.

    `num_byzantine` and `seeds` have one entry per run; `is_present` marks the rows that were
    received. A number above the rule's limit is lowered and told in `num_byzantine`.
    """
    with plain_torch(gradients.device):
        return _judge(rule, gradients.detach(), num_byzantine, seeds, is_present)


def _judge(
    rule: Rule,
    gradients: Rows,
    num_byzantine: Sequence[int],
    seeds: Sequence[int],
    is_present: Tensor | None,
) -> Judgement:
    num_runs, num_clients, dim = gradients.shape
    if len(num_byzantine) != num_runs or len(seeds) != num_runs:
        raise ValueError(
            f"num_byzantine and seeds must have one entry for each of the {num_runs} runs, got "
            f"{len(num_byzantine)} and {len(seeds)}."
        )
    present = (
        torch.ones(num_runs, num_clients, dtype=torch.bool) if is_present is None else is_present
    )
    is_finite, told, runs = _look_at(rule, gradients, present.tolist(), num_byzantine)
    shape = (num_runs, num_clients)
    scores = torch.full(shape, torch.inf, dtype=torch.float64, device=gradients.device)
    weights = torch.zeros(shape, dtype=torch.float64, device=gradients.device)
    updates = gradients.new_zeros(num_runs, dim)
    for alike in _group(runs, is_batched=rule.is_batched):
        where = torch.tensor([run.number for run in alike], device=gradients.device)
        rows = torch.tensor([run.rows for run in alike], device=gradients.device)
        is_all = rows.numel() == num_runs * num_clients
        good = gradients if is_all else gradients[where.unsqueeze(-1), rows]
        update, answer = _judge_alike(rule, good, alike, tuple(seeds[r.number] for r in alike))
        updates[where] = update.to(gradients.dtype)
        at = (where.unsqueeze(-1), rows)
        if answer.weights is not None:
            weights[at] = answer.weights.double()
        if answer.scores is not None:
            scores[at] = answer.scores.double()
    rejected = present & ~torch.tensor(is_finite)
    return Judgement(
        updates=updates,
        scores=scores,
        weights=weights,
        is_rejected=rejected.to(gradients.device),
        num_byzantine=told,
    )


def _look_at(
    rule: Rule, gradients: Rows, present: list[list[bool]], num_byzantine: Sequence[int]
) -> tuple[list[list[bool]], list[int], list[_Run]]:
    """Find the rows that can be judged, and the number of Byzantine ones to reckon with."""
    num_clients = gradients.shape[1]
    flat = gradients.flatten(0, 1)
    norms = norms_later(flat)()
    is_finite = finite_rows(flat, norms)
    finite, told, runs = [], [], []
    for number, here in enumerate(present):
        first = number * num_clients
        ok = is_finite[first : first + num_clients]
        rows = [k for k in range(num_clients) if here[k] and ok[k]]
        num_received = sum(here)
        f = min(int(num_byzantine[number]), rule.max_byzantine(num_received))
        left = max(0, f - (num_received - len(rows)))
        finite.append(ok)
        told.append(f)
        if rows:
            runs.append(_Run(number, rows, [norms[first + k] for k in rows], left))
    return finite, told, runs


def _group(runs: list[_Run], *, is_batched: bool) -> list[list[_Run]]:
    """Put runs with as many rows and as many Byzantine ones together."""
    alike: dict[tuple[int, ...], list[_Run]] = {}
    for run in runs:
        kind = (len(run.rows), run.num_byzantine)
        alike.setdefault(kind if is_batched else (*kind, run.number), []).append(run)
    return list(alike.values())


def _judge_alike(
    rule: Rule, rows: Rows, runs: list[_Run], seeds: tuple[int, ...]
) -> tuple[Tensor, Aggregation]:
    centre = torch.tensor([central_client(run.norms) for run in runs], device=rows.device)
    pairs = [twin_pairs(matrix, run.norms) for matrix, run in zip(rows, runs, strict=True)]
    twins = None
    if any(pair is not None for pair in pairs):
        none = torch.eye(rows.shape[1], dtype=torch.bool, device=rows.device)
        twins = torch.stack([none if pair is None else pair for pair in pairs])
    matrix = ClientMatrix.from_rows(rows, centre, twins)
    info = RoundInfo(
        num_byzantine=runs[0].num_byzantine,
        stream=RandomStream(seeds),
        num_received=rows.shape[1],
        clients=tuple(runs[0].rows),
        wants_shares=True,
    )
    answer = rule.answer(matrix, info)
    return matrix.vector(answer), answer
