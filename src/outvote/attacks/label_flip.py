"""Label flip: train on wrong labels, send the result."""

from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
import torch
from torch import Tensor

from outvote.attacks.attack import Attack
from outvote.attacks.parameters import check_count


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LabelFlip(Attack):
    r"""The gradient of training on flipped labels; a data attack, so rows are sent unchanged.

    $$ y \mapsto C - 1 - y, \qquad b_i = g_i $$

    Needs: own, trained on the labels that `flip` gives (default: the honest mean).
    Differs from the paper: nothing. Reference: Liu et al., ICML 2023; Fang et al., USENIX 2020.

    >>> LabelFlip().flip([0, 1, 9], num_classes=10)
    array([9, 8, 0])
    """

    name: ClassVar[str] = "label-flip"
    is_colluding: ClassVar[bool] = False

    def label_map(self, num_classes: int) -> list[int]:
        """Return the label that each class is given."""
        check_count("label-flip: num_classes", num_classes)
        return list(range(num_classes - 1, -1, -1))

    def flip(self, labels: Any, num_classes: int) -> Any:
        """Return the labels to train on: a tensor for a tensor, else an array."""
        check_count("label-flip: num_classes", num_classes)
        given = whole_numbers(labels)
        if len(given.reshape(-1)):
            low, high = int(given.min()), int(given.max())
            if low < 0 or high >= num_classes:
                raise ValueError(
                    f"label-flip: labels must be from 0 to {num_classes - 1}, got {low} to {high}."
                )
        return num_classes - 1 - given


def whole_numbers(labels: Any) -> Any:
    """Return labels as 64-bit integers; narrow ones would wrap around."""
    if isinstance(labels, Tensor):
        if not (labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool):
            return labels.to(torch.int64)
        kind = str(labels.dtype)
    else:
        try:
            given = np.asarray(labels)
        except ValueError:
            raise TypeError(
                "label-flip: labels must be whole numbers, got a ragged list."
            ) from None
        if given.dtype.kind in "iu" or given.size == 0:
            return given.astype(np.int64)
        kind = f"an array of {given.dtype}"
    raise TypeError(f"label-flip: labels must be whole numbers, got {kind}.")
