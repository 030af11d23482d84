"""Step 5 of a round: the server applies the updates."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from outvote.engine.aggregate_step import Aggregated
from outvote.engine.run_stack import RunStack, State
from outvote.server.buffers import merge_buffers, move_buffers
from outvote.server.step import step
from outvote.training.trainer import LocalUpdates


def apply_update(
    stack: RunStack,
    state: State,
    updates: LocalUpdates,
    aggregation: Aggregated,
    attack_states: tuple[Any, ...],
) -> State:
    """Return the state of the runs after the round."""
    dim = state.weights.shape[1]
    vector, rest = aggregation.vector[:, :dim], aggregation.vector[:, dim:]
    weights, velocity = step(stack.server, state.weights, vector, state.velocity)
    if stack.aggregate == "state":
        buffers = move_buffers(state.buffers, rest, stack.is_counter, stack.is_variance)
    else:
        buffers = _merged(stack, updates, aggregation)
    return replace(
        state,
        round=state.round + 1,
        weights=weights,
        buffers=buffers,
        velocity=velocity,
        attack_states=attack_states,
        rule_states=aggregation.states,
        client_states=updates.client_states,
    )


def _merged(stack: RunStack, updates: LocalUpdates, aggregation: Aggregated) -> Tensor:
    """Merge the buffers of the clients that were kept."""
    num_runs, num_clients = aggregation.weights.shape
    sent = updates.buffers.view(num_runs, num_clients, -1)
    selects = torch.tensor([run.rule.is_selecting() for run in stack.runs], device=sent.device)
    parts = [
        merge_buffers(
            sent[some],
            aggregation.weights[some] > 0,
            selects=selects[some],
            is_counter=stack.is_counter,
        )
        for some in stack.slices()
    ]
    return torch.cat(parts)
