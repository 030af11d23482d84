"""Step 1 of a round: sample the clients that take part; at its end, remember their scores."""

from dataclasses import dataclass

import torch
from torch import Tensor

from outvote.engine.federation import sample_clients
from outvote.engine.run_stack import RunStack, State
from outvote.rules.rule import Aggregation, known
from outvote.server.selection import Suspicions


@dataclass(frozen=True, slots=True, eq=False)
class Participants:
    """The clients of a round, for every run."""

    number: int
    """The round, counted from 1."""
    clients: list[list[int]]
    is_byzantine: Tensor
    """``[runs, clients]``"""
    num_byzantine_assumed: list[int]


def sample_participants(stack: RunStack, state: State) -> Participants:
    """Sample the clients of the next round, and set how many Byzantine ones the server assumes."""
    number = state.round + 1
    clients, is_byzantine, assumed = [], [], []
    for run, suspicions in zip(stack.runs, _suspicions(stack, state), strict=True):
        federation = run.federation
        every = range(federation.num_clients)
        weights = run.selection.weights(suspicions, every)
        some = sample_clients(len(every), run.num_sampled, run.stream(), number, weights)
        clients.append(some)
        is_byzantine.append([federation.is_byzantine[k] for k in some])
        assumed.append(run.num_byzantine_assumed(sum(is_byzantine[-1])))
    return Participants(number, clients, torch.tensor(is_byzantine), assumed)


def remember_scores(
    stack: RunStack, state: State, participants: Participants, aggregation: Aggregation
) -> tuple[Suspicions, ...]:
    """Return how suspicious the clients of each run are after the round, see `Selection`."""
    before = _suspicions(stack, state)
    if not any(run.selection.uses_scores for run in stack.runs):
        return before  # Scores stay on the GPU.
    scores = known(aggregation.scores).tolist()
    return tuple(
        run.selection.updated(own, dict(zip(some, each, strict=True)))
        for run, own, some, each in zip(
            stack.runs, before, participants.clients, scores, strict=True
        )
    )


def _suspicions(stack: RunStack, state: State) -> tuple[Suspicions, ...]:
    return tuple(each or {} for each in state.selection_states or (None,) * len(stack.runs))
