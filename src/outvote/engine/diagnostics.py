"""Diagnostics of a round, for runs that want them: they cost a pass over honest samples."""

from dataclasses import dataclass, replace
from math import sqrt
from typing import final

import torch
from torch import Tensor

from outvote.engine.local_updates import batches_of
from outvote.engine.run_stack import Participants, RunStack, State
from outvote.metrics.certificate import bound_factor, certificate
from outvote.metrics.passes import ClientPass, LocalPass, compare_clients, measure_theory
from outvote.metrics.theory import GASBound, squared_rule_bound
from outvote.ops.process import plain_torch
from outvote.results.round import Diagnostics, Theory
from outvote.rules.client_matrix import ClientMatrix
from outvote.rules.gas import GAS
from outvote.rules.groups import Groups
from outvote.rules.resilience import resilience
from outvote.rules.rule import Aggregation, RoundInfo, Rule, known
from outvote.seeding import RandomStream
from outvote.training.batches import Batches
from outvote.training.trainer import ClientTask, LocalUpdates

# Each has a gradient of its own.
BATCHES_AT_ONCE = 8


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RuleInput:
    """The input of a rule in a round of one run, and the truth about its clients."""

    rule: Rule
    seed: int
    rows: Tensor
    """``[clients, dim]``: the gradients of honest clients, 0 for Byzantine ones; none rejected."""
    is_honest: Tensor
    num_byzantine: int
    """How many of them the rule took for Byzantine."""
    num_kept_byzantine: int
    layer_sizes: tuple[int, ...] | None = None


def diagnose(
    stack: RunStack,
    before: State,
    after: State,
    participants: Participants,
    updates: LocalUpdates,
    aggregation: Aggregation,
) -> list[tuple[Diagnostics | None, Theory | None]]:
    """Diagnose a round of every run, and measure the theory where that is wanted."""
    found: list[tuple[Diagnostics | None, Theory | None]] = []
    for number in range(len(stack.runs)):
        passes = client_passes(stack, before, participants, number)
        given = _rule_input(stack, participants, updates, aggregation, number)
        with plain_torch(given.rows.device):
            diagnostics = diagnose_rule(given, compare_clients(passes))
        theory = None
        if stack.has_theory:
            later = client_passes(stack, after, participants, number)
            moved = before.weights[number].double() - after.weights[number].double()
            rate = stack.training.learning_rate_at(participants.number)
            theory = measure_theory(passes, later, moved, rate)
            theory = with_bounds(theory, given, diagnostics)
        found.append((diagnostics, theory))
    return found


def client_passes(
    stack: RunStack, state: State, participants: Participants, number: int
) -> list[ClientPass]:
    """Return the passes of the honest clients of a run over their samples, at some weights."""
    return [
        found
        for client, is_byzantine in zip(
            participants.clients[number], participants.is_byzantine[number].tolist(), strict=True
        )
        if not is_byzantine
        and (found := _pass_of(stack, state, number, participants.number, client)) is not None
    ]


def _pass_of(stack: RunStack, state: State, number: int, at: int, client: int) -> ClientPass | None:
    """Return a client's gradient over all its samples, and the noise of its batches.

    At the weights before the round: each batch is one plain step of length 1 from there.
    """
    run = stack.runs[number]
    plain = replace(
        stack.training,
        momentum=0.0,
        weight_decay=0.0,
        proximal=0.0,
        max_norm=None,
        num_epochs=1,
        num_steps=None,
        augment=False,
    )
    stream = run.stream(at, client, "diagnostics")
    batches = batches_of(stack, run.federation.parts[client], stream, plain)
    if batches.num_steps == 0:
        return None
    sums = LocalPass(state.weights[number])
    for start in range(0, batches.num_steps, BATCHES_AT_ONCE):
        some = slice(start, start + BATCHES_AT_ONCE)
        sizes = batches.sizes[some]
        tasks = [
            ClientTask(number, Batches(index.unsqueeze(0), [size]))
            for index, size in zip(batches.index[some], sizes, strict=True)
        ]
        updates = stack.trainer.train(state.weights, state.buffers, tasks, plain, 1.0)
        losses = updates.losses.tolist()
        for gradient, loss, size in zip(updates.gradients, losses, sizes, strict=True):
            sums.add(gradient, size, loss)
    return ClientPass(sums.mean.to(state.weights.dtype), sums.noise, sums.loss)


