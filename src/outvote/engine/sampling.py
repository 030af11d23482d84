"""Who takes part in a round."""

from dataclasses import dataclass

import torch
from torch import Tensor

from outvote.clients.federation import sample_clients
from outvote.engine.world import World


@dataclass(frozen=True, slots=True, eq=False)
class Chosen:
    """The clients of a round of every run."""

    number: int
    """The round, counted from 1."""
    clients: list[list[int]]
    is_byzantine: Tensor
    """``[runs, clients]``"""
    num_told: list[int]


def choose_clients(world: World, number: int) -> Chosen:
    """Draw the clients of a round, and tell the server what it may know of them."""
    clients, liars, told = [], [], []
    for run in world.runs:
        federation = run.federation
        some = sample_clients(federation.num_clients, run.num_sampled, run.draws(), number)
        lies = [federation.is_byzantine[k] for k in some]
        clients.append(some)
        liars.append(lies)
        told.append(run.num_told(sum(lies)))
    return Chosen(number, clients, torch.tensor(liars), told)
