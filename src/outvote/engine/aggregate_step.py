"""Steps 4 and 5 of a round: rules aggregate what the server received, and it applies that."""

from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from outvote.engine.run_stack import Participants, RunStack, State, remember_scores
from outvote.ops.process import on_device, plain_torch, run_index
from outvote.rules.aggregate import Batch
from outvote.rules.aggregate import aggregate as aggregate_batch
from outvote.rules.rule import Aggregation, known
from outvote.rules.values import RowFacts, row_facts
from outvote.server.step import merge_buffers, move_buffers, step
from outvote.training.trainer import LocalUpdates


def aggregate(
    stack: RunStack,
    state: State,
    participants: Participants,
    updates: LocalUpdates,
    sent: Tensor,
) -> Aggregation:
    """Aggregate ``sent [runs, clients, dim]``; runs that share a rule are one batch.

    The weights of runs whose rule does not know them are NaN.
    """
    num_runs, num_clients, dim = sent.shape
    vector = sent.new_zeros(num_runs, dim)
    scores = torch.zeros(num_runs, num_clients, dtype=torch.float64, device=sent.device)
    weights = torch.full_like(scores, torch.nan)
    is_rejected = torch.zeros(num_runs, num_clients, dtype=torch.bool)
    used, states = [0] * num_runs, [None] * num_runs
    # Once for all: each rule would set the precision and take it back.
    with plain_torch(sent.device):
        facts = row_facts(sent)
        for numbers in stack.grouped(lambda _, run: run.rule):
            seeds = stack.seeds_of(numbers, participants.number, "rule")
            at = run_index(numbers, sent.device)
            found = ask_rule(
                stack, state, participants, updates, numbers, sent[at], seeds, facts.of(numbers)
            )
            vector[at] = known(found.vector).to(vector.dtype)
            scores[at], is_rejected[numbers] = known(found.scores), known(found.is_rejected)
            if found.weights is not None:
                weights[at] = found.weights
            for k, number, after in zip(numbers, found.num_byzantine, found.states, strict=True):
                used[k], states[k] = number, after
    return Aggregation(
        vector=vector,
        scores=scores,
        weights=weights,
        is_rejected=is_rejected,
        num_byzantine=tuple(used),
        states=tuple(states),
    )


def ask_rule(
    stack: RunStack,
    state: State,
    participants: Participants,
    updates: LocalUpdates,
    numbers: list[int],
    gradients: Tensor,
    seeds: Sequence[int],
    facts: RowFacts | None = None,
) -> Aggregation:
    """Aggregate ``gradients [runs, clients, dim]`` of some runs that share a rule.

    The server and the attackers who know its rule call this; nothing in `state` changes. `facts`
    are those of the gradients, if they are known.
    """
    rule = stack.runs[numbers[0]].rule
    models = None
    if rule.traits.needs_model:
        parts = (state.weights, state.buffers) if stack.aggregate == "state" else (state.weights,)
        models = torch.cat([part[numbers].to(gradients.dtype) for part in parts], dim=1)
    assumed, clients, references, states, counts = [], [], [], [], []
    for k in numbers:
        assumed.append(participants.num_byzantine_assumed[k])
        clients.append(participants.clients[k])
        references.append(updates.references[k])
        states.append(state.rule_states[k] if state.rule_states else None)
        counts.append(stack.runs[k].sample_counts(participants.clients[k]))
    batch = Batch(
        gradients=gradients,
        num_byzantine=assumed,
        seeds=seeds,
        clients=clients,
        references=references,
        states=states if state.rule_states else None,
        round=participants.number,
        models=models,
        layer_sizes=stack.layer_sizes,
        sample_counts=counts,
        facts=facts,
    )
    return aggregate_batch(rule, batch)


def apply_update(
    stack: RunStack,
    state: State,
    participants: Participants,
    updates: LocalUpdates,
    aggregation: Aggregation,
    attack_states: tuple[Any, ...],
) -> State:
    """Return the state of the runs after the round."""
    vector, rest = known(aggregation.vector).tensor_split([state.weights.shape[1]], dim=1)
    weights, server_state = step(stack.server, state.weights, vector, state.server_state)
    if stack.aggregate == "state":
        buffers = move_buffers(state.buffers, rest, stack.buffer_kinds)
    else:
        buffers = _merged(stack, state, updates, aggregation)
    return replace(
        state,
        round=state.round + 1,
        weights=weights,
        buffers=buffers,
        server_state=server_state,
        attack_states=attack_states,
        rule_states=aggregation.states,
        client_states=updates.client_states,
        selection_states=remember_scores(stack, state, participants, aggregation),
    )


def _merged(
    stack: RunStack, state: State, updates: LocalUpdates, aggregation: Aggregation
) -> Tensor:
    """Merge the buffers of the clients that were kept, of all where that is not known."""
    weights = known(aggregation.weights)
    sent = updates.buffers.view(*weights.shape, -1)
    rules = list(map(attrgetter("rule.traits.selects_clients"), stack.runs))
    selects = on_device(rules, sent.device, torch.bool)
    selects &= ~weights.isnan().any(dim=-1)
    parts = []
    for some in stack.slices():
        parts.append(
            merge_buffers(
                state.buffers[some],
                sent[some],
                weights[some] > 0,
                selects=selects[some],
                kinds=stack.buffer_kinds,
            )
        )
    return torch.cat(parts)
