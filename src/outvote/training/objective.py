"""The loss that clients minimise, and how a model is evaluated."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor
from torch.nn import functional as F

from outvote.data.array_dataset import IGNORED


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


Loss = Callable[[Any, Tensor], Tensor]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Score:
    """A model on the test set; None: not measured."""

    accuracy: float | None = None
    """The share of correct targets; None where targets are not classes."""
    loss: float | None = None
    """The mean loss; None where the accuracy is the measure and the loss is the default."""
    correct: Tensor | None = None
    """The number of correct targets of each stratum, if strata were given, float64 on the CPU."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Objective:
    """A loss, and the kind of the targets."""

    loss: Loss | None = None
    """Takes the outputs of a model and the targets of a batch, and returns one number; None: cross
    entropy for classes, the mean squared error for other numbers."""
    has_classes: bool = True
    """Whether the targets are classes: whole numbers."""
    has_ignored: bool = False
    """Whether some classes are `IGNORED`; a batch of nothing else has the loss 0."""

    @classmethod
    def of(cls, targets: Tensor, loss: Loss | None = None, *, has_classes: bool) -> "Objective":
        """Return the objective for some training targets."""
        return cls(loss, has_classes, has_classes and bool((targets == IGNORED).any()))

    @property
    def is_cross_entropy(self) -> bool:
        """Whether the loss is the mean cross entropy of all targets."""
        return self.loss is None and self.has_classes and not self.has_ignored

    @property
    def has_test_loss(self) -> bool:
        """Whether the loss on the test set is measured too."""
        return self.loss is not None or not self.has_classes

    def __call__(self, outputs: Any, targets: Tensor) -> Tensor:
        """Return the loss of a batch."""
        if self.loss is not None:
            return self.loss(outputs, targets)
        if not self.has_classes:
            return F.mse_loss(outputs, targets)
        logits, labels = as_classes(outputs, targets)
        if not self.has_ignored:
            return F.cross_entropy(logits, labels)
        total = F.cross_entropy(logits, labels, reduction="sum")
        return total / (labels != IGNORED).sum().clamp(min=1)

    def measure(
        self, outputs: Any, targets: Tensor, tally: Callable[[Tensor], object] | None = None
    ) -> Tensor:
        """Return ``[correct targets, targets, loss * samples, samples]`` of a batch, float64.

        `tally` is called with which targets are correct, one after the other.
        """
        num_samples = len(targets)
        found = torch.zeros(4, dtype=torch.float64, device=targets.device)
        found[3] = num_samples
        if self.has_classes and isinstance(outputs, Tensor) and class_axis(outputs, targets):
            logits, labels = as_classes(outputs, targets)
            is_correct = logits.argmax(dim=1) == labels
            found[0] = is_correct.sum()
            found[1] = (labels != IGNORED).sum()
            if tally is not None:
                tally(is_correct.flatten())
        if self.has_test_loss:
            found[2] = self(outputs, targets).double() * num_samples
        return found

    def score(self, total: Tensor) -> Score:
        """Return the score of a model from the sum of what `measure` returned.

        With strata, the counts of correct targets follow: ``[4 + strata]``.
        """
        total = total.cpu()
        correct, num_targets, loss, num_samples = total[:4].tolist()
        has_accuracy = self.has_classes and num_targets
        return Score(
            accuracy=correct / num_targets if has_accuracy else None,
            loss=loss / num_samples if self.has_test_loss and num_samples else None,
            correct=total[4:] if has_accuracy and len(total) > 4 else None,
        )


def class_axis(outputs: Tensor, targets: Tensor) -> int | None:
    """Return the axis of the classes: 1 or the last; None: neither fits, or both do.

    ``outputs`` are ``[*targets.shape, classes]``, or ``[batch, classes, ...]`` as in torch.
    """
    if outputs.dim() != targets.dim() + 1:
        return None
    is_last = outputs.shape[:-1] == targets.shape and outputs.shape[-1] > 1
    is_first = outputs.shape[:1] + outputs.shape[2:] == targets.shape and outputs.shape[1] > 1
    if outputs.dim() == 2:
        return 1 if is_last else None
    if is_last == is_first:
        return None
    return outputs.dim() - 1 if is_last else 1


def as_classes(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits with the classes as axis 1, and the targets."""
    if outputs.dim() > 2 and class_axis(outputs, targets) == outputs.dim() - 1:
        return outputs.flatten(0, -2), targets.flatten()
    return outputs, targets
