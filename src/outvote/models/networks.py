"""The networks: those of the paper and of LEAF, small ones for laptops, tables and texts."""

from math import prod

from torch import nn

from outvote.models.parts import (
    Branches,
    CausalAttention,
    GlobalAverage,
    Positions,
    Residual,
    conv,
    normalised,
)

Shape = tuple[int, int, int]
"""Of an image: height, width, channels."""


def mlp(num_classes: int, input_shape: Shape = (28, 28, 1)) -> nn.Module:
    """Return one hidden layer of 100 units: 79,510 parameters for ten classes of 28 x 28."""
    height, width, channels = input_shape
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(height * width * channels, 100),
        nn.ReLU(),
        nn.Linear(100, num_classes),
    )


def gelu_mlp(num_classes: int, input_shape: tuple[int, ...] = (46,)) -> nn.Module:
    """Return two hidden layers of 64 units for features: 7,363 parameters for 46 and 3 classes."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(prod(input_shape), 64),
        nn.GELU(),
        nn.Linear(64, 64),
        nn.GELU(),
        nn.Linear(64, num_classes),
    )


def char_transformer(num_classes: int, input_shape: tuple[int] = (64,)) -> nn.Module:
    """Return two causal blocks of width 32 for characters: 31,550 parameters for 62 characters.

    It takes token ids ``[samples, length]``, each below `num_classes`, and returns for every
    position the logits of the token that comes next.
    """
    (length,) = input_shape
    width = 32
    return nn.Sequential(
        nn.Embedding(num_classes, width),
        Positions(length, width),
        *(layer for _ in range(2) for layer in _transformer_block(width)),
        nn.LayerNorm(width),
        nn.Linear(width, num_classes),
    )


def _transformer_block(width: int) -> list[nn.Module]:
    attention = CausalAttention(width, num_heads=4)
    hidden = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
    return [
        Residual(nn.Sequential(nn.LayerNorm(width), attention)),
        Residual(nn.Sequential(nn.LayerNorm(width), *hidden)),
    ]


def small_cnn(num_classes: int, input_shape: Shape = (28, 28, 1)) -> nn.Module:
    """Return two convolutions and a linear layer: 11,274 parameters for ten classes of 28 x 28."""
    layers, size = _two_convolutions(input_shape, 8)
    return nn.Sequential(*layers, nn.Linear(size, num_classes))


def leaf_cnn(
    num_classes: int, input_shape: Shape = (28, 28, 1), *, filters: int = 32, hidden: int = 2048
) -> nn.Module:
    """Return two convolutions and two linear layers: 6,603,710 parameters for 62 classes."""
    layers, size = _two_convolutions(input_shape, filters)
    head = nn.Linear(size, hidden), nn.ReLU(), nn.Linear(hidden, num_classes)
    return nn.Sequential(*layers, *head)


def leaf_cnn_small(num_classes: int, input_shape: Shape = (28, 28, 1)) -> nn.Module:
    """Return the same with fewer filters: 848,382 parameters for 62 classes."""
    return leaf_cnn(num_classes, input_shape, filters=16, hidden=512)


def _two_convolutions(input_shape: Shape, filters: int) -> tuple[list[nn.Module], int]:
    """Return the layers, and how many values they make of an image."""
    height, width, channels = input_shape
    layers: list[nn.Module] = []
    for before, after in ((channels, filters), (filters, 2 * filters)):
        layers += [conv(before, after, 5), nn.ReLU(), nn.MaxPool2d(2)]
    return [*layers, nn.Flatten()], 2 * filters * (height // 4) * (width // 4)


def alexnet(num_classes: int, input_shape: Shape = (32, 32, 3)) -> nn.Module:
    """Return five convolutions and one linear layer: 2,472,266 parameters for 10 classes."""
    return nn.Sequential(
        nn.Conv2d(input_shape[2], 64, 11, stride=4, padding=5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        conv(64, 192, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        conv(192, 384, 3),
        nn.ReLU(),
        conv(384, 256, 3),
        nn.ReLU(),
        conv(256, 256, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256, num_classes),
    )


def squeezenet(num_classes: int, input_shape: Shape = (32, 32, 3)) -> nn.Module:
    """Return eight fire modules, three with a shortcut: 781,156 parameters for 100 classes."""
    return nn.Sequential(
        *normalised(conv(input_shape[2], 96, 3)),
        nn.MaxPool2d(2),
        _fire(96, 16, 128),
        Residual(_fire(128, 16, 128)),
        _fire(128, 32, 256),
        nn.MaxPool2d(2),
        Residual(_fire(256, 32, 256)),
        _fire(256, 48, 384),
        Residual(_fire(384, 48, 384)),
        _fire(384, 64, 512),
        nn.MaxPool2d(2),
        _fire(512, 64, 512),
        conv(512, num_classes, 1),
        GlobalAverage(),
    )


def _fire(channels: int, squeezed: int, filters: int) -> nn.Module:
    return nn.Sequential(
        *normalised(conv(channels, squeezed, 1)),
        Branches(
            nn.Sequential(*normalised(conv(squeezed, filters // 2, 1))),
            nn.Sequential(*normalised(conv(squeezed, filters // 2, 3))),
        ),
    )


def resnet18(num_classes: int, input_shape: Shape = (224, 224, 3)) -> nn.Module:
    """Return the standard eight blocks of two convolutions: 11,182,668 parameters for 12."""
    layers: list[nn.Module] = [
        nn.Conv2d(input_shape[2], 64, 7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
    ]
    channels = 64
    for filters in (64, 128, 256, 512):
        layers += _block(channels, filters)
        layers += _block(filters, filters)
        channels = filters
    return nn.Sequential(*layers, GlobalAverage(), nn.Linear(512, num_classes))


def _block(channels: int, filters: int) -> list[nn.Module]:
    stride = 1 if channels == filters else 2
    body = nn.Sequential(
        nn.Conv2d(channels, filters, 3, stride, padding=1, bias=False),
        nn.BatchNorm2d(filters),
        nn.ReLU(),
        nn.Conv2d(filters, filters, 3, padding=1, bias=False),
        nn.BatchNorm2d(filters),
    )
    if stride == 1:
        return [Residual(body), nn.ReLU()]
    shortcut = nn.Sequential(
        nn.Conv2d(channels, filters, 1, stride, bias=False), nn.BatchNorm2d(filters)
    )
    return [Residual(body, shortcut), nn.ReLU()]
