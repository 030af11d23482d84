"""im2col: the windows of a convolution as the rows of a matrix, with a gradient."""

from typing import Any

from torch import Tensor
from torch.autograd import Function

from outvote.ops.convolution import add_up_windows, cut_windows


def im2col(images: Tensor, size: int, stride: int, padding: int) -> Tensor:
    """Return the windows of a convolution, ``[models, batch, height, width, padded values]``."""
    found: Tensor = Im2Col.apply(images, (size, stride, padding))  # type: ignore[no-untyped-call]
    return found


class Im2Col(Function):
    """Copies all windows; the backward pass adds up the gradients where windows overlap."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, window: tuple[int, int, int]) -> Tensor:
        """Copy the windows of ``images [models, batch, height, width, channels]``."""
        ctx.window, ctx.shape = window, images.shape
        return cut_windows(images, window)

    @staticmethod
    def backward(ctx: Any, *outer: Any) -> Any:
        """Add the gradients of all windows to the pixels that they were copied from."""
        return add_up_windows(outer[0], ctx.shape, ctx.window), None
