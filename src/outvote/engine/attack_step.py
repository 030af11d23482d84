"""Step 3 of a round: the Byzantine clients replace their gradients."""

from typing import Any

import torch
from torch import Tensor

from outvote.attacks.batch import corrupt
from outvote.engine.aggregate_step import ask
from outvote.engine.participants import Participants
from outvote.engine.run_stack import Run, RunStack, State, run_index
from outvote.training.trainer import LocalUpdates


def attack(
    stack: RunStack, state: State, participants: Participants, updates: LocalUpdates
) -> tuple[Tensor, tuple[Any, ...]]:
    """Return the gradients that the server receives ``[runs, clients, dim]``, and attack states."""
    num_runs = len(stack.runs)
    honest = updates.gradients.view(num_runs, -1, updates.gradients.shape[-1])
    sent = honest
    states = list(state.attack_states or (None,) * num_runs)
    for numbers in stack.grouped(_kind):
        first = stack.runs[numbers[0]]
        is_byzantine = participants.is_byzantine[torch.tensor(numbers)]
        if first.attack.is_data_attack or not bool(is_byzantine.any()):
            continue
        at = run_index(numbers, honest.device)
        found = corrupt(
            first.attack,
            honest[at],
            is_byzantine.to(honest.device),
            seeds=[stack.runs[k].seed_of(participants.number, "attack") for k in numbers],
            defence=lambda rows, seeds, numbers=numbers: _answer(
                ask(stack, state, participants, updates, numbers, rows, seeds)
            ),
            state=states[numbers[0]] if first.attack.has_memory else None,
            clients=torch.tensor([participants.clients[k] for k in numbers], device=honest.device),
        )
        if sent is honest:
            sent = honest.clone()
        sent[at] = found.gradients
        for k in numbers:
            states[k] = found.state
    return sent, tuple(states)


def _kind(number: int, run: Run) -> tuple[Any, ...]:
    """Tell runs apart that cannot be attacked together."""
    asked = run.rule if run.attack.needs_rule() else None
    # States are kept run by run.
    is_own = run.attack.has_memory
    return run.attack, asked, number if is_own else None


def _answer(found: Any) -> tuple[Tensor, Tensor]:
    return found.vector, found.weights > 0
