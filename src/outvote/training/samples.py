"""Samples on the training device: stored as bytes, converted to floats batch by batch."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

LARGEST_SHIFT = 4


class Samples:
    """Images ``[samples, height, width, channels]`` and their labels."""

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
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels."""
        height, width, channels = self.images.shape[1:]
        return height, width, channels

    def batch(self, index: Tensor, moves: Tensor | None = None) -> Tensor:
        """Return some samples as floats, ``[*index, height, width, channels]``.

        `moves [*index, 3]` shifts each image down and to the right (with reflection padding) and
        mirrors it where the third number is 1.
        """
        bytes_ = self.images[index] if moves is None else self._moved(index, moves)
        return bytes_.to(self.dtype).mul_(self.scale).add_(self.shift)

    def _moved(self, index: Tensor, moves: Tensor) -> Tensor:
        height, width, _ = self.shape
        down, right, is_mirrored = moves.to(index.device).long().unbind(dim=-1)
        row = _reflected(self._range(height) + down.unsqueeze(-1), height)
        column = _reflected(self._range(width) + right.unsqueeze(-1), width)
        column = torch.where(is_mirrored.unsqueeze(-1) > 0, width - 1 - column, column)
        return self.images[index[..., None, None], row.unsqueeze(-1), column.unsqueeze(-2)]

    def _range(self, size: int) -> Tensor:
        return torch.arange(size, device=self.images.device)


def _reflected(at: Tensor, size: int) -> Tensor:
    at = at.abs()
    return torch.where(at >= size, 2 * (size - 1) - at, at)
