"""A network of your own: `name = "my_model.py:Net"` under [model] in outvote.toml."""

from torch import Tensor, nn


class Net(nn.Module):
    """A small perceptron. Any torch module works; it is trained as it is."""

    def __init__(self, num_classes: int) -> None:
        """Make the layers; outvote passes a parameter that is named `num_classes`."""
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(),
            nn.Linear(28 * 28, 64),
            nn.GELU(),
            nn.Linear(64, num_classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return one number per class for images [batch, channels, height, width]."""
        return self.layers(images)
