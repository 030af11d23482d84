"""What the clients of a round are asked to do, and what comes back."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from outvote.clients.batches import Batches
from outvote.clients.samples import Samples
from outvote.clients.training import Training


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """The work of one client in one round."""

    run: int
    batches: Batches
    label_map: Tensor | None = None
    """The label that each class is trained as; None: its own."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LocalUpdates:
    """What the clients learnt: one row per task."""

    gradients: Tensor
    """The weights sent out minus the weights after training, ``[tasks, dim]``."""
    losses: Tensor
    """The mean loss over the steps; 0 where there was none."""
    buffers: Tensor
    """Running statistics after training, ``[tasks, buffers]``; float64 holds counters too."""
    num_samples: Tensor
    """How many samples each was trained on; 0: the client had too few for a batch."""
    memory: tuple[dict[int, Tensor], ...] = ()
    """What clients of each run remember of what they sent, where they do."""


def count_samples(tasks: Sequence[Task]) -> Tensor:
    """Return how many samples each task has, repeated ones counted again."""
    return torch.tensor([task.batches.num_samples for task in tasks], dtype=torch.int64)


class Trainer(Protocol):
    """Trains clients from the weights of their runs."""

    def train(
        self,
        weights: Tensor,
        buffers: Tensor,
        tasks: Sequence[Task],
        training: Training,
        learning_rate: float,
    ) -> LocalUpdates:
        """Train one model per task, from ``weights [runs, dim]``."""
        ...

    def count_right(self, weights: Tensor, buffers: Tensor, samples: Samples) -> Tensor:
        """Return how many samples each run's model recognises, ``[runs]``."""
        ...
