"""The rules judge what was sent."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from outvote.engine.alike import alike, place
from outvote.engine.asking import ask, is_judged_alone
from outvote.engine.attacking import Sent
from outvote.engine.run_stack import RunStack, State
from outvote.engine.sampling import Participants
from outvote.rules.batch import Judgement, judge


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """What the rules decided, for all runs."""

    updates: Tensor
    scores: Tensor
    weights: Tensor
    is_rejected: Tensor
    num_byzantine_used: list[int]
    memory: tuple[Any, ...]


def judge_all(stack: RunStack, state: State, participants: Participants, sent: Sent) -> Judged:
    """Let every run's rule judge; runs that share a rule without memory are judged together."""
    num_runs, num_clients, dim = sent.gradients.shape
    device = sent.gradients.device
    result = Judged(
        sent.gradients.new_zeros(num_runs, dim),
        torch.zeros(num_runs, num_clients, dtype=torch.float64, device=device),
        torch.zeros(num_runs, num_clients, dtype=torch.float64, device=device),
        torch.zeros(num_runs, num_clients, dtype=torch.bool, device=device),
        [0] * num_runs,
        state.rule_memory or (None,) * num_runs,
    )
    memory = list(result.memory)
    for numbers in alike(stack, lambda number, run: run.rule):
        if is_judged_alone(stack.runs[numbers[0]].rule):
            for number in numbers:
                memory[number] = _judge_alone(stack, state, participants, sent, number, result)
        else:
            _judge_together(stack, participants, sent, numbers, result)
    return Judged(
        result.updates,
        result.scores,
        result.weights,
        result.is_rejected,
        result.num_byzantine_used,
        tuple(memory),
    )


def _judge_together(
    stack: RunStack, participants: Participants, sent: Sent, numbers: list[int], result: Judged
) -> None:
    at = place(numbers, sent.gradients.device)
    rows = sent.gradients[at]
    found = judge(
        stack.runs[numbers[0]].rule,
        rows,
        num_byzantine=[participants.num_byzantine_assumed[k] for k in numbers],
        seeds=[rule_seed(stack, participants, k) for k in numbers],
    )
    result.updates[at] = found.updates
    result.scores[at] = _scores(found, rows)
    result.weights[at] = found.weights
    result.is_rejected[at] = found.is_rejected
    for k, used in zip(numbers, found.num_byzantine, strict=True):
        result.num_byzantine_used[k] = used


def _scores(found: Judgement, rows: Tensor) -> Tensor:
    """Return the rule's own scores; where it has none, the distances to the update."""
    is_missing = found.scores.isinf() & ~found.is_rejected
    scores = found.scores
    for run in is_missing.any(dim=-1).nonzero().flatten().tolist():
        # Run by run: the differences are as large as the gradients.
        apart = rows[run] - found.updates[run]
        far = torch.linalg.vector_norm(apart, dim=-1, dtype=torch.float64)
        scores[run] = torch.where(is_missing[run], far, scores[run])
    return scores


def _judge_alone(
    stack: RunStack,
    state: State,
    participants: Participants,
    sent: Sent,
    number: int,
    result: Judged,
) -> Any:
    """Judge a run whose rule remembers earlier rounds, or trusts a gradient of the server's own."""
    seed = rule_seed(stack, participants, number)
    verdict = ask(stack, state, participants, sent.gradients[number], number, seed)
    places = {client: k for k, client in enumerate(participants.clients[number])}
    result.updates[number] = verdict.update
    result.scores[number] = torch.from_numpy(verdict.scores).to(result.scores)
    result.weights[number] = torch.from_numpy(verdict.weights).to(result.weights)
    for client in verdict.rejected:
        result.is_rejected[number, places[client]] = True
    result.num_byzantine_used[number] = verdict.num_byzantine
    return verdict.state


def rule_seed(stack: RunStack, participants: Participants, number: int) -> int:
    """Return what a run's rule stream from in a round."""
    return stack.runs[number].stream(participants.number, "rule").derived()[0]
