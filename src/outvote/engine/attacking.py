"""The Byzantine clients of a round replace their gradients."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from outvote.attacks.context import Defence
from outvote.attacks.run_attack import run_attack
from outvote.clients.work import LocalUpdates
from outvote.engine.alike import alike, place
from outvote.engine.asking import ask, is_judged_alone
from outvote.engine.run_stack import Run, RunStack, State
from outvote.engine.sampling import Participants
from outvote.rules.batch import judge


@dataclass(frozen=True, slots=True, eq=False)
class Sent:
    """What the server receives, ``[runs, clients, dim]``, and the states of the attacks."""

    gradients: Tensor
    memory: tuple[Any, ...]


def attack(
    stack: RunStack, state: State, participants: Participants, local_updates: LocalUpdates
) -> Sent:
    """Replace the gradients of the Byzantine clients of every run."""
    num_runs = len(stack.runs)
    learnt_rows = local_updates.gradients.view(num_runs, -1, local_updates.gradients.shape[-1])
    rows = learnt_rows
    memory = list(state.attack_memory or (None,) * num_runs)
    for numbers in alike(stack, _kind):
        first = stack.runs[numbers[0]]
        some = torch.tensor(numbers)
        if not bool(participants.is_byzantine[some].any()):
            continue
        at = place(numbers, rows.device)
        sent, output = run_attack(
            first.attack,
            learnt_rows[at],
            participants.is_byzantine[some].to(rows.device),
            seeds=[
                stack.runs[k].stream(participants.number, "attack").derived()[0] for k in numbers
            ],
            defence=_defence(stack, state, participants, numbers),
            states=[memory[k] for k in numbers],
            round=participants.number,
            clients=torch.tensor([participants.clients[k] for k in numbers], device=rows.device),
        )
        if rows is learnt_rows:
            rows = learnt_rows.clone()
        rows[at] = sent
        for k, after in zip(numbers, output.state, strict=True):
            memory[k] = after
    return Sent(rows, tuple(memory))


def _kind(number: int, run: Run) -> tuple[Any, ...]:
    """Tell runs apart that cannot be attacked together."""
    asked = run.rule if run.attack.needs_rule() else None
    # What is remembered, or trusted, is kept run by run.
    is_own = run.attack.has_state or (asked is not None and is_judged_alone(asked))
    return run.attack, asked, number if is_own else None


def _defence(
    stack: RunStack, state: State, participants: Participants, numbers: list[int]
) -> Defence:
    """Return what attackers believe the server will do; its memory is not theirs to change."""
    rule = stack.runs[numbers[0]].rule

    def together(gradients: Tensor, seeds: Sequence[int]) -> tuple[Tensor, Tensor]:
        num_byzantine_assumed = [participants.num_byzantine_assumed[k] for k in numbers]
        judged = judge(rule, gradients, num_byzantine=num_byzantine_assumed, seeds=seeds)
        return judged.updates, judged.weights > 0

    def alone(gradients: Tensor, seeds: Sequence[int]) -> tuple[Tensor, Tensor]:
        verdict = ask(stack, state, participants, gradients[0], numbers[0], seeds[0])
        kept = torch.from_numpy(verdict.weights > 0).to(gradients.device)
        return verdict.update.unsqueeze(0), kept.unsqueeze(0)

    return alone if is_judged_alone(rule) else together
