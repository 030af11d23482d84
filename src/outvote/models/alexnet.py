"""AlexNet for 32 x 32 images, the paper's network for CIFAR-10."""

from torch import nn

from outvote.models.parts import conv


def alexnet(num_classes: int, image_shape: tuple[int, int, int] = (32, 32, 3)) -> nn.Module:
    """Return five convolutions and one linear layer: 2,472,266 parameters for 10 classes."""
    return nn.Sequential(
        nn.Conv2d(image_shape[2], 64, 11, stride=4, padding=5),
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
