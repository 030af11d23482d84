"""Which samples a client trains on, step by step."""

from dataclasses import dataclass

import torch
from torch import Tensor

from outvote.clients.samples import LARGEST_SHIFT
from outvote.clients.training import Training
from outvote.seeding import RandomStream

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, eq=False)
class Batches:
    """The batches of one client in one round.

    ``index [steps, batch_size]`` are samples, -1 where a batch is not full; ``sizes`` tells how
    many there are; ``moves [steps, batch_size, 3]`` how to shift and mirror them, or None.
    """

    index: Tensor
    sizes: list[int]
    moves: Tensor | None = None

    @property
    def num_steps(self) -> int:
        """How many batches there are."""
        return len(self.sizes)

    @property
    def num_samples(self) -> int:
        """How many samples are trained on, repeated ones counted again."""
        return sum(self.sizes)


def draw_batches(part: Tensor, training: Training, stream: RandomStream, least: int = 1) -> Batches:
    """Shuffle the samples of a client anew for every epoch and cut them into batches.

    Batches of fewer than `least` samples are left out, even if none is left.
    """
    generator = stream.fold_in("batches").generator(0, CPU)
    size, num_own = training.batch_size, len(part)
    per_epoch = -(-num_own // size)
    # What is left at the end of an epoch is a batch too, if it is large enough.
    num_left = num_own - (per_epoch - 1) * size
    num_batches = per_epoch - 1 if num_left < least else per_epoch
    if num_batches == 0:
        nothing = torch.empty(0, size, dtype=torch.int64)
        return Batches(nothing, [], _draw_moves(nothing, training, generator))
    num_steps = training.num_steps or training.num_epochs * num_batches
    num_epochs = -(-num_steps // num_batches)
    index = torch.full((num_epochs, per_epoch * size), -1, dtype=torch.int64)
    for epoch in index:
        epoch[:num_own] = part[torch.randperm(num_own, generator=generator)]
    index = index.view(num_epochs, per_epoch, size)[:, :num_batches].flatten(0, 1)[:num_steps]
    sizes = [size] * (num_batches - 1) + [min(size, num_left) if num_batches == per_epoch else size]
    return Batches(index, (sizes * num_epochs)[:num_steps], _draw_moves(index, training, generator))


def _draw_moves(index: Tensor, training: Training, generator: torch.Generator) -> Tensor | None:
    if not training.augment:
        return None
    span = 2 * LARGEST_SHIFT + 1
    shifts = torch.randint(span, (*index.shape, 2), generator=generator) - LARGEST_SHIFT
    turns = torch.randint(2, (*index.shape, 1), generator=generator)
    return torch.cat([shifts, turns], dim=-1).to(torch.int8)
