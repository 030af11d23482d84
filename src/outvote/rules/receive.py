"""Reading what callers hand over: arrays, tensors, lists of either, lists of named tensors."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from outvote.flat import FLOATS, Layout, as_tensor, stack, to_float
from outvote.rules.linalg import work_dtype

# The square of a larger float64 is not finite, so a distance to it could not be told.
LARGEST = 1e120


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """The gradients as one matrix, and the way back to the caller's kind."""

    rows: Tensor
    restore: Callable[[Tensor], Any]
    to_vector: Callable[[Any], Tensor]
    layer_sizes: tuple[int, ...] | None = None
    notes: tuple[str, ...] = ()


def receive(gradients: Any) -> Received:
    """Check gradients of any kind and view them as a matrix ``[clients, dim]``."""
    if isinstance(gradients, Sequence) and not isinstance(gradients, str | bytes):
        if not gradients:
            raise ValueError("gradients must hold at least one client, got an empty list.")
        if isinstance(gradients[0], Mapping):
            return _receive_named(gradients)
        if any(isinstance(gradient, Tensor) for gradient in gradients):
            gradients = _stack_vectors(gradients)
    rows = as_tensor(gradients, "gradients")
    if rows.dim() != 2:
        raise ValueError(
            "gradients must be a matrix [clients, dim], one row per client, got the shape "
            f"{tuple(rows.shape)}; flatten each client's gradient, or pass a list of dicts."
        )
    is_numpy = not isinstance(gradients, Tensor)
    dtype = rows.dtype if rows.dtype in FLOATS else torch.float64
    notes = _promotion_notes([rows.dtype], dtype)
    rows = _check_size(rows.to(dtype))

    def restore(vector: Tensor) -> Any:
        update = to_float(vector, dtype)
        return update.cpu().numpy() if is_numpy else update

    def to_vector(value: Any) -> Tensor:
        vector = as_tensor(value, "reference or state")
        if vector.shape != rows.shape[1:]:
            raise ValueError(
                f"reference and state must have the {rows.shape[1]} coordinates of the gradients, "
                f"got the shape {tuple(vector.shape)}."
            )
        return vector.to(rows.device, torch.promote_types(vector.dtype, torch.float32))

    return Received(rows=rows, restore=restore, to_vector=to_vector, notes=notes)


def _receive_named(gradients: Sequence[Any]) -> Received:
    layout = Layout.of(gradients[0])
    rows = torch.stack([layout.flatten(named, f"client {k}") for k, named in enumerate(gradients)])
    return Received(
        rows=_check_size(rows),
        restore=layout.unflatten,
        to_vector=lambda named: (
            named.to(rows) if isinstance(named, Tensor) else layout.flatten(named, "reference")
        ),
        layer_sizes=layout.sizes,
        notes=_promotion_notes(layout.dtypes, layout.dtype),
    )


def _stack_vectors(gradients: Sequence[Any]) -> Tensor:
    vectors = [as_tensor(gradient, f"client {k}") for k, gradient in enumerate(gradients)]
    for k, vector in enumerate(vectors):
        if vector.shape != vectors[0].shape or vector.dim() != 1:
            raise ValueError(
                f"client {k} must be a vector of the shape {tuple(vectors[0].shape)} of the first, "
                f"got {tuple(vector.shape)}."
            )
    return stack(vectors)


def _check_size(rows: Tensor) -> Tensor:
    if rows.numel() == 0:
        raise ValueError(
            "gradients must hold at least one client and one coordinate, got the shape "
            f"{tuple(rows.shape)}."
        )
    return rows


def _promotion_notes(
    dtypes: Sequence[torch.dtype], dtype: torch.dtype
) -> tuple[str, ...]:
    promoted = sorted({str(d).removeprefix("torch.") for d in dtypes if d not in FLOATS})
    if not promoted:
        return ()
    target = str(dtype).removeprefix("torch.")
    return (f"{', '.join(promoted)} gradients were promoted to {target}",)


def finite_rows(rows: Tensor) -> tuple[list[bool], list[float]]:
    """Tell which rows have no NaN, infinity or number whose square is not finite; and the norms."""
    largest = min(LARGEST, torch.finfo(rows.dtype).max)
    norms = torch.linalg.vector_norm(rows, dim=-1, dtype=work_dtype(rows.dtype)).tolist()
    # A norm may overflow although all numbers are fine: look at such rows one number at a time.
    is_finite = [
        norm <= largest or bool((rows[row].abs() <= largest).all())
        for row, norm in enumerate(norms)
    ]
    return is_finite, norms
