"""Which samples a client trains on, step by step."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from outvote.seeding import RandomStream
from outvote.training.local_sgd import LocalSGD
from outvote.training.samples import LARGEST_SHIFT

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, eq=False)
class Batches:
    """The batches of one client in one round.

    ``index [steps, batch_size]`` are indices of samples, -1 where a batch is not full; ``sizes``
    are the numbers of samples; ``moves [steps, batch_size, 3]`` is how to shift and mirror the
    images, or None.
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

    def first(self, number: int) -> "Batches":
        """Return the first batches, so many at most."""
        moves = None if self.moves is None else self.moves[:number]
        return Batches(self.index[:number], self.sizes[:number], moves)


def draw_batches(part: Tensor, training: LocalSGD, stream: RandomStream, least: int = 1) -> Batches:
    """Shuffle the samples of a client for every epoch, and split them into batches.

    Batches of fewer than `least` samples are left out, even if none is left.
    """
    generator = stream.fold_in("batches").generator(0, CPU)
    size, num_own = training.batch_size, len(part)
    per_epoch = -(-num_own // size)
    # The rest of an epoch is a batch too, if it is large enough.
    num_left = num_own - (per_epoch - 1) * size
    num_batches = per_epoch - 1 if num_left < least else per_epoch
    if num_batches == 0:
        empty = torch.empty(0, size, dtype=torch.int64)
        return Batches(empty, [], _draw_moves(empty, generator) if training.augment else None)
    num_steps = training.num_steps or training.num_epochs * num_batches
    num_epochs = -(-num_steps // num_batches)
    order = torch.empty(num_epochs, num_own, dtype=torch.int64)
    for epoch in order:
        torch.randperm(num_own, generator=generator, out=epoch)
    index = part.index_select(0, order.view(-1)).view(num_epochs, num_own)
    if num_own < per_epoch * size:
        index = F.pad(index, (0, per_epoch * size - num_own), value=-1)
    index = index.view(num_epochs, per_epoch, size)[:, :num_batches].flatten(0, 1)[:num_steps]
    sizes = [size] * (num_batches - 1) + [min(size, num_left) if num_batches == per_epoch else size]
    moves = _draw_moves(index, generator) if training.augment else None
    return Batches(index, (sizes * num_epochs)[:num_steps], moves)


def _draw_moves(index: Tensor, generator: torch.Generator) -> Tensor:
    span = 2 * LARGEST_SHIFT + 1
    shifts = torch.randint(span, (*index.shape, 2), generator=generator) - LARGEST_SHIFT
    mirrors = torch.randint(2, (*index.shape, 1), generator=generator)
    return torch.cat([shifts, mirrors], dim=-1).to(torch.int8)


# A single sample has no variance.
MIN_BATCH = 2


def has_batch_norm(module: nn.Module) -> bool:
    """Return whether a network has batch normalisation."""
    return any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in module.modules())


def check_batch_size(module: nn.Module, training: LocalSGD) -> None:
    """Refuse batches that cannot be normalised."""
    if has_batch_norm(module) and training.batch_size < MIN_BATCH:
        raise ValueError(
            f"training.batch_size must be at least {MIN_BATCH} for a network with batch "
            f"normalisation, got {training.batch_size}; raise it, or take another network."
        )
