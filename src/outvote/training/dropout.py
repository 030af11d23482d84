"""Dropout under vmap: each model has the masks that it would have if it trained alone.

A client draws its masks from a generator of its own, seeded as the global one is where clients
train one after the other. On a CPU the masks are the same; on a GPU another kernel draws them.
"""

from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.autograd import Function

_AXES_OF_CHANNELS = {nn.Dropout1d: 3, nn.Dropout2d: 4, nn.Dropout3d: 5}


@final
class Masks:
    """Draws the masks of the dropout layers of one network."""

    def __init__(self, module: nn.Module) -> None:
        """Take over the dropout layers of a network, which is changed."""
        self.generators: Sequence[torch.Generator] = ()
        """Those of the models of a call, one for each."""
        layers = [p for p in module.modules() if type(p) in (nn.Dropout, *_AXES_OF_CHANNELS)]
        self.is_needed = bool(layers)
        for layer in layers:
            layer.forward = self._forward_of(layer)

    def _forward_of(self, layer: Any) -> Callable[[Tensor], Tensor]:
        original = layer.forward

        def forward(values: Tensor) -> Tensor:
            num_axes = _AXES_OF_CHANNELS.get(type(layer))
            # torch does not draw at these rates, and takes samples without a batch otherwise.
            if not layer.training or layer.p in (0, 1) or num_axes not in (None, values.dim()):
                found: Tensor = original(values)
                return found
            shape = values.shape
            if num_axes is not None:
                shape = torch.Size((*shape[:2], *[1] * (num_axes - 2)))
            mask = Mask.apply(values, self, shape, 1 - layer.p)  # type: ignore[no-untyped-call]
            mask = mask / (1 - layer.p)
            return values.mul_(mask) if layer.inplace else values * mask

        return forward


class Mask(Function):
    """Zeros and ones, drawn for each model by its own generator."""

    @staticmethod
    def forward(values: Tensor, masks: Masks, shape: torch.Size, share: float) -> Tensor:
        """Draw for one model."""
        return values.new_empty(shape).bernoulli_(share, generator=masks.generators[0])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Note that there is no gradient."""
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, *outer: Any) -> Any:
        """Return no gradient."""
        return None, None, None, None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        values: Tensor,
        masks: Masks,
        shape: torch.Size,
        share: float,
    ) -> tuple[Tensor, int]:
        """Draw for all models."""
        found = values.new_empty(info.batch_size, *shape)
        for own, generator in zip(found, masks.generators, strict=True):
            own.bernoulli_(share, generator=generator)
        return found, 0
