"""Step 3 of a round: the Byzantine clients replace their gradients."""

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from outvote.attacks.context import Defence, Positions
from outvote.attacks.run_attack import craft_rows
from outvote.engine.aggregate_step import ask_rule
from outvote.engine.run_stack import Participants, Run, RunStack, State
from outvote.ops.process import on_device, run_index
from outvote.rules.rule import known
from outvote.training.trainer import LocalUpdates


def attack(
    stack: RunStack, state: State, participants: Participants, updates: LocalUpdates
) -> tuple[Tensor, tuple[Any, ...]]:
    """Return the gradients that the server receives ``[runs, clients, dim]``, and attack states.

    They take the place of the Byzantine rows of `updates`, where nobody reads these afterwards.
    """
    num_runs = len(stack.runs)
    honest = updates.gradients.view(num_runs, -1, updates.gradients.shape[-1])
    # What Byzantine clients would have sent is read later: as the honest mean of the record where
    # all are Byzantine, and by a state, which may be a view of it.
    is_read_later = bool(participants.is_byzantine.all(dim=-1).any())
    for run in stack.runs:
        is_read_later |= run.attack.has_state
    sent = honest.clone() if is_read_later else honest
    states = list(state.attack_states or (None,) * num_runs)
    for numbers in stack.grouped(_kind):
        is_byzantine = participants.is_byzantine[torch.tensor(numbers)]
        if not bool(is_byzantine.any()):
            continue
        output = craft_rows(
            stack.runs[numbers[0]].attack,
            honest[run_index(numbers, honest.device)],
            is_byzantine,
            seeds=stack.seeds_of(numbers, participants.number, "attack"),
            defence=_defence(stack, state, participants, updates, numbers),
            states=list(map(states.__getitem__, numbers)),
            clients=on_device(list(map(participants.clients.__getitem__, numbers)), honest.device),
            round=participants.number,
        )
        Positions(is_byzantine).put(output.rows, sent, numbers)
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

    def ask(rows: Tensor, seeds: Sequence[int]) -> tuple[Tensor, Tensor | None]:
        found = ask_rule(stack, state, participants, updates, numbers, rows, seeds)
        is_known = found.weights is not None and not bool(found.weights.isnan().any())
        return known(found.vector), known(found.weights) > 0 if is_known else None

    return ask
