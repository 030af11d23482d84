"""Which pictures a client trains on, step by step."""

from dataclasses import dataclass

import torch
from torch import Tensor

from outvote.clients.pictures import LARGEST_SHIFT
from outvote.clients.training import Training
from outvote.seeding import Draws

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, eq=False)
class Batches:
    """The batches of one client in one round.

    ``index [steps, batch_size]`` are pictures, -1 where a batch is not full; ``sizes`` tells how
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
    def num_pictures(self) -> int:
        """How many pictures are trained on, repeated ones counted again."""
        return sum(self.sizes)


def draw_batches(part: Tensor, training: Training, draws: Draws, least: int = 1) -> Batches:
    """Shuffle the pictures of a client anew for every epoch and cut them into batches.

    Batches of fewer than `least` pictures are left out, unless there would be none.
    """
    generator = draws.under("batches").generator(0, CPU)

    def epoch() -> list[Tensor]:
        order = part[torch.randperm(len(part), generator=generator)]
        return [some for some in order.split(training.batch_size) if len(some) >= least] or [order]

    rows: list[Tensor] = []
    if training.num_steps is None:
        for _ in range(training.num_epochs):
            rows += epoch()
    else:
        while len(rows) < training.num_steps:
            rows += epoch()
        rows = rows[: training.num_steps]
    index = torch.full((len(rows), training.batch_size), -1, dtype=torch.int64)
    for step, row in enumerate(rows):
        index[step, : len(row)] = row
    return Batches(index, [len(row) for row in rows], _draw_moves(index, training, generator))


def _draw_moves(index: Tensor, training: Training, generator: torch.Generator) -> Tensor | None:
    if not training.augment:
        return None
    span = 2 * LARGEST_SHIFT + 1
    shifts = torch.randint(span, (*index.shape, 2), generator=generator) - LARGEST_SHIFT
    turns = torch.randint(2, (*index.shape, 1), generator=generator)
    return torch.cat([shifts, turns], dim=-1).to(torch.int8)
