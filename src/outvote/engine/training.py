"""The clients of all runs train; liars whose attack is one on data train on other labels."""

import torch
from torch import Tensor

from outvote.clients.batches import draw_batches
from outvote.clients.work import Task, Trained
from outvote.engine.sampling import Chosen
from outvote.engine.world import Run, State, World

# Batch normalisation has no variance of a single picture.
LEAST_NORMALISED = 2


def train(world: World, state: State, chosen: Chosen) -> Trained:
    """Return what every chosen client learnt, one row per client, run by run."""
    tasks = [
        _task(world, number, chosen.number, client)
        for number, clients in enumerate(chosen.clients)
        for client in clients
    ]
    rate = world.training.learning_rate_at(chosen.number)
    return world.trainer.train(state.weights, state.buffers, tasks, world.training, rate)


def train_server(world: World, state: State, number: int, at: int) -> Tensor:
    """Return what the server learns from pictures of its own: the gradient that it trusts."""
    run = world.runs[number]
    if run.root is None:
        raise ValueError(
            f"{run.rule} needs pictures of the server's own, got none; set the size of the root "
            "data."
        )
    least = LEAST_NORMALISED if world.has_normalisation else 1
    batches = draw_batches(run.root, world.training, run.draws(at, "server"), least)
    rate = world.training.learning_rate_at(at)
    learnt = world.trainer.train(
        state.weights, state.buffers, [Task(number, batches)], world.training, rate
    )
    return learnt.gradients[0]


def _task(world: World, number: int, at: int, client: int) -> Task:
    run = world.runs[number]
    least = LEAST_NORMALISED if world.has_normalisation else 1
    part = run.federation.parts[client]
    batches = draw_batches(part, world.training, run.draws(at, client), least)
    return Task(number, batches, _label_map(run, client, world.num_classes))


def _label_map(run: Run, client: int, num_classes: int) -> Tensor | None:
    if not run.federation.is_byzantine[client]:
        return None
    labels = run.attack.label_map(num_classes)
    return None if labels is None else torch.tensor(labels)
