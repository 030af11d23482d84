"""ResNet-18 as for ImageNet, the paper's network for ImageNet-12."""

from torch import nn

from outvote.models.parts import GlobalAverage, Residual


def resnet18(num_classes: int, image_shape: tuple[int, int, int] = (224, 224, 3)) -> nn.Module:
    """Return the standard eight blocks of two convolutions: 11,182,668 parameters for 12."""
    layers: list[nn.Module] = [
        nn.Conv2d(image_shape[2], 64, 7, stride=2, padding=3, bias=False),
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
