"""Samples on the training device, converted to what a model takes batch by batch."""

from collections.abc import Sequence
from typing import Any, Protocol, final

import torch
from torch import Tensor

LARGEST_SHIFT = 4


class Samples(Protocol):
    """Samples and their targets."""

    @property
    def targets(self) -> Tensor:
        """One target per sample, of any shape: ``[samples, ...]``."""

    @property
    def device(self) -> torch.device:
        """Where they are."""

    @property
    def dtype(self) -> torch.dtype:
        """The precision of floating-point samples."""

    def __len__(self) -> int:
        """How many there are."""

    def inputs(self, index: Tensor, moves: Tensor | None = None) -> tuple[Tensor, ...]:
        """Return the arguments of a model for some samples; images have the channels first."""

    def batch(self, index: Tensor, moves: Tensor | None = None) -> Tensor:
        """Return some samples for a stacked model: images have the channels last."""


@final
class ByteImages:
    """Images ``[samples, height, width, channels]`` stored as bytes, and their labels."""

    def __init__(
        self,
        images: Any,
        labels: Any,
        *,
        mean: Sequence[float],
        std: Sequence[float],
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Take images as bytes; mean and standard deviation are of pixels between 0 and 1."""
        self.images = torch.as_tensor(images).to(device)
        self.labels = torch.as_tensor(labels).to(device, torch.int64)
        if self.images.dtype != torch.uint8 or self.images.dim() != 4:
            raise ValueError(
                "images must be bytes [samples, height, width, channels], got "
                f"{self.images.dtype} of the shape {tuple(self.images.shape)}."
            )
        if len(self.images) != len(self.labels):
            raise ValueError(
                f"there must be one label per image, got {len(self.images)} images and "
                f"{len(self.labels)} labels."
            )
        divisor = torch.tensor(std, dtype=torch.float64)
        self.scale = (1 / (255 * divisor)).to(device, dtype)
        self.shift = (-torch.tensor(mean, dtype=torch.float64) / divisor).to(device, dtype)
        self.dtype = dtype

    def __len__(self) -> int:
        """How many samples there are."""
        return len(self.images)

    @property
    def targets(self) -> Tensor:
        """The labels."""
        return self.labels

    @property
    def device(self) -> torch.device:
        """Where the images are."""
        return self.images.device

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels."""
        height, width, channels = self.images.shape[1:]
        return height, width, channels

    def inputs(self, index: Tensor, moves: Tensor | None = None) -> tuple[Tensor, ...]:
        """Return some images as floats, ``[*index, channels, height, width]``."""
        return (self.batch(index, moves).movedim(-1, -3),)

    def batch(self, index: Tensor, moves: Tensor | None = None) -> Tensor:
        """Return some images as floats, ``[*index, height, width, channels]``.

        `moves [*index, 3]` shifts each image down and to the right (with reflection padding) and
        mirrors it where the third number is 1.
        """
        bytes_ = _picked(self.images, index) if moves is None else self._moved(index, moves)
        return (bytes_ * self.scale).add_(self.shift)

    def _moved(self, index: Tensor, moves: Tensor) -> Tensor:
        height, width, _ = self.shape
        down, right, is_mirrored = moves.to(index.device).long().unbind(dim=-1)
        row = _reflected(self._range(height) + down.unsqueeze(-1), height)
        column = _reflected(self._range(width) + right.unsqueeze(-1), width)
        column = torch.where(is_mirrored.unsqueeze(-1) > 0, width - 1 - column, column)
        return self.images[index[..., None, None], row.unsqueeze(-1), column.unsqueeze(-2)]

    def _range(self, size: int) -> Tensor:
        return torch.arange(size, device=self.images.device)


@final
class ArraySamples:
    """Samples of any kind: one array per argument of the model, and targets of any shape.

    Floating-point numbers are converted to `dtype`, bytes are divided by 255, other whole numbers
    (such as token ids) stay.
    """

    def __init__(
        self,
        arrays: Sequence[Any],
        targets: Any,
        *,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        is_channels_last: bool = False,
    ) -> None:
        """Take arrays ``[samples, ...]``; `is_channels_last`: images, channels as the last axis."""
        self.dtype = dtype
        moved = []
        for each in (*arrays, targets):
            values = torch.as_tensor(each)
            moved.append(values.to(device, dtype if values.is_floating_point() else values.dtype))
        *found, self.targets = moved
        self.arrays = tuple(found)
        self.is_channels_last = is_channels_last

    def __len__(self) -> int:
        """How many samples there are."""
        return len(self.targets)

    @property
    def device(self) -> torch.device:
        """Where the samples are."""
        return self.targets.device

    def inputs(self, index: Tensor, moves: Tensor | None = None) -> tuple[Tensor, ...]:
        """Return the arguments of a model for some samples, ``[*index, ...]``."""
        del moves
        found = []
        for values in self.arrays:
            found.append(self._floats(_picked(values, index)))
        if self.is_channels_last:
            found[0] = found[0].movedim(-1, index.dim())
        return tuple(found)

    def batch(self, index: Tensor, moves: Tensor | None = None) -> Tensor:
        """Return the first argument for a stacked model: images have the channels last."""
        del moves
        values = self._floats(_picked(self.arrays[0], index))
        is_image = values.dim() == index.dim() + 3
        return values.movedim(-3, -1) if is_image and not self.is_channels_last else values

    def _floats(self, values: Tensor) -> Tensor:
        return values.to(self.dtype).div_(255) if values.dtype == torch.uint8 else values


def _picked(values: Tensor, index: Tensor) -> Tensor:
    """Return ``values[index]``; on a CPU, where torch copies that value by value, by samples."""
    if values.device.type != "cpu":
        return values[index]
    return values.index_select(0, index.flatten()).view(*index.shape, *values.shape[1:])


def _reflected(at: Tensor, size: int) -> Tensor:
    at = at.abs()
    return torch.where(at >= size, 2 * (size - 1) - at, at)
