"""The liars of a round replace what they local_updates by what they send."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from outvote.attacks.batch import BatchDefence, corrupt
from outvote.clients.work import LocalUpdates
from outvote.engine.alike import alike, place
from outvote.engine.asking import ask, is_judged_alone
from outvote.engine.run_stack import Run, RunStack, State
from outvote.engine.sampling import Participants
from outvote.rules.rule import known


@dataclass(frozen=True, slots=True, eq=False)
class Sent:
    """What the server receives, ``[runs, clients, dim]``, and what liars remember."""

    gradients: Tensor
    memory: tuple[Any, ...]


def attack(
    stack: RunStack, state: State, participants: Participants, local_updates: LocalUpdates
) -> Sent:
    """Let the liars of every run send what their attack makes of the round."""
    num_runs = len(stack.runs)
    learnt_rows = local_updates.gradients.view(num_runs, -1, local_updates.gradients.shape[-1])
    rows = learnt_rows
    memory = list(state.attack_memory or (None,) * num_runs)
    for numbers in alike(stack, _kind):
        first = stack.runs[numbers[0]]
        some = torch.tensor(numbers)
        if first.attack.is_data_attack or not bool(participants.is_byzantine[some].any()):
            continue
        at = place(numbers, rows.device)
        found = corrupt(
            first.attack,
            learnt_rows[at],
            participants.is_byzantine[some].to(rows.device),
            seeds=[
                stack.runs[k].stream(participants.number, "attack").derived()[0] for k in numbers
            ],
            defence=_defence(stack, state, participants, numbers),
            state=memory[numbers[0]] if first.attack.has_memory else None,
            clients=torch.tensor([participants.clients[k] for k in numbers], device=rows.device),
        )
        if rows is learnt_rows:
            rows = learnt_rows.clone()
        rows[at] = found.gradients
        for k in numbers:
            memory[k] = found.state
    return Sent(rows, tuple(memory))


def _kind(number: int, run: Run) -> tuple[Any, ...]:
    """Tell runs apart that cannot be attacked together."""
    asked = run.rule if run.attack.needs_rule() else None
    # What is remembered, or trusted, is kept run by run.
    is_own = run.attack.has_memory or (asked is not None and is_judged_alone(asked))
    return run.attack, asked, number if is_own else None


def _defence(
    stack: RunStack, state: State, participants: Participants, numbers: list[int]
) -> BatchDefence:
    """Return what attackers believe the server will do; its memory is not theirs to change."""

    def answer(gradients: Tensor, seeds: Sequence[int]) -> tuple[Tensor, Tensor]:
        found = ask(stack, state, participants, gradients, numbers, seeds)
        weights = (
            gradients.new_zeros(gradients.shape[:2]) if found.weights is None else found.weights
        )
        return known(found.vector), weights > 0

    return answer
