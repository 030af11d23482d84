"""The rules judge what was sent."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from outvote.engine.alike import alike, place
from outvote.engine.asking import ask
from outvote.engine.attacking import Sent
from outvote.engine.run_stack import RunStack, State
from outvote.engine.sampling import Participants
from outvote.rules.rule import known


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
        at = place(numbers, device)
        seeds = [rule_seed(stack, participants, k) for k in numbers]
        found = ask(stack, state, participants, sent.gradients[at], numbers, seeds)
        result.updates[at] = known(found.vector).to(result.updates.dtype)
        result.scores[at] = known(found.scores)
        result.weights[at] = 0 if found.weights is None else found.weights.nan_to_num(0)
        result.is_rejected[at] = known(found.is_rejected)
        for k, used, own in zip(numbers, found.num_byzantine, found.states, strict=True):
            result.num_byzantine_used[k], memory[k] = used, own
    return replace(result, memory=tuple(memory))


def rule_seed(stack: RunStack, participants: Participants, number: int) -> int:
    """Return what a run's rule stream from in a round."""
    return stack.runs[number].stream(participants.number, "rule").derived()[0]
