"""Step 1 of a round: sample the clients that take part."""

from dataclasses import dataclass

import torch
from torch import Tensor

from outvote.engine.federation import sample_clients
from outvote.engine.run_stack import RunStack


@dataclass(frozen=True, slots=True, eq=False)
class Participants:
    """The clients of a round, for every run."""

    number: int
    """The round, counted from 1."""
    clients: list[list[int]]
    is_byzantine: Tensor
    """``[runs, clients]``"""
    num_byzantine_assumed: list[int]


def sample_participants(stack: RunStack, number: int) -> Participants:
    """Sample the clients of a round, and set how many Byzantine ones the server assumes."""
    clients, is_byzantine, assumed = [], [], []
    for run in stack.runs:
        federation = run.federation
        some = sample_clients(federation.num_clients, run.num_sampled, run.stream(), number)
        clients.append(some)
        is_byzantine.append([federation.is_byzantine[k] for k in some])
        assumed.append(run.num_byzantine_assumed(sum(is_byzantine[-1])))
    return Participants(number, clients, torch.tensor(is_byzantine), assumed)
