"""A small convolutional network for laptops."""

from torch import nn

from outvote.models.parts import conv


def small_cnn(num_classes: int, image_shape: tuple[int, int, int] = (28, 28, 1)) -> nn.Module:
    """Return two convolutions and a linear layer: 11,274 parameters for ten classes of 28 x 28."""
    height, width, channels = image_shape
    return nn.Sequential(
        conv(channels, 8, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        conv(8, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * (height // 4) * (width // 4), num_classes),
    )
