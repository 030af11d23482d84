"""Step 5 of a round: the server applies the updates."""

from dataclasses import replace
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from outvote.engine.run_stack import Participants, RunStack, State, remember_scores
from outvote.ops.process import on_device
from outvote.rules.rule import Aggregation, known
from outvote.server.step import merge_buffers, move_buffers, step
from outvote.training.trainer import LocalUpdates


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
