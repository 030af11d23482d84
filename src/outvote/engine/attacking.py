"""The liars of a round replace what they learnt by what they send."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from outvote.attacks.batch import BatchDefence, corrupt
from outvote.clients.work import Trained
from outvote.engine.alike import alike, place
from outvote.engine.asking import ask, is_judged_alone
from outvote.engine.sampling import Chosen
from outvote.engine.world import Run, State, World
from outvote.rules.batch import judge


@dataclass(frozen=True, slots=True, eq=False)
class Sent:
    """What the server receives, ``[runs, clients, dim]``, and what liars remember."""

    gradients: Tensor
    memory: tuple[Any, ...]


def attack(world: World, state: State, chosen: Chosen, learnt: Trained) -> Sent:
    """Let the liars of every run send what their attack makes of the round."""
    num_runs = len(world.runs)
    learnt_rows = learnt.gradients.view(num_runs, -1, learnt.gradients.shape[-1])
    rows = learnt_rows
    memory = list(state.attack_memory or (None,) * num_runs)
    for numbers in alike(world, _kind):
        first = world.runs[numbers[0]]
        some = torch.tensor(numbers)
        if first.attack.is_data_attack or not bool(chosen.is_byzantine[some].any()):
            continue
        at = place(numbers, rows.device)
        found = corrupt(
            first.attack,
            learnt_rows[at],
            chosen.is_byzantine[some].to(rows.device),
            seeds=[world.runs[k].draws(chosen.number, "attack").derived()[0] for k in numbers],
            defence=_defence(world, state, chosen, numbers),
            state=memory[numbers[0]] if first.attack.has_memory else None,
            clients=torch.tensor([chosen.clients[k] for k in numbers], device=rows.device),
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


def _defence(world: World, state: State, chosen: Chosen, numbers: list[int]) -> BatchDefence:
    """Return what attackers believe the server will do; its memory is not theirs to change."""
    rule = world.runs[numbers[0]].rule

    def together(gradients: Tensor, seeds: Sequence[int]) -> tuple[Tensor, Tensor]:
        num_told = [chosen.num_told[k] for k in numbers]
        judged = judge(rule, gradients, num_byzantine=num_told, seeds=seeds)
        return judged.updates, judged.weights > 0

    def alone(gradients: Tensor, seeds: Sequence[int]) -> tuple[Tensor, Tensor]:
        verdict = ask(world, state, chosen, gradients[0], numbers[0], seeds[0])
        kept = torch.from_numpy(verdict.weights > 0).to(gradients.device)
        return verdict.update.unsqueeze(0), kept.unsqueeze(0)

    return alone if is_judged_alone(rule) else together
