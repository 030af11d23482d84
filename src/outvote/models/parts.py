"""The parts that networks are built of, besides torch's own layers."""

from typing import final

import torch
from torch import Tensor, nn


@final
class Residual(nn.Module):
    """``body(x) + shortcut(x)``, the shortcut being the identity where none is given."""

    def __init__(self, body: nn.Module, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.body = body
        self.shortcut = nn.Identity() if shortcut is None else shortcut

    def forward(self, images: Tensor) -> Tensor:
        """Add the two ways."""
        total: Tensor = self.body(images) + self.shortcut(images)
        return total


@final
class Branches(nn.Module):
    """Several parts on the same input, their channels side by side."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, images: Tensor) -> Tensor:
        """Concatenate the channels of all parts."""
        return torch.cat([part(images) for part in self.parts], dim=1)


@final
class GlobalAverage(nn.Module):
    """The mean of every channel over the image."""

    def forward(self, images: Tensor) -> Tensor:
        """Average over height and width."""
        return images.mean(dim=(-2, -1))


def conv(channels: int, filters: int, size: int, *, stride: int = 1) -> nn.Conv2d:
    """Return a convolution with a bias that keeps the size of the image (at stride 1)."""
    return nn.Conv2d(channels, filters, size, stride, padding=size // 2)


def normalised(layer: nn.Conv2d) -> list[nn.Module]:
    """Return a convolution followed by batch normalisation and ReLU."""
    return [layer, nn.BatchNorm2d(layer.out_channels), nn.ReLU()]
