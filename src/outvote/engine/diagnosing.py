"""Diagnostics of a round, for runs that ask for them: they cost a pass over honest samples."""

from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from outvote.clients.batches import Batches, draw_batches
from outvote.clients.work import LocalUpdates, Task
from outvote.engine.judging import Judged, rule_seed
from outvote.engine.normalisation import LEAST_NORMALISED
from outvote.engine.run_stack import RunStack, State
from outvote.engine.sampling import Participants
from outvote.metrics.diagnostics import (
    Diagnostics,
    LocalPass,
    bound_factor,
    certificate,
    heterogeneity,
)
from outvote.precision import plain_torch
from outvote.rules.client_matrix import ClientMatrix
from outvote.rules.gas import GAS
from outvote.rules.groups import Groups
from outvote.rules.resilience import resilience
from outvote.rules.rule import RoundInfo, Rule
from outvote.rules.split import Split
from outvote.seeding import RandomStream

# Each has a gradient of its own.
BATCHES_AT_ONCE = 8


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Seen:
    """What a rule had to judge in a round of one run, as somebody sees it who knows the liars."""

    rule: Rule
    seed: int
    rows: Tensor
    """``[clients, dim]``: what honest clients sent, and zeros for the liars; none was rejected."""
    is_honest: Tensor
    num_byzantine: int
    """How many liars the rule reckoned with among them."""
    num_kept_byzantine: int


def diagnose(
    stack: RunStack,
    state: State,
    participants: Participants,
    local_updates: LocalUpdates,
    judged: Judged,
) -> list[Diagnostics | None]:
    """Diagnose a round of every run; `state` is where the round began."""
    if not stack.has_diagnostics:
        return [None] * len(stack.runs)
    found: list[Diagnostics | None] = []
    for number in range(len(stack.runs)):
        clients = compare_clients(stack, state, participants, number)
        seen = _seen(stack, participants, local_updates, judged, number)
        with plain_torch(seen.rows.device):
            found.append(diagnose_rule(seen, clients))
    return found


def compare_clients(
    stack: RunStack, state: State, participants: Participants, number: int
) -> Diagnostics:
    """Tell how much the honest clients of a run differ, and how much the batches of one do."""
    passes = [
        found
        for client, lies in zip(
            participants.clients[number], participants.is_byzantine[number].tolist(), strict=True
        )
        if not lies
        and (found := _pass_of(stack, state, number, participants.number, client)) is not None
    ]
    if not passes:
        return Diagnostics()
    means, noises = zip(*passes, strict=True)
    return Diagnostics(kappa=heterogeneity(torch.stack(means)), sigma=max(noises))


def _pass_of(
    stack: RunStack, state: State, number: int, at: int, client: int
) -> tuple[Tensor, float] | None:
    """Return a client's gradient over all its samples, and how much those of its batches differ.

    At the weights that the round began with: each batch is one plain step of length 1 from there.
    """
    run = stack.runs[number]
    plain = replace(
        stack.training,
        momentum=0.0,
        weight_decay=0.0,
        max_norm=None,
        num_epochs=1,
        num_steps=None,
        augment=False,
    )
    least = LEAST_NORMALISED if stack.has_normalisation else 1
    stream = run.stream(at, client, "diagnostics")
    batches = draw_batches(run.federation.parts[client], plain, stream, least)
    if batches.num_steps == 0:
        return None
    sums = LocalPass(state.weights[number])
    for start in range(0, batches.num_steps, BATCHES_AT_ONCE):
        some = slice(start, start + BATCHES_AT_ONCE)
        sizes = batches.sizes[some]
        tasks = [
            Task(number, Batches(index.unsqueeze(0), [size]))
            for index, size in zip(batches.index[some], sizes, strict=True)
        ]
        local_updates = stack.trainer.train(state.weights, state.buffers, tasks, plain, 1.0)
        for gradient, size in zip(local_updates.gradients, sizes, strict=True):
            sums.add(gradient, size)
    return sums.mean.to(state.weights.dtype), sums.noise


def _seen(
    stack: RunStack,
    participants: Participants,
    local_updates: LocalUpdates,
    judged: Judged,
    number: int,
) -> Seen:
    is_byzantine = participants.is_byzantine[number].to(judged.weights.device)
    is_judged = ~judged.is_rejected[number]
    num_rejected = int((~is_judged).sum())
    rows = local_updates.gradients.view(len(stack.runs), len(is_judged), -1)[number]
    # As many rows as the rule judged: on a GPU, a split depends on their number.
    rows = torch.where(is_byzantine.unsqueeze(-1), 0, rows)[is_judged]
    return Seen(
        rule=stack.runs[number].rule,
        seed=rule_seed(stack, participants, number),
        rows=rows,
        is_honest=~is_byzantine[is_judged],
        num_byzantine=max(0, judged.num_byzantine_used[number] - num_rejected),
        num_kept_byzantine=int(((judged.weights[number] > 0) & is_byzantine).sum()),
    )


def diagnose_rule(seen: Seen, clients: Diagnostics) -> Diagnostics:
    """Add what is known of the gradients and the rule to what is known of the clients."""
    if not bool(seen.is_honest.any()):
        return clients
    diameter = _sum_of_diameters(ClientMatrix.from_rows(seen.rows.unsqueeze(0)), seen.is_honest)
    found = replace(clients, honest_diameter=diameter)
    if isinstance(seen.rule, GAS):
        return _diagnose_gas(seen, seen.rule, diameter, found)
    num_clients, dim = seen.rows.shape
    return replace(found, resilience=resilience(seen.rule, num_clients, seen.num_byzantine, dim))


def _diagnose_gas(seen: Seen, gas: GAS, diameter: float, found: Diagnostics) -> Diagnostics:
    matrix = ClientMatrix.from_rows(seen.rows.unsqueeze(0))
    groups = groups_of(seen, gas)
    num_clients, f = matrix.num_clients, seen.num_byzantine
    known = resilience(gas.rule, num_clients, f, groups.split.largest_width)
    if known is None:
        return found
    found = replace(
        found,
        resilience=known,
        bound_factor=bound_factor(num_clients, f, groups.num_groups, known),
    )
    num_honest = int(seen.is_honest.sum())
    if num_honest != num_clients - f:
        return found  # Those kept are not as many as the honest: nothing is known of their mean.
    diameters = [_sum_of_diameters(some, seen.is_honest) for some in groups.chunks()]
    limit = certificate(seen.num_kept_byzantine, num_honest, diameter, sum(diameters), known)
    return replace(found, certificate=limit)


def split_of(seen: Seen, gas: GAS) -> Split:
    """Return the split that was used: it depends on the seed alone."""
    return groups_of(seen, gas).split


def groups_of(seen: Seen, gas: GAS) -> Groups:
    """Return the groups that were used."""
    info = RoundInfo(num_byzantine=seen.num_byzantine, stream=RandomStream((seen.seed,)))
    matrix = ClientMatrix.from_rows(seen.rows.unsqueeze(0))
    return matrix.split(gas.split, gas.num_groups, info)


def _sum_of_diameters(matrix: ClientMatrix, is_honest: Tensor) -> float:
    """Return the largest distance between honest clients, added up over the groups."""
    is_pair = is_honest.unsqueeze(-1) & is_honest
    squared = torch.where(is_pair, matrix.squared_distances.double(), 0)
    return float(squared.amax(dim=(-2, -1)).clamp(min=0).sqrt().sum())
