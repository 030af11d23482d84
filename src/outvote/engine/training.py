"""The clients of all runs train; liars whose attack is one on data train on other labels."""

from dataclasses import replace

import torch
from torch import Tensor

from outvote.clients.batches import draw_batches
from outvote.clients.work import Task, Trained
from outvote.engine.normalisation import LEAST_NORMALISED
from outvote.engine.sampling import Chosen
from outvote.engine.world import Run, State, World


def train(world: World, state: State, chosen: Chosen) -> Trained:
    """Return what every chosen client learnt, one row per client, run by run.

    Liars whose attack does not ask what they would have learnt are spared: their rows are 0.
    """
    places, tasks, who = [], [], []
    for number, clients in enumerate(chosen.clients):
        for place, client in enumerate(clients):
            if must_train(world, chosen, number, place):
                places.append(number * len(clients) + place)
                tasks.append(_task(world, number, chosen.number, client))
                who.append((number, client))
    rate = world.training.learning_rate_at(chosen.number)
    learnt = world.trainer.train(state.weights, state.buffers, tasks, world.training, rate)
    learnt = _with_buffers(world, state, tasks, learnt)
    if world.training.client_momentum > 0:
        learnt = _with_momentum(world, state, who, learnt)
    num_rows = chosen.is_byzantine.numel()
    return learnt if len(places) == num_rows else _spread(learnt, places, num_rows)


def must_train(world: World, chosen: Chosen, number: int, place: int) -> bool:
    """Tell whether it matters what a client learns."""
    is_byzantine = chosen.is_byzantine[number]
    return (
        world.has_normalisation  # Its statistics may be kept with its lie.
        or not bool(is_byzantine[place])
        or bool(is_byzantine.all())
        or world.runs[number].attack.needs_own()
    )


def _spread(learnt: Trained, places: list[int], num_rows: int) -> Trained:
    """Put the rows of those who trained to their places."""
    at = torch.tensor(places, device=learnt.gradients.device)

    def spread(values: Tensor) -> Tensor:
        return values.new_zeros(num_rows, *values.shape[1:]).index_copy_(
            0, at.to(values.device), values
        )

    return replace(
        learnt,
        gradients=spread(learnt.gradients),
        losses=spread(learnt.losses),
        buffers=spread(learnt.buffers),
        num_pictures=spread(learnt.num_pictures),
    )


def _with_momentum(
    world: World, state: State, who: list[tuple[int, int]], learnt: Trained
) -> Trained:
    """Mix what clients learnt with what they sent the last time; the first time there is nothing.

    A client that diverged sends what it has, and forgets it.
    """
    share = world.training.client_momentum
    memory = [dict(known) for known in state.client_memory or ({},) * len(world.runs)]
    rows = learnt.gradients.clone()
    for row, (number, client) in zip(rows, who, strict=True):
        if client in memory[number]:
            row.mul_(1 - share).add_(memory[number][client], alpha=share)
        memory[number].pop(client, None)
        if bool(row.isfinite().all()):
            memory[number][client] = row.clone()
    return replace(learnt, gradients=rows, memory=tuple(memory))


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
    tasks = [Task(number, batches)]
    learnt = world.trainer.train(state.weights, state.buffers, tasks, world.training, rate)
    return _with_buffers(world, state, tasks, learnt).gradients[0]


def _with_buffers(world: World, state: State, tasks: list[Task], learnt: Trained) -> Trained:
    """Count the change of the buffers as coordinates too, if rules are to see the whole state."""
    if world.aggregate == "parameters":
        return learnt
    runs = torch.tensor([task.run for task in tasks], device=state.buffers.device)
    change = (state.buffers[runs] - learnt.buffers).to(learnt.gradients)
    return replace(learnt, gradients=torch.cat([learnt.gradients, change], dim=1))


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
