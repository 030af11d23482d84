"""Step 4 of a round: the rules aggregate the gradients that the server received."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from outvote.engine.participants import Participants
from outvote.engine.run_stack import RunStack, State, run_index
from outvote.rules.base import Rule
from outvote.rules.batch import judge
from outvote.training.trainer import LocalUpdates


@dataclass(frozen=True, slots=True, eq=False)
class Aggregated:
    """The results of the rules, one row per run."""

    vector: Tensor
    scores: Tensor
    weights: Tensor
    is_rejected: Tensor
    num_byzantine: list[int]
    states: tuple[Any, ...]


def aggregate(
    stack: RunStack,
    state: State,
    participants: Participants,
    updates: LocalUpdates,
    sent: Tensor,
) -> Aggregated:
    """Aggregate ``sent [runs, clients, dim]``; runs that share a rule are one batch."""
    num_runs, num_clients, dim = sent.shape
    per_client = torch.zeros(num_runs, num_clients, dtype=torch.float64, device=sent.device)
    result = Aggregated(
        sent.new_zeros(num_runs, dim),
        per_client,
        per_client.clone(),
        per_client.bool(),
        [0] * num_runs,
        (),
    )
    states = list(state.rule_states or (None,) * num_runs)
    for numbers in stack.grouped(lambda number, run: run.rule):
        at = run_index(numbers, sent.device)
        seeds = [stack.runs[k].seed_of(participants.number, "rule") for k in numbers]
        found = ask(stack, state, participants, updates, numbers, sent[at], seeds)
        result.vector[at] = found.vector
        result.scores[at] = _scores(found, sent[at])
        result.weights[at] = found.weights
        result.is_rejected[at] = found.is_rejected
        for k, used, own in zip(numbers, found.num_byzantine, found.states, strict=True):
            result.num_byzantine[k], states[k] = used, own
    return replace(result, states=tuple(states))


def ask(
    stack: RunStack,
    state: State,
    participants: Participants,
    updates: LocalUpdates,
    numbers: list[int],
    gradients: Tensor,
    seeds: Sequence[int],
) -> Aggregated:
    """Aggregate ``gradients [runs, clients, dim]`` of some runs with their rule.

    Nothing changes in `state`: attackers ask the same as the server.
    """
    rule = stack.runs[numbers[0]].rule
    assumed = [participants.num_byzantine_assumed[k] for k in numbers]
    if rule.has_memory or rule.needs_reference:
        found = [
            _ask_one(
                rule,
                gradients[row],
                assumed[row],
                seeds[row],
                {
                    "clients": participants.clients[k],
                    "reference": updates.references[k],
                    "state": state.rule_states[k] if state.rule_states else None,
                },
            )
            for row, k in enumerate(numbers)
        ]
        return Aggregated(
            *(torch.cat(parts) for parts in zip(*(one[:4] for one in found), strict=True)),
            [one[4] for one in found],
            tuple(one[5] for one in found),
        )
    judged = judge(rule, gradients, num_byzantine=assumed, seeds=seeds)
    return Aggregated(
        judged.updates,
        judged.scores,
        judged.weights,
        judged.is_rejected,
        judged.num_byzantine,
        (None,) * len(numbers),
    )


def _ask_one(rule: Rule, gradients: Tensor, assumed: int, seed: int, info: dict) -> tuple:
    verdict = rule.inspect(
        gradients, num_byzantine=assumed, when_too_many="lower", seed=seed, **info
    )
    is_rejected = torch.tensor([client in verdict.rejected for client in info["clients"]])
    device = gradients.device
    return (
        verdict.update.unsqueeze(0),
        torch.from_numpy(verdict.scores).to(device).unsqueeze(0),
        torch.from_numpy(verdict.weights).to(device).unsqueeze(0),
        is_rejected.to(device).unsqueeze(0),
        verdict.num_byzantine,
        verdict.state,
    )


def _scores(found: Aggregated, rows: Tensor) -> Tensor:
    """Return the rule's own scores; where it has none, the distances to the update."""
    is_missing = found.scores.isinf() & ~found.is_rejected
    scores = found.scores
    for run in is_missing.any(dim=-1).nonzero().flatten().tolist():
        # Run by run: the differences are as large as the gradients.
        apart = rows[run] - found.vector[run]
        far = torch.linalg.vector_norm(apart, dim=-1, dtype=torch.float64)
        scores[run] = torch.where(is_missing[run], far, scores[run])
    return scores
