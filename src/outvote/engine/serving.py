"""The server applies the updates."""

from dataclasses import replace

import torch
from torch import Tensor

from outvote.clients.work import LocalUpdates
from outvote.engine.alike import pieces
from outvote.engine.attacking import Sent
from outvote.engine.judging import Judged
from outvote.engine.run_stack import RunStack, State
from outvote.server.buffers import merge_buffers, move_buffers
from outvote.server.step import step


def serve(
    stack: RunStack, state: State, local_updates: LocalUpdates, sent: Sent, judged: Judged
) -> State:
    """Return where the runs stand after the round."""
    dim = state.weights.shape[1]
    updates, rest = judged.updates[:, :dim], judged.updates[:, dim:]
    weights, velocity = step(stack.server, state.weights, updates, state.velocity)
    if stack.aggregate == "state":
        buffers = move_buffers(state.buffers, rest, stack.is_counter, stack.is_variance)
    else:
        buffers = _merged(stack, local_updates, judged)
    return replace(
        state,
        round=state.round + 1,
        weights=weights,
        buffers=buffers,
        velocity=velocity,
        attack_memory=sent.memory,
        rule_memory=judged.memory,
        client_memory=local_updates.memory,
    )


def _merged(stack: RunStack, local_updates: LocalUpdates, judged: Judged) -> Tensor:
    """Merge the buffers of the clients that were kept."""
    num_runs, num_clients = judged.weights.shape
    sent = local_updates.buffers.view(num_runs, num_clients, -1)
    selects = torch.tensor(
        [run.rule.traits.selects_clients for run in stack.runs], device=sent.device
    )
    parts = [
        merge_buffers(
            sent[some],
            judged.weights[some] > 0,
            selects=selects[some],
            is_counter=stack.is_counter,
        )
        for some in pieces(stack)
    ]
    return torch.cat(parts)
