"""The server applies the updates."""

from dataclasses import replace

import torch

from outvote.clients.work import Trained
from outvote.engine.alike import pieces
from outvote.engine.attacking import Sent
from outvote.engine.judging import Judged
from outvote.engine.world import State, World
from outvote.server.buffers import merge_buffers
from outvote.server.step import step


def serve(world: World, state: State, learnt: Trained, sent: Sent, judged: Judged) -> State:
    """Return where the runs stand after the round."""
    weights, velocity = step(world.server, state.weights, judged.updates, state.velocity)
    num_runs, num_clients = judged.weights.shape
    sent_buffers = learnt.buffers.view(num_runs, num_clients, -1)
    selects = torch.tensor([run.rule.is_selecting() for run in world.runs], device=weights.device)
    buffers = [
        merge_buffers(
            sent_buffers[some],
            judged.weights[some] > 0,
            selects=selects[some],
            is_counter=world.is_counter,
        )
        for some in pieces(world)
    ]
    return replace(
        state,
        round=state.round + 1,
        weights=weights,
        buffers=torch.cat(buffers),
        velocity=velocity,
        attack_memory=sent.memory,
        rule_memory=judged.memory,
    )
