"""Reading what callers hand to an attack: the honest gradients, and the attackers' own."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outvote.errors import plural
from outvote.flat import Layout
from outvote.receive import Received, receive

LARGEST_COUNT = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedOver:
    """What attackers go by, and what they would have sent; `is_alone` if nobody was honest."""

    received: Received
    own: Tensor | None
    is_alone: bool = False

    @property
    def num_honest(self) -> int:
        """How many honest clients there are."""
        return 0 if self.is_alone else len(self.received.rows)


def hand_over(honest: Any, own: Any, num_byzantine: int) -> HandedOver:
    """Read both; without honest clients the attackers go by what they would have sent."""
    check_num_byzantine(num_byzantine)
    _check_rows("honest", honest)
    if own is not None:
        _check_rows("own", own)
    if len(honest) == 0:
        return _alone(honest, own, num_byzantine)
    received = receive(honest)
    if own is None:
        return HandedOver(received=received, own=None)
    rows = received.rows[:0]
    if isinstance(honest[0], Mapping):
        rows = _named(Layout.of(honest[0]), own, rows)
    elif len(own):
        rows = receive(own, "own", "attacker").rows
    _check_own(rows, received.rows.shape[1], num_byzantine)
    return HandedOver(received=received, own=rows.to(received.rows.device, received.rows.dtype))


def check_num_byzantine(num_byzantine: object) -> None:
    """Raise unless the number of attackers is a whole number of at least 0."""
    if isinstance(num_byzantine, bool) or not isinstance(num_byzantine, int | np.integer):
        raise TypeError(f"num_byzantine must be an integer, got {num_byzantine!r}.")
    if num_byzantine < 0:
        raise ValueError(
            f"num_byzantine must be 0 or larger, got {num_byzantine}; pass 0 if nobody lies."
        )
    if num_byzantine > LARGEST_COUNT:
        raise ValueError(f"num_byzantine must be at most {LARGEST_COUNT}, got {num_byzantine}.")


def _check_rows(what: str, rows: Any) -> None:
    is_scalar = getattr(rows, "shape", None) == ()
    if is_scalar or not hasattr(rows, "__len__") or isinstance(rows, str | bytes | Mapping):
        kind = "a single number" if is_scalar else type(rows).__name__
        raise TypeError(
            f"{what} must be gradients, one row per client, as an array, a tensor or a list, "
            f"got {kind}."
        )


def _alone(honest: Any, own: Any, num_byzantine: int) -> HandedOver:
    if own is None or len(own) == 0:
        raise ValueError(
            "an attack needs the gradients of at least one honest client, got none; pass "
            "own=, what the attackers would have sent honestly, or leave the round out."
        )
    received = receive(own, "own", "attacker")
    if getattr(honest, "ndim", 0) == 2:
        # Even an empty array tells what is expected of the rows.
        is_tensor, dim = isinstance(honest, Tensor), honest.shape[1]
        wanted = receive(
            honest.new_zeros(1, dim) if is_tensor else np.zeros((1, dim), honest.dtype)
        )
        _check_own(received.rows, dim, num_byzantine)
        received = replace(wanted, rows=received.rows.to(wanted.rows.device, wanted.rows.dtype))
    _check_own(received.rows, received.rows.shape[1], num_byzantine)
    return HandedOver(received=received, own=received.rows, is_alone=True)


def _named(layout: Layout, own: Any, rows: Tensor) -> Tensor:
    vectors = [layout.flatten(named, f"own row {k}") for k, named in enumerate(own)]
    return torch.stack(vectors) if vectors else rows


def _check_own(own: Tensor, dim: int, num_byzantine: int) -> None:
    if tuple(own.shape) != (num_byzantine, dim):
        raise ValueError(
            f"own must be {plural(num_byzantine, 'row')} of {plural(dim, 'coordinate')}, one row "
            f"per attacker, got the shape {tuple(own.shape)}."
        )
