"""Reading what callers pass: arrays, tensors, lists of either, lists of named tensors."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from outvote.flat import FLOATS, Layout, as_tensor, to_float
from outvote.ops.memory import listed_later
from outvote.ops.precision import work_dtype

# The square of a larger float64 is not finite, so a distance to it could not be computed.
LARGEST = 1e120


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """The gradients as one matrix, and the way back to the caller's kind."""

    rows: Tensor
    restore: Callable[[Tensor], Any]
    to_vector: Callable[[Any], Tensor]
    layer_sizes: tuple[int, ...] | None = None
    notes: tuple[str, ...] = ()


def receive(gradients: Any, what: str = "gradients", who: str = "client") -> Received:
    """Check gradients of any kind and view them as a matrix ``[clients, dim]``.

    Errors call the whole `what`, and a row `who`.
    """
    is_tensor = isinstance(gradients, Tensor)
    if not is_tensor and isinstance(gradients, Sequence) and not isinstance(gradients, str | bytes):
        if not gradients:
            raise ValueError(f"{what} must hold at least one {who}, got an empty list.")
        if any(isinstance(gradient, Mapping) for gradient in gradients):
            return _receive_named(gradients, who)
        if any(isinstance(gradient, Tensor) for gradient in gradients):
            gradients, is_tensor = _stack_vectors(gradients, who), True
    rows = as_tensor(gradients, what)
    if rows.dim() != 2:
        raise ValueError(
            f"{what} must be a matrix [clients, dim], one row per {who}, got the shape "
            f"{tuple(rows.shape)}; flatten each {who}'s gradient, or pass a list of dicts."
        )
    dtype = rows.dtype
    notes: tuple[str, ...] = ()
    if dtype not in FLOATS:
        dtype = torch.float64
        notes = _promotion_notes([rows.dtype], dtype)
        rows = rows.to(dtype)
    rows = _check_size(rows, what, who)

    def restore(vector: Tensor) -> Any:
        update = to_float(vector, dtype)
        return update if is_tensor else update.cpu().numpy()

    def to_vector(value: Any) -> Tensor:
        vector = as_tensor(value, "reference or state")
        if vector.shape != rows.shape[1:]:
            raise ValueError(
                f"reference and state must have the {rows.shape[1]} coordinates of the gradients, "
                f"got the shape {tuple(vector.shape)}."
            )
        return as_vector(vector, rows.device)

    return Received(rows=rows, restore=restore, to_vector=to_vector, notes=notes)


def _receive_named(gradients: Sequence[Any], who: str) -> Received:
    if not isinstance(gradients[0], Mapping):
        raise TypeError(
            f"{who} 0 must be a dict of arrays, as others are, got "
            f"{type(gradients[0]).__name__}; pass dicts alone or arrays alone."
        )
    layout = Layout.of(gradients[0])
    for k, named in enumerate(gradients[1:], 1):
        layout = layout.widened(named, f"{who} {k}")
    rows = torch.stack([layout.flatten(named, f"{who} {k}") for k, named in enumerate(gradients)])

    def to_vector(value: Any) -> Tensor:
        is_vector = isinstance(value, Tensor) and value.shape == rows.shape[1:]
        vector = value if is_vector else layout.flatten(value, "reference or state")
        return as_vector(vector, rows.device)

    return Received(
        rows=_check_size(rows, "gradients", who),
        restore=layout.unflatten,
        to_vector=to_vector,
        layer_sizes=layout.sizes,
        notes=_promotion_notes(layout.dtypes, layout.dtype),
    )


def as_vector(value: Any, device: torch.device) -> Tensor:
    """Bring a vector of the server to the device; a sum of rounds may be too large for float16."""
    vector = as_tensor(value, "reference or state")
    if not bool((vector.abs() <= LARGEST).all()):
        raise ValueError(
            "reference and state must be finite, got NaN, infinity or a number too large to square "
            "in them; leave them out or compute them again."
        )
    return vector.to(device, torch.promote_types(vector.dtype, torch.float32))


def _stack_vectors(gradients: Sequence[Any], who: str) -> Tensor:
    vectors = [as_tensor(gradient, f"{who} {k}") for k, gradient in enumerate(gradients)]
    for k, vector in enumerate(vectors):
        if vector.shape != vectors[0].shape or vector.dim() != 1:
            raise ValueError(
                f"{who} {k} must be a vector of the shape {tuple(vectors[0].shape)} of the first, "
                f"got {tuple(vector.shape)}."
            )
    dtype = reduce(torch.promote_types, (vector.dtype for vector in vectors))
    return torch.stack([vector.to(dtype) for vector in vectors])


def _check_size(rows: Tensor, what: str, who: str) -> Tensor:
    if rows.numel() == 0:
        raise ValueError(
            f"{what} must hold at least one {who} and one coordinate, got the shape "
            f"{tuple(rows.shape)}."
        )
    return rows


def _promotion_notes(dtypes: Sequence[torch.dtype], dtype: torch.dtype) -> tuple[str, ...]:
    promoted = sorted({str(d).removeprefix("torch.") for d in dtypes if d not in FLOATS})
    if not promoted:
        return ()
    target = str(dtype).removeprefix("torch.")
    return (f"{', '.join(promoted)} gradients were promoted to {target}",)


def norms_later(rows: Tensor) -> Callable[[], list[float]]:
    """Start to work out the norms of the rows; the result is waited for when it is called."""
    return listed_later(torch.linalg.vector_norm(rows, dim=-1, dtype=work_dtype(rows.dtype)))


def finite_rows(rows: Tensor, norms: list[float]) -> list[bool]:
    """Mark the rows that have no NaN, infinity or number whose square is not finite."""
    largest = min(LARGEST, torch.finfo(rows.dtype).max)
    # A norm may overflow although all numbers are fine: look at such rows one number at a time.
    return [
        norm <= largest or bool((rows[row].abs() <= largest).all())
        for row, norm in enumerate(norms)
    ]
