"""The cases of `test_ops` for the operations that training and attacks use."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ops_case import ROUNDED, Case
from outvote.ops import sgd


def drawn(generator: torch.Generator, dtype: torch.dtype, *shape: int) -> Tensor:
    """Draw normal numbers."""
    return torch.randn(shape, generator=generator).to(dtype)


class Sgd(NamedTuple):
    """Settings of a step."""

    momentum: float
    weight_decay: float
    max_norm: float | None


def take_step(
    weights: Tensor, gradients: Tensor, velocities: Tensor, *more: Any, **how: Any
) -> Any:
    """Take a step, and return what it wrote."""
    copy, *rest = more
    num_going = how.get("num_going")
    sgd.take_step(weights, gradients, velocities, copy, *rest, **how)
    # What takes no other step may be anything.
    return weights, velocities[:num_going], None if copy is None else copy[:num_going]


def steps(
    max_norm: float | None,
    *,
    is_narrow: bool = False,
    has_start: bool = False,
    is_first: bool = False,
) -> Any:
    """Return what draws the arguments of a step."""

    def make(generator: torch.Generator, dtype: torch.dtype) -> Any:
        weights, gradients, velocities = (drawn(generator, dtype, 3, 5000) for _ in range(3))
        copy = weights.bfloat16() if is_narrow else None
        how: dict[str, Any] = {"is_first": is_first}
        if is_first:  # What is not set yet must not be read.
            velocities.fill_(torch.nan)
        if has_start:
            weights.fill_(torch.nan)
            start = drawn(generator, dtype, 2, 5000), torch.tensor([1, 0, 1])
            how |= {"start": start, "num_going": 2}
        return weights, gradients, velocities, copy, Sgd(0.5, 1e-3, max_norm), 0.1, how

    return make


CASES: dict[str, Case] = {
    "take_step": Case(
        lambda *given: take_step(*given[:-1], **given[-1]),
        {
            "plain": steps(None),
            "clipped": steps(2.0),
            "clipped, with a copy": steps(0.1, is_narrow=True),
            "the first": steps(2.0, is_first=True),
            "from rows, the last of some": steps(None, is_first=True, has_start=True),
        },
        ROUNDED,
    ),
}
