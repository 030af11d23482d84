"""Parameters of many models packed in the layout of products, and unpacked in that of torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

import torch
from torch import Tensor

from outvote.ops.convolution import padded
from outvote.ops.door import backend


@dataclass(frozen=True, slots=True)
class Slot:
    """The position and layout of a parameter or buffer in the vector of a model.

    A packed "plain" or "linear" one is as torch has it. The filters of a "conv" are the columns of
    a matrix ``[padded(height * width * channels), filters]``: the layout of products.
    """

    start: int
    shape: torch.Size
    kind: Literal["plain", "linear", "conv"] = "plain"
    packed_start: int = 0
    """Its position among the packed parameters."""

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return prod(self.shape)

    @property
    def packed_size(self) -> int:
        """How many numbers it has among the packed parameters."""
        if self.kind != "conv":
            return self.size
        return padded(prod(self.shape[1:])) * self.shape[0]

    def read(self, vectors: Tensor) -> Tensor:
        """Return it from ``vectors [models, dim]``; weights are ``[models, inputs, outputs]``."""
        values = vectors[:, self.start : self.start + self.size].view(-1, *self.shape)
        if self.kind == "plain":
            return values
        # [filters, channels, height, width] -> [height * width * channels, filters]
        return values.movedim(1, -1).movedim(1, -2).flatten(1, -2)

    def view(self, packed: Tensor) -> Tensor:
        """Return a view of it in ``packed [models, packed_dim]``.

        Weights are ``[models, inputs, outputs]``, those of a convolution with the padded inputs.
        """
        values = packed[:, self.packed_start : self.packed_start + self.packed_size]
        if self.kind == "conv":
            return values.view(-1, self.packed_size // self.shape[0], self.shape[0])
        values = values.view(-1, *self.shape)
        return values.mT if self.kind == "linear" else values

    def view_unpadded(self, packed: Tensor) -> Tensor:
        """Return the part of `view` that has the values of `read`."""
        found = self.view(packed)
        return found[:, : prod(self.shape[1:])] if self.kind == "conv" else found

    def write(self, values: Tensor, vectors: Tensor) -> None:
        """Write what `read` returned back into ``vectors [models, dim]``."""
        if self.kind != "plain":
            _, channels, *window = self.shape
            values = values.unflatten(1, (*window, channels))
            values = values.movedim(-1, 1).movedim(-1, 2)
        target = vectors[:, self.start : self.start + self.size]
        target.view(-1, *self.shape).copy_(values)


def pack(slots: Sequence[Slot], vectors: Tensor, packed_dim: int) -> Tensor:
    """Copy the parameters of ``vectors [models, dim]`` into ``[models, packed_dim]``; 0 between."""
    packed = vectors.new_zeros(len(vectors), packed_dim)
    for slot in slots:
        slot.view_unpadded(packed).copy_(slot.read(vectors))
    return packed


def unpack(slots: Sequence[Slot], packed: Tensor) -> Tensor:
    """Return packed parameters as vectors ``[models, dim]``, in torch's order."""
    vectors = packed.new_empty(len(packed), sum(slot.size for slot in slots))
    for slot in slots:
        slot.write(slot.view_unpadded(packed), vectors)
    return vectors


@torch.no_grad()
def write_changes(
    slots: Sequence[Slot],
    vectors: Tensor,
    runs: Tensor,
    packed: Tensor,
    out: Tensor,
    rows: Tensor,
) -> None:
    """Write the weights before training minus those after, in torch's order; exact.

    Model k started from ``vectors[runs[k]]``, its weights are ``packed[k]``, and its row is
    ``out[rows[k]]``.
    """
    run = backend("write_changes", packed)
    if run is None:
        out[rows] = vectors[runs].sub_(unpack(slots, packed))
    else:
        run(tuple(slots), vectors, runs, packed, out, rows)
