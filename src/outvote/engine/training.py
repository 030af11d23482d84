"""The clients of all runs train; liars whose attack is one on data train on other labels."""

from dataclasses import replace

import torch
from torch import Tensor

from outvote.clients.batches import draw_batches
from outvote.clients.work import LocalUpdates, Task
from outvote.engine.normalisation import LEAST_NORMALISED
from outvote.engine.run_stack import Run, RunStack, State
from outvote.engine.sampling import Participants


def train(stack: RunStack, state: State, participants: Participants) -> LocalUpdates:
    """Return what every participants client local_updates, one row per client, run by run.

    Liars whose attack does not ask what they would have local_updates are spared: their rows are 0.
    """
    places, tasks, who = [], [], []
    for number, clients in enumerate(participants.clients):
        for place, client in enumerate(clients):
            if must_train(stack, participants, number, place):
                places.append(number * len(clients) + place)
                tasks.append(_task(stack, number, participants.number, client))
                who.append((number, client))
    rate = stack.training.learning_rate_at(participants.number)
    local_updates = stack.trainer.train(state.weights, state.buffers, tasks, stack.training, rate)
    local_updates = _with_buffers(stack, state, tasks, local_updates)
    if stack.training.client_momentum > 0:
        local_updates = _with_momentum(stack, state, who, local_updates)
    num_rows = participants.is_byzantine.numel()
    return local_updates if len(places) == num_rows else _spread(local_updates, places, num_rows)


def must_train(stack: RunStack, participants: Participants, number: int, place: int) -> bool:
    """Tell whether it matters what a client learns."""
    is_byzantine = participants.is_byzantine[number]
    return (
        stack.has_normalisation  # Its statistics may be kept with its lie.
        or not bool(is_byzantine[place])
        or bool(is_byzantine.all())
        or stack.runs[number].attack.needs_own()
    )


def _spread(local_updates: LocalUpdates, places: list[int], num_rows: int) -> LocalUpdates:
    """Put the rows of those who trained to their places."""
    at = torch.tensor(places, device=local_updates.gradients.device)

    def spread(values: Tensor) -> Tensor:
        return values.new_zeros(num_rows, *values.shape[1:]).index_copy_(
            0, at.to(values.device), values
        )

    return replace(
        local_updates,
        gradients=spread(local_updates.gradients),
        losses=spread(local_updates.losses),
        buffers=spread(local_updates.buffers),
        num_samples=spread(local_updates.num_samples),
    )


def _with_momentum(
    stack: RunStack, state: State, who: list[tuple[int, int]], local_updates: LocalUpdates
) -> LocalUpdates:
    """Mix what clients local_updates with what they sent the last time; the first time there is nothing.

    A client that diverged sends what it has, and forgets it.
    """
    share = stack.training.client_momentum
    memory = [dict(known) for known in state.client_memory or ({},) * len(stack.runs)]
    rows = local_updates.gradients.clone()
    for row, (number, client) in zip(rows, who, strict=True):
        if client in memory[number]:
            row.mul_(1 - share).add_(memory[number][client], alpha=share)
        memory[number].pop(client, None)
        if bool(row.isfinite().all()):
            memory[number][client] = row.clone()
    return replace(local_updates, gradients=rows, memory=tuple(memory))


def train_server(stack: RunStack, state: State, number: int, at: int) -> Tensor:
    """Return what the server learns from samples of its own: the gradient that it trusts."""
    run = stack.runs[number]
    if run.root is None:
        raise ValueError(
            f"{run.rule} needs samples of the server's own, got none; set the size of the root "
            "data."
        )
    least = LEAST_NORMALISED if stack.has_normalisation else 1
    batches = draw_batches(run.root, stack.training, run.stream(at, "server"), least)
    rate = stack.training.learning_rate_at(at)
    tasks = [Task(number, batches)]
    local_updates = stack.trainer.train(state.weights, state.buffers, tasks, stack.training, rate)
    return _with_buffers(stack, state, tasks, local_updates).gradients[0]


def _with_buffers(
    stack: RunStack, state: State, tasks: list[Task], local_updates: LocalUpdates
) -> LocalUpdates:
    """Count the change of the buffers as coordinates too, if rules are to see the whole state."""
    if stack.aggregate == "parameters":
        return local_updates
    runs = torch.tensor([task.run for task in tasks], device=state.buffers.device)
    change = (state.buffers[runs] - local_updates.buffers).to(local_updates.gradients)
    return replace(local_updates, gradients=torch.cat([local_updates.gradients, change], dim=1))


def _task(stack: RunStack, number: int, at: int, client: int) -> Task:
    run = stack.runs[number]
    least = LEAST_NORMALISED if stack.has_normalisation else 1
    part = run.federation.parts[client]
    batches = draw_batches(part, stack.training, run.stream(at, client), least)
    return Task(number, batches, _label_map(run, client, stack.num_classes))


def _label_map(run: Run, client: int, num_classes: int) -> Tensor | None:
    if not run.federation.is_byzantine[client]:
        return None
    labels = run.attack.label_map(num_classes)
    return None if labels is None else torch.tensor(labels)
