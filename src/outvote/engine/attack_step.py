"""Step 3 of a round: the Byzantine clients replace their gradients."""

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from outvote.attacks.context import Defence
from outvote.attacks.run_attack import run_attack
from outvote.engine.aggregate_step import apply_rule
from outvote.engine.participants import Participants
from outvote.engine.run_stack import Run, RunStack, State, run_index
from outvote.rules.rule import known
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
        is_byzantine = participants.is_byzantine[torch.tensor(numbers)]
        if not bool(is_byzantine.any()):
            continue
        at = run_index(numbers, honest.device)
        rows, output = run_attack(
            stack.runs[numbers[0]].attack,
            honest[at],
            is_byzantine.to(honest.device),
            seeds=[stack.runs[k].seed_of(participants.number, "attack") for k in numbers],
            defence=_defence(stack, state, participants, updates, numbers),
            states=[states[k] for k in numbers],
            clients=torch.tensor([participants.clients[k] for k in numbers], device=honest.device),
            round=participants.number,
        )
        sent = honest.clone() if sent is honest else sent
        sent[at] = rows
        for k, after in zip(numbers, output.state, strict=True):
            states[k] = after
    return sent, tuple(states)


def _kind(number: int, run: Run) -> Hashable:
    """Return a key that runs share if they can be attacked together; a state is of one run."""
    asked = run.rule if run.attack.needs_rule() else None
    return run.attack, asked, number if run.attack.has_state else None


def _defence(
    stack: RunStack,
    state: State,
    participants: Participants,
    updates: LocalUpdates,
    numbers: list[int],
) -> Defence:
    """Return the server's rule as attackers ask it: with the states and references of the round."""

    def ask_rule(rows: Tensor, seeds: Sequence[int]) -> tuple[Tensor, Tensor | None]:
        found = apply_rule(stack, state, participants, updates, numbers, rows, seeds)
        is_known = found.weights is not None and not bool(found.weights.isnan().any())
        return known(found.vector), known(found.weights) > 0 if is_known else None

    return ask_rule
