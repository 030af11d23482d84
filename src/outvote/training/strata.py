"""Test targets in strata, whose correct ones are counted apart: by class, or by group."""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor


@final
@dataclass(frozen=True, slots=True, eq=False)
class Strata:
    """The stratum of every test target."""

    of_target: Tensor
    """Numbers from 0, in the shape of the targets. Targets that do not count may have any."""
    num: int
    """How many strata there are."""

    def zeros(self, *shape: int) -> Tensor:
        """Return counts of 0, ``[*shape, strata]``."""
        kind, device = torch.float64, self.of_target.device
        return torch.zeros(*shape, self.num, dtype=kind, device=device)

    def add_correct(self, counts: Tensor, index: Tensor | slice, is_correct: Tensor) -> None:
        """Add the correct targets of some samples to ``counts [*runs, strata]``.

        ``is_correct`` is ``[*runs, targets]``. Nothing is read back from a GPU, and sums of whole
        numbers do not depend on their order.
        """
        strata = self.of_target[index].flatten().expand_as(is_correct)
        counts.scatter_add_(-1, strata, is_correct.to(counts.dtype))
