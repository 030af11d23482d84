"""The largest value of every window of pixels, for many models at once."""

from torch import Tensor, nn

from outvote.ops.convolution import Window
from outvote.ops.door import backend

# The side of a window whose values are numbered in 8 bits.
LARGEST = 11


def max_pool(images: Tensor, module: nn.MaxPool2d) -> Tensor:
    """Return ``images [models, batch, height, width, channels]`` pooled as a module does it.

    The gradient goes to the first of several largest values.
    """
    window = window_of(module)
    run = None if window is None else backend("max_pool", images, images[..., 0].numel())
    if run is not None:
        own: Tensor = run(images, window)
        return own
    # torch pools the channels-last layout without a copy.
    pooled: Tensor = module(images.flatten(0, 1).permute(0, 3, 1, 2))
    last: Tensor = pooled.permute(0, 2, 3, 1).unflatten(0, images.shape[:2])
    return last


def window_of(module: nn.MaxPool2d) -> Window | None:
    """Return the window of plain pooling; None: it is not square, too large or of another kind."""
    settings = (module.kernel_size, module.stride, module.padding, module.dilation)
    if any(not isinstance(each, int) and len({*each}) > 1 for each in settings):
        return None
    size, stride, padding, dilation = (
        each if isinstance(each, int) else int(each[0]) for each in settings
    )
    if dilation > 1 or size > LARGEST or module.ceil_mode or module.return_indices:
        return None
    return size, stride, padding
