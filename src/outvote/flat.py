"""What callers pass <-> one matrix of gradients: arrays, tensors, lists of either, named tensors.

The only module that knows layers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

WIDE = torch.float32
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# Squares of larger numbers are near the largest float64, or beyond it. Up to here there is room for
# sums, differences and products of squares.
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
    if isinstance(gradients, Sequence) and not isinstance(gradients, str | bytes):
        if not gradients:
            raise ValueError(f"{what} must hold at least one {who}, got an empty list.")
        if any(isinstance(gradient, Mapping) for gradient in gradients):
            return _receive_named(gradients, who)
        if any(isinstance(gradient, Tensor) for gradient in gradients):
            gradients, is_tensor = _stack_vectors(gradients, who), True
    rows = as_tensor(gradients, what)
    if rows.dim() != 2 or rows.numel() == 0:
        raise _no_matrix(rows, what, who)
    dtype = rows.dtype
    notes: tuple[str, ...] = ()
    if dtype not in FLOATS:
        dtype = torch.float64
        notes = _promotion_notes([rows.dtype], dtype)
        rows = rows.to(dtype)

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
    if rows.numel() == 0:
        raise _no_matrix(rows, "gradients", who)

    def to_vector(value: Any) -> Tensor:
        is_vector = isinstance(value, Tensor) and value.shape == rows.shape[1:]
        vector = value if is_vector else layout.flatten(value, "reference or state")
        return as_vector(vector, rows.device)

    return Received(
        rows=rows,
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


def _no_matrix(rows: Tensor, what: str, who: str) -> ValueError:
    if rows.dim() != 2:
        return ValueError(
            f"{what} must be a matrix [clients, dim], one row per {who}, got the shape "
            f"{tuple(rows.shape)}; flatten each {who}'s gradient, or pass a list of dicts."
        )
    return ValueError(
        f"{what} must hold at least one {who} and one coordinate, got the shape "
        f"{tuple(rows.shape)}."
    )


def _promotion_notes(dtypes: Sequence[torch.dtype], dtype: torch.dtype) -> tuple[str, ...]:
    promoted = sorted({str(d).removeprefix("torch.") for d in dtypes if d not in FLOATS})
    if not promoted:
        return ()
    target = str(dtype).removeprefix("torch.")
    return (f"{', '.join(promoted)} gradients were promoted to {target}",)


def finite_rows(rows: Tensor, norms: list[float]) -> list[bool]:
    """Mark the rows that have no NaN, infinity or number above `LARGEST`."""
    largest = min(LARGEST, torch.finfo(rows.dtype).max)
    # A norm may overflow although all numbers are fine: look at such rows one number at a time.
    return [
        norm <= largest or bool((rows[row].abs() <= largest).all())
        for row, norm in enumerate(norms)
    ]


@dataclass(frozen=True, slots=True)
class Layout:
    """The names, shapes and kinds of the tensors behind a vector."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...]
    are_numpy: tuple[bool, ...]
    devices: tuple[torch.device, ...]

    @classmethod
    def of(cls, named: Mapping[str, Any]) -> "Layout":
        """Read the layout of a dict of arrays or tensors."""
        tensors = {name: as_tensor(value, f"entry {name!r}") for name, value in named.items()}
        return cls(
            tuple(tensors),
            tuple(tuple(tensor.shape) for tensor in tensors.values()),
            tuple(tensor.dtype for tensor in tensors.values()),
            tuple(not isinstance(value, Tensor) for value in named.values()),
            tuple(tensor.device for tensor in tensors.values()),
        )

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of coordinates of each tensor."""
        return tuple(prod(shape) for shape in self.shapes)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that holds all of them: the widest float, float64 for integers alone."""
        floats = [dtype for dtype in self.dtypes if dtype in FLOATS]
        if not floats:
            return torch.float64
        widest = reduce(torch.promote_types, floats)
        # A counter is soon too large for the narrow ones.
        return widest if len(floats) == len(self.dtypes) else torch.promote_types(widest, WIDE)

    def widened(self, named: Mapping[str, Any], who: str) -> "Layout":
        """Return the layout with dtypes that also hold the entries of another client."""
        self.check(named, who)
        other = Layout.of(named)
        found = dict(zip(other.names, other.dtypes, strict=True))
        dtypes = [
            torch.promote_types(mine, found[name])
            for name, mine in zip(self.names, self.dtypes, strict=True)
        ]
        return replace(self, dtypes=tuple(dtypes))

    @property
    def device(self) -> torch.device:
        """Where the vector is: on the first accelerator that one of the tensors is on."""
        return next((device for device in self.devices if device.type != "cpu"), self.devices[0])

    def check(self, named: Mapping[str, Any], who: str) -> None:
        """Raise unless `named` has the same keys."""
        if not isinstance(named, Mapping):
            raise TypeError(f"{who} must be a dict of arrays, got {type(named).__name__}.")
        if set(named) != set(self.names):
            missing = sorted(map(str, set(self.names) - set(named)))
            extra = sorted(map(str, set(named) - set(self.names)))
            raise ValueError(
                f"{who} must have the same keys as the first; missing: {missing or 'none'}, "
                f"unexpected: {extra or 'none'}."
            )

    def flatten(self, named: Mapping[str, Any], who: str) -> Tensor:
        """Turn a dict of this layout into a vector."""
        self.check(named, who)
        tensors = [as_tensor(named[name], f"{who}, entry {name!r}") for name in self.names]
        for name, shape, tensor in zip(self.names, self.shapes, tensors, strict=True):
            if tuple(tensor.shape) != shape:
                raise ValueError(
                    f"{who}, entry {name!r} must have the shape {shape} of the first, "
                    f"got {tuple(tensor.shape)}."
                )
        if not tensors:
            raise ValueError(f"{who} must hold at least one array, got an empty dict.")
        return torch.cat([tensor.reshape(-1).to(self.device, self.dtype) for tensor in tensors])

    def unflatten(self, vector: Tensor) -> dict[str, Any]:
        """Turn a vector into a dict of this layout; integers come back as floats."""
        named: dict[str, Any] = {}
        parts = vector.split(list(self.sizes))
        kinds = zip(self.shapes, self.dtypes, self.are_numpy, self.devices, strict=True)
        for name, part, (shape, dtype, is_numpy, device) in zip(
            self.names, parts, kinds, strict=True
        ):
            tensor = to_float(part, dtype if dtype in FLOATS else vector.dtype).view(shape)
            named[name] = tensor.cpu().numpy() if is_numpy else tensor.to(device)
        return named


