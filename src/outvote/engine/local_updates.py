"""Step 2 of a round: the clients train, and the server too where a rule needs a reference."""

from dataclasses import replace
from functools import partial
from itertools import repeat

import torch
from torch import Tensor

from outvote.attacks.attack import Attack
from outvote.attacks.run_attack import poison_batch
from outvote.engine.run_stack import Participants, RunStack, State
from outvote.ops.process import on_device
from outvote.seeding import RandomStream
from outvote.server.step import buffer_changes
from outvote.training.batches import MIN_BATCH, Batches, draw_batches
from outvote.training.local_sgd import LocalSGD
from outvote.training.trainer import ClientTask, LocalUpdates

Sender = tuple[int, int, bool]
"""A client of a round: the number of its run, its id, and whether it trains."""


def local_updates(stack: RunStack, state: State, participants: Participants) -> LocalUpdates:
    """Train the clients of every run; the rows are ordered by run, then by position.

    Byzantine clients whose attack ignores their own gradients do not train: their rows are 0.
    The reference gradients of a round are trained here, once.
    """
    senders: list[Sender] = []
    for run, clients in enumerate(participants.clients):
        trains = who_trains(stack, participants, run)
        senders += zip(repeat(run), clients, trains, strict=False)
    tasks, rooted = _client_tasks(stack, participants.number, senders), []
    for run, each in enumerate(stack.runs):
        if each.rule.traits.needs_reference:
            rooted.append(run)
            tasks.append(_server_task(stack, run, participants.number))
    rate = stack.training.learning_rate_at(participants.number)
    trained = stack.trainer.train(state.weights, state.buffers, tasks, stack.training, rate)
    if stack.aggregate == "state":
        trained = _with_buffers(state, tasks, trained)
    num, references = len(senders), [None] * len(stack.runs)
    for run, reference in zip(rooted, trained.gradients[num:], strict=True):
        references[run] = reference
    found = replace(
        trained,
        gradients=trained.gradients[:num],
        losses=trained.losses[:num],
        buffers=trained.buffers[:num],
        num_samples=trained.num_samples[:num],
        references=tuple(references),
    )
    if stack.training.client_momentum > 0:
        found = _with_momentum(stack, state, senders, found)
    return found


def who_trains(stack: RunStack, participants: Participants, number: int) -> list[bool]:
    """Return for each client of a run whether its gradient is needed."""
    is_honest = (~participants.is_byzantine[number]).tolist()
    everybody = (
        stack.has_buffers  # Their statistics may be kept with the rows that they send.
        or not any(is_honest)
        or stack.runs[number].attack.needs_own()
    )
    return [True] * len(is_honest) if everybody else is_honest


def batches_of(stack: RunStack, part: Tensor, stream: RandomStream, training: LocalSGD) -> Batches:
    """Draw the batches of some samples; batch normalisation needs two samples in each."""
    return draw_batches(part, training, stream, MIN_BATCH if stack.has_batch_norm else 1)


def _client_tasks(stack: RunStack, at: int, senders: list[Sender]) -> list[ClientTask]:
    """Return the tasks of a round; runs with one seed and the same samples share their batches.

    Trainers write a row for every task; that of a task without a batch is 0.
    """
    nothing = Batches(torch.empty(0, stack.training.batch_size, dtype=torch.int64), [])
    drawn: dict[tuple[int, int], tuple[Tensor, Batches, int]] = {}
    tasks = []
    for number, client, trains in senders:
        if not trains:
            tasks.append(ClientTask(number, nothing))
            continue
        run = stack.runs[number]
        part, key = run.federation.parts[client], (run.seed, client)
        if key not in drawn or not torch.equal(part, drawn[key][0]):
            stream = run.stream(at, client)
            batches = batches_of(stack, part, stream, stack.training)
            drawn[key] = part, batches, stream.fold_in("model").derived()[0]
        tasks.append(_client_task(stack, number, client, *drawn[key][1:]))
    return tasks


def _client_task(
    stack: RunStack, number: int, client: int, batches: Batches, seed: int
) -> ClientTask:
    run = stack.runs[number]
    if not run.federation.is_byzantine[client] or not run.attack.poisons_data:
        return ClientTask(number, batches, seed=seed)
    if stack.num_classes is None:
        raise ValueError(
            f"{run.attack} changes class labels, and the targets are not classes; choose an "
            "attack on gradients."
        )
    if type(run.attack).poison is not Attack.poison:
        poison = partial(poison_batch, run.attack, num_classes=stack.num_classes)
        return ClientTask(number, batches, poison=poison, seed=seed)
    # A label map is all that the default `poison` applies: no call per batch is needed.
    labels = run.attack.label_map(stack.num_classes)
    label_map = None if labels is None else torch.tensor(labels)
    return ClientTask(number, batches, label_map, seed=seed)


def _server_task(stack: RunStack, number: int, at: int) -> ClientTask:
    """Return the training of the server on samples of its own."""
    run = stack.runs[number]
    if run.root is None:
        raise ValueError(
            f"{run.rule} needs samples of the server's own, got none; set the size of the root "
            "data."
        )
    stream = run.stream(at, "server")
    batches = batches_of(stack, run.root, stream, stack.training)
    return ClientTask(number, batches, seed=stream.fold_in("model").derived()[0])


def _with_buffers(state: State, tasks: list[ClientTask], updates: LocalUpdates) -> LocalUpdates:
    """Append the change of the buffers to the gradients: rules aggregate the whole state."""
    runs = on_device([task.run for task in tasks], state.buffers.device)
    change = buffer_changes(state.buffers[runs], updates.buffers).to(updates.gradients)
    return replace(updates, gradients=torch.cat([updates.gradients, change], dim=1))


def _with_momentum(
    stack: RunStack, state: State, senders: list[Sender], updates: LocalUpdates
) -> LocalUpdates:
    """Mix each gradient with the one that the client sent last, if any.

    A client that diverged sends what it has, and starts anew the next time.
    """
    share = stack.training.client_momentum
    before: tuple[dict[int, Tensor], ...] = state.client_states or ({},) * len(stack.runs)
    states = [dict(known) for known in before]
    rows = updates.gradients.clone()
    for row, (run, client, trains) in zip(rows, senders, strict=True):
        if not trains:
            continue
        last = states[run].pop(client, None)
        if last is not None:
            row.mul_(1 - share).add_(last, alpha=share)
        if bool(row.isfinite().all()):
            states[run][client] = row.clone()
    return replace(updates, gradients=rows, client_states=tuple(states))