def _rule_input(
    stack: RunStack,
    participants: Participants,
    updates: LocalUpdates,
    aggregation: Aggregation,
    number: int,
) -> RuleInput:
    is_kept = known(aggregation.weights)[number] > 0
    is_byzantine = participants.is_byzantine[number].to(is_kept.device)
    is_received = ~known(aggregation.is_rejected)[number].to(is_kept.device)
    num_rejected = int((~is_received).sum())
    rows = updates.gradients.view(len(stack.runs), len(is_received), -1)[number]
    # As many rows as the rule aggregated: on a GPU, a split depends on their number.
    rows = torch.where(is_byzantine.unsqueeze(-1), 0, rows)[is_received]
    return RuleInput(
        rule=stack.runs[number].rule,
        seed=stack.runs[number].seed_of(participants.number, "rule"),
        rows=rows,
        is_honest=~is_byzantine[is_received],
        num_byzantine=max(0, aggregation.num_byzantine[number] - num_rejected),
        num_kept_byzantine=int((is_kept & is_byzantine).sum()),
        layer_sizes=stack.layer_sizes,
    )


def diagnose_rule(given: RuleInput, clients: Diagnostics) -> Diagnostics:
    """Add the diagnostics of the gradients and the rule to those of the clients."""
    if not bool(given.is_honest.any()):
        return clients
    diameter = _sum_of_diameters(ClientMatrix.from_rows(given.rows.unsqueeze(0)), given.is_honest)
    found = replace(clients, honest_diameter=diameter)
    if isinstance(given.rule, GAS):
        return _diagnose_gas(given, given.rule, diameter, found)
    num_clients, dim = given.rows.shape
    constant = resilience(given.rule, num_clients, given.num_byzantine, dim).constant
    return replace(found, resilience=constant)


def _diagnose_gas(given: RuleInput, gas: GAS, diameter: float, found: Diagnostics) -> Diagnostics:
    groups = groups_of(given, gas)
    num_clients, f = len(given.rows), given.num_byzantine
    constant = resilience(gas.rule, num_clients, f, groups.split.largest_width).constant
    if constant is None:
        return found
    factor = bound_factor(num_clients, f, groups.num_groups, constant)
    found = replace(found, resilience=constant, bound_factor=factor)
    num_honest = int(given.is_honest.sum())
    if num_honest != num_clients - f:
        return found  # The bound is for as many kept clients as there are honest ones.
    diameters = [_sum_of_diameters(some, given.is_honest) for some in groups.chunks()]
    limit = certificate(given.num_kept_byzantine, num_honest, diameter, sum(diameters), constant)
    return replace(found, certificate=limit)


def groups_of(given: RuleInput, gas: GAS) -> Groups:
    """Return the groups that were used: they depend on the seed alone."""
    info = RoundInfo(
        num_byzantine=given.num_byzantine,
        stream=RandomStream((given.seed,)),
        layer_sizes=given.layer_sizes,
    )
    return ClientMatrix.from_rows(given.rows.unsqueeze(0)).split(gas.split, gas.num_groups, info)


def _sum_of_diameters(matrix: ClientMatrix, is_honest: Tensor) -> float:
    """Return the largest distance between honest clients, summed over the groups."""
    is_pair = is_honest.unsqueeze(-1) & is_honest
    squared = torch.where(is_pair, matrix.squared_distances.double(), 0)
    return float(squared.amax(dim=(-2, -1)).clamp(min=0).sqrt().sum())


def with_bounds(theory: Theory, given: RuleInput, found: Diagnostics) -> Theory:
    """Add the bounds on the deviation, where the server assumes the true number."""
    num_clients, f = len(given.rows), given.num_byzantine
    if found.resilience is None or found.kappa is None or found.sigma is None:
        return theory
    if int(given.is_honest.sum()) != num_clients - f:
        return theory
    if not isinstance(given.rule, GAS):
        bound = squared_rule_bound(num_clients, f, found.resilience, found.kappa, found.sigma)
        return replace(theory, deviation_bound=sqrt(bound))
    gas = GASBound(
        num_clients=num_clients,
        num_byzantine=f,
        num_groups=groups_of(given, given.rule).num_groups,
        resilience=found.resilience,
        kappa=found.kappa,
        sigma=found.sigma,
    )
    return replace(
        theory,
        deviation_bound=sqrt(gas.squared_deviation),
        printed_bound=sqrt(gas.squared_printed_deviation),
    )
