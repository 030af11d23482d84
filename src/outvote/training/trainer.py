"""What a trainer takes and returns: one task per client, one row per task."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from outvote.training.batches import Batches
from outvote.training.local_sgd import LocalSGD
from outvote.training.samples import Samples


@dataclass(frozen=True, slots=True, eq=False)
class ClientTask:
    """The training of one client in one round."""

    run: int
    batches: Batches
    label_map: Tensor | None = None
    """The label that each class is trained as; None: its own."""
    poison: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None
    """What a data attack trains on instead of a batch of samples ``[batch, channels, height,
    width]`` and labels; None: the batch itself."""


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


def count_samples(tasks: Sequence[ClientTask]) -> Tensor:
    """Return how many samples each task has, repeated ones counted again."""
    return torch.tensor([task.batches.num_samples for task in tasks], dtype=torch.int64)


class Trainer(Protocol):
    """Trains clients from the weights of their runs, and evaluates the models of runs."""

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

    def count_correct(self, weights: Tensor, buffers: Tensor, samples: Samples) -> Tensor:
        """Return how many samples the model of each run classifies correctly, ``[runs]``."""
        ...
