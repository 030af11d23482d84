"""What a trainer takes and returns: one task per client, one row per task."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from outvote.training.batches import Batches
from outvote.training.local_sgd import LocalSGD
from outvote.training.objective import Score, Strata
from outvote.training.samples import Samples


@dataclass(frozen=True, slots=True, eq=False)
class ClientTask:
    """The training of one client in one round."""

    run: int
    batches: Batches
    label_map: Tensor | None = None
    """The label that each class is trained as; None: its own."""
    poison: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None
    """What a data attack trains on instead of a batch of samples (the first argument of the model,
    ``[batch, ...]``) and targets; None: the batch itself."""
    seed: int = 0
    """Of what the model draws while it trains, such as the masks of dropout."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LocalUpdates:
    """The results of local training, one row per client."""

    gradients: Tensor
    """The weights before training minus the weights after, ``[clients, dim]``."""
    losses: Tensor
    """The mean loss over the steps; 0 where there was none."""
    buffers: Tensor
    """Running statistics after training, ``[clients, buffers]``; float64 holds counters too."""
    num_samples: Tensor
    """How many samples each client trained on; 0: too few for a batch, or it need not train."""
    client_states: tuple[Any, ...] = ()
    """With client momentum: for each run, the gradient that each client sent last."""
    references: tuple[Tensor | None, ...] = ()
    """For each run, the server's reference gradient; None where its rule needs none."""


TrainOne = Callable[[ClientTask, Tensor, Tensor, LocalSGD, float, Tensor, Tensor], float]
"""Trains one task from weights and buffers, fills its gradient and buffers, returns its loss."""


def train_each(
    train_one: TrainOne,
    weights: Tensor,
    buffers: Tensor,
    tasks: Sequence[ClientTask],
    training: LocalSGD,
    learning_rate: float,
) -> LocalUpdates:
    """Train one task after the other."""
    gradients = weights.new_empty(len(tasks), weights.shape[1])
    after = buffers.new_empty(len(tasks), buffers.shape[1])
    losses = []
    for task, *out in zip(tasks, gradients, after, strict=True):
        start = weights[task.run], buffers[task.run]
        losses.append(train_one(task, *start, training, learning_rate, *out))
    return LocalUpdates(
        gradients=gradients,
        losses=torch.tensor(losses, dtype=torch.float64),
        buffers=after,
        num_samples=count_samples(tasks),
    )


def keep_idle(
    buffers: Tensor, tasks: Sequence[ClientTask], gradients: Tensor, after: Tensor
) -> list[int]:
    """Write the rows of the tasks without a batch: nothing changed. Return the other tasks."""
    idle = [k for k, task in enumerate(tasks) if task.batches.num_steps == 0]
    if idle:
        rows = torch.tensor(idle, device=gradients.device)
        runs = torch.tensor([tasks[k].run for k in idle], device=gradients.device)
        gradients.index_fill_(0, rows, 0)
        after[rows] = buffers[runs]
    return [k for k, task in enumerate(tasks) if task.batches.num_steps > 0]


def count_samples(tasks: Sequence[ClientTask]) -> Tensor:
    """Return how many samples each task has, repeated ones counted again."""
    return torch.tensor([task.batches.num_samples for task in tasks], dtype=torch.int64)


def mapped_labels(labels: Tensor, label_map: Tensor) -> Tensor:
    """Return what each label is trained as; ignored targets, which are negative, stay."""
    return torch.where(labels >= 0, label_map[labels.clamp(min=0)], labels)


def batches_of(task: ClientTask, samples: Samples) -> Iterator[tuple[tuple[Tensor, ...], Tensor]]:
    """Return the arguments of the model and the targets, step by step."""
    batches = task.batches
    for step, size in enumerate(batches.sizes):
        index = batches.index[step, :size].to(samples.device)
        moves = None if batches.moves is None else batches.moves[step, :size]
        targets = samples.targets[index]
        if task.label_map is not None:
            targets = mapped_labels(targets, task.label_map.to(targets.device))
        first, *others = samples.inputs(index, moves)
        if task.poison is not None:
            first, targets = task.poison(first, targets)
        yield (first, *others), targets


class Trainer(Protocol):
    """Trains clients from the weights of their runs, and evaluates the models of runs."""

    name: str
    """How clients train: "stacked", "vmap" or "sequential"."""
    reason: str
    """Why not in a faster way, in one sentence; empty: there is nothing to report."""

    def train(
        self,
        weights: Tensor,
        buffers: Tensor,
        tasks: Sequence[ClientTask],
        training: LocalSGD,
        learning_rate: float,
    ) -> LocalUpdates:
        """Train one model per task, from ``weights [runs, dim]``."""
        ...

    def evaluate(
        self, weights: Tensor, buffers: Tensor, samples: Samples, strata: Strata | None = None
    ) -> list[Score]:
        """Evaluate the model of each run on some samples; with `strata`, count by stratum too."""
        ...
