"""SqueezeNet with batch normalisation for 32 x 32 images, the paper's network for CIFAR-100."""

from torch import nn

from outvote.models.parts import Branches, GlobalAverage, Residual, conv, normalised


def squeezenet(num_classes: int, image_shape: tuple[int, int, int] = (32, 32, 3)) -> nn.Module:
    """Return eight fire modules, three with a shortcut: 781,156 parameters for 100 classes."""
    return nn.Sequential(
        *normalised(conv(image_shape[2], 96, 3)),
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
