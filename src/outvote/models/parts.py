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


@final
class Positions(nn.Module):
    """Adds a learned vector to every position of ``[samples, length, width]``."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.02 * torch.randn(length, width))

    def forward(self, values: Tensor) -> Tensor:
        """Add the vectors of the first positions, as many as there are."""
        return values + self.weight[: values.shape[-2]]


@final
class CausalAttention(nn.Module):
    """Self-attention of several heads; a position sees itself and the ones before."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.inside = nn.Linear(width, 3 * width)
        self.outside = nn.Linear(width, width)

    def forward(self, values: Tensor) -> Tensor:
        """Take and return ``[samples, length, width]``."""
        heads = self.inside(values).unflatten(-1, (3, self.num_heads, -1))
        # [3, samples, heads, length, width of a head]
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        # Written out: torch's fused attention cannot be vmapped at full speed.
        scores = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
        is_later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        shares = scores.masked_fill(is_later, float("-inf")).softmax(dim=-1)
        mixed: Tensor = self.outside((shares @ value).transpose(1, 2).flatten(-2))
        return mixed


def conv(channels: int, filters: int, size: int, *, stride: int = 1) -> nn.Conv2d:
    """Return a convolution with a bias that keeps the size of the image (at stride 1)."""
    return nn.Conv2d(channels, filters, size, stride, padding=size // 2)


def normalised(layer: nn.Conv2d) -> list[nn.Module]:
    """Return a convolution followed by batch normalisation and ReLU."""
    return [layer, nn.BatchNorm2d(layer.out_channels), nn.ReLU()]
