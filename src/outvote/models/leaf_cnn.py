"""The convolutional networks of LEAF for FEMNIST: as published, and a smaller one."""

from torch import nn

from outvote.models.parts import conv

Shape = tuple[int, int, int]


def leaf_cnn(num_classes: int, image_shape: Shape = (28, 28, 1)) -> nn.Module:
    """Return two convolutions and two linear layers: 6,603,710 parameters for 62 classes."""
    return _two_convolutions(num_classes, image_shape, filters=32, hidden=2048)


def leaf_cnn_small(num_classes: int, image_shape: Shape = (28, 28, 1)) -> nn.Module:
    """Return the same with fewer filters: 848,382 parameters for 62 classes."""
    return _two_convolutions(num_classes, image_shape, filters=16, hidden=512)


def _two_convolutions(num_classes: int, image_shape: Shape, filters: int, hidden: int) -> nn.Module:
    height, width, channels = image_shape
    return nn.Sequential(
        conv(channels, filters, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        conv(filters, 2 * filters, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * filters * (height // 4) * (width // 4), hidden),
        nn.ReLU(),
        nn.Linear(hidden, num_classes),
    )
