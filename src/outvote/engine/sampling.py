"""Who takes part in a round."""

from dataclasses import dataclass

import torch
from torch import Tensor

from outvote.clients.federation import sample_clients
from outvote.engine.run_stack import RunStack


@dataclass(frozen=True, slots=True, eq=False)
class Participants:
    """The clients of a round of every run."""

    number: int
    """The round, counted from 1."""
    clients: list[list[int]]
    is_byzantine: Tensor
    """``[runs, clients]``"""
    num_byzantine_assumed: list[int]


def sample_participants(stack: RunStack, number: int) -> Participants:
    """Draw the clients of a round, and tell the server what it may know of them."""
    clients, liars, told = [], [], []
    for run in stack.runs:
        federation = run.federation
        some = sample_clients(federation.num_clients, run.num_sampled, run.stream(), number)
        lies = [federation.is_byzantine[k] for k in some]
        clients.append(some)
        liars.append(lies)
        told.append(run.num_byzantine_assumed(sum(lies)))
    return Participants(number, clients, torch.tensor(liars), told)
