"""The server applies the updates."""

from dataclasses import replace

import torch
from torch import Tensor

from outvote.clients.work import Trained
from outvote.engine.alike import pieces
from outvote.engine.attacking import Sent
from outvote.engine.judging import Judged
from outvote.engine.world import State, World
from outvote.server.buffers import merge_buffers, move_buffers
from outvote.server.step import step


def serve(world: World, state: State, learnt: Trained, sent: Sent, judged: Judged) -> State:
    """Return where the runs stand after the round."""
    dim = state.weights.shape[1]
    updates, rest = judged.updates[:, :dim], judged.updates[:, dim:]
    weights, velocity = step(world.server, state.weights, updates, state.velocity)
    if world.aggregate == "state":
        buffers = move_buffers(state.buffers, rest, world.is_counter, world.is_variance)
    else:
        buffers = _merged(world, learnt, judged)
    return replace(
        state,
        round=state.round + 1,
        weights=weights,
        buffers=buffers,
        velocity=velocity,
        attack_memory=sent.memory,
        rule_memory=judged.memory,
        client_memory=learnt.memory,
    )


def _merged(world: World, learnt: Trained, judged: Judged) -> Tensor:
    """Merge the buffers of the clients that were kept."""
    num_runs, num_clients = judged.weights.shape
    sent = learnt.buffers.view(num_runs, num_clients, -1)
    selects = torch.tensor([run.rule.is_selecting() for run in world.runs], device=sent.device)
    parts = [
        merge_buffers(
            sent[some],
            judged.weights[some] > 0,
            selects=selects[some],
            is_counter=world.is_counter,
        )
        for some in pieces(world)
    ]
    return torch.cat(parts)