def to_float(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert to another float: what is too large becomes the largest finite number."""
    if values.dtype == dtype:
        return values
    largest = torch.finfo(dtype).max
    # The limits of a wider float do not fit into a narrower one: widen first.
    wide = values.to(torch.promote_types(values.dtype, dtype))
    return wide.clamp(min=-largest, max=largest).to(dtype)


def as_tensor(value: Any, who: str) -> Tensor:
    """View an array, tensor or nested list of numbers as a tensor, without a copy if possible."""
    if isinstance(value, Tensor):
        tensor = value.detach().resolve_neg()
        if tensor.layout != torch.strided or tensor.is_complex() or tensor.is_quantized:
            kind = f"{tensor.dtype}, {tensor.layout}"
            raise TypeError(f"{who} must be a dense tensor of real numbers, got {kind}.")
        if tensor.is_floating_point() and tensor.dtype not in FLOATS:
            raise TypeError(
                f"{who} must be float16, bfloat16, float32 or float64, got {tensor.dtype}."
            )
        return tensor
    if isinstance(value, str | bytes | Mapping) or value is None:
        raise TypeError(f"{who} must be an array of numbers, got {type(value).__name__}.")
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(
            f"{who} must have rows of one length, got a ragged list; check what each client sent."
        ) from error
    if array.dtype.kind not in "fiub" or array.dtype.itemsize > 8:
        raise TypeError(f"{who} must hold real numbers, got an array of {array.dtype}.")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    # torch cannot view read-only memory or negative strides.
    if not array.flags.writeable or min(array.strides, default=0) < 0:
        array = array.copy()
    return torch.from_numpy(array)
