"""One network, many sets of weights: all of them forward and backward as one program.

Samples are ``[models, batch, height, width, channels]``. A convolution is one batched product of
the windows of the samples with the weights, so weights are kept the way that product wants them
(`Stacked.spread`) while clients train, and are put back into torch's order afterwards.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from outvote.models.normalisation import Normalise, affine
from outvote.models.parts import Branches, GlobalAverage, Residual
from outvote.models.products import Product, multiply
from outvote.models.windows import im2col

Run = Callable[["Pass", Tensor], Tensor]
# Numbers: parameters start at multiples of it, so that fast products are possible.
ALIGNED = 64


@dataclass(slots=True)
class Pass:
    """What one forward pass works with."""

    parameters: Sequence[Tensor]
    buffers: Sequence[Tensor]
    gradients: Sequence[Tensor] | None = None
    """Where gradients of weights are written; None: they are left to torch."""
    is_there: Tensor | None = None
    """Which samples of a batch are not padding, ``[models, batch]``; None: all."""
    is_training: bool = False
    anchor: Tensor = field(default_factory=lambda: torch.zeros((), requires_grad=True))


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a parameter or buffer lies in the vector of a model, and how it is worked with."""

    start: int
    shape: torch.Size
    is_turned: bool = False
    place: int = 0
    """Where it lies in the room of a model, see `Stacked.spread`."""
    is_product: bool = False
    """Whether its gradient can be written in place."""

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return prod(self.shape)

    def spread(self, vectors: Tensor) -> Tensor:
        """Cut it out of ``vectors [models, dim]``, as products want it."""
        values = vectors[:, self.start : self.start + self.size].view(-1, *self.shape)
        if not self.is_turned:
            return values
        # [filters, channels, height, width] -> [height * width * channels, filters]
        return values.movedim(1, -1).movedim(1, -2).flatten(1, -2)

    def view(self, room: Tensor) -> Tensor:
        """Return its place in ``room [models, places]``."""
        values = room[:, self.place : self.place + self.size]
        if not self.is_turned:
            return values.view(-1, *self.shape)
        return values.view(-1, self.size // self.shape[0], self.shape[0])

    def gather(self, values: Tensor, vectors: Tensor) -> None:
        """Write it back into ``vectors [models, dim]``."""
        if self.is_turned:
            filters, channels, *window = self.shape
            values = values.view(len(values), *window, channels, filters)
            values = values.movedim(-1, 1).movedim(-1, 2)
        target = vectors[:, self.start : self.start + self.size]
        target.view(-1, *self.shape).copy_(values)


class Stacked:
    """A network for many sets of weights at once."""

    def __init__(self, module: nn.Module) -> None:
        """Read a network; its layers must be ones that are known here."""
        self.slots: list[Slot] = []
        self.buffer_slots: list[Slot] = []
        self._dim = 0
        self._buffer_dim = 0
        self._places = 0
        self._run = self._read(module)
        self.num_parameters = self._dim
        self.num_buffers = self._buffer_dim
        self.num_places = self._places

    def spread(self, vectors: Tensor) -> Tensor:
        """Copy the parameters of ``vectors [models, dim]`` to a room ``[models, places]``.

        In it every parameter lies as products want it, and starts at an address that suits them.
        """
        room = vectors.new_zeros(len(vectors), self.num_places)
        for slot in self.slots:
            slot.view(room).copy_(slot.spread(vectors))
        return room

    def views(self, room: Tensor) -> list[Tensor]:
        """Return the parameters in a room, one view each."""
        return [slot.view(room) for slot in self.slots]

    def gather(self, room: Tensor) -> Tensor:
        """Return the parameters in a room as vectors ``[models, dim]``, in the order of torch."""
        vectors = room.new_empty(len(room), self.num_parameters)
        for slot in self.slots:
            slot.gather(slot.view(room), vectors)
        return vectors

    def forward(
        self,
        parameters: Sequence[Tensor],
        images: Tensor,
        *,
        buffers: Sequence[Tensor] = (),
        gradients: Sequence[Tensor] | None = None,
        is_there: Tensor | None = None,
        is_training: bool = False,
    ) -> Tensor:
        """Return the logits ``[models, batch, classes]``; buffers are changed in training.

        With `gradients`, the backward pass writes the gradients of the weights of products there;
        those of other parameters are left to torch.
        """
        return self._run(Pass(parameters, buffers, gradients, is_there, is_training), images)

    def _read(self, module: nn.Module) -> Run:
        kind = type(module)
        if kind in _PLAIN:
            plain = _PLAIN[kind]
            return lambda _, images: plain(images)
        reader = getattr(self, f"_read_{kind.__name__.lower()}", None)
        if reader is None:
            raise TypeError(
                f"cannot stack a layer of the kind {kind.__name__}; known are Conv2d, Linear, "
                "BatchNorm2d, MaxPool2d, ReLU, Flatten, Sequential, Residual, Branches, "
                "GlobalAverage. Use a model of these, or train client by client."
            )
        run: Run = reader(module)
        return run

    def _slot(self, parameter: Tensor, *, is_turned: bool = False, is_product: bool = False) -> int:
        shape = parameter.shape
        self.slots.append(Slot(self._dim, shape, is_turned, self._places, is_product))
        self._dim += parameter.numel()
        self._places += -(-parameter.numel() // ALIGNED) * ALIGNED
        return len(self.slots) - 1

    def _weights(self, module: nn.Conv2d | nn.Linear) -> tuple[int, int | None]:
        weight = self._slot(module.weight, is_turned=True, is_product=True)
        bias: Tensor | None = module.bias
        return weight, None if bias is None else self._slot(bias, is_product=True)

    def _read_sequential(self, module: nn.Sequential) -> Run:
        parts = [self._read(part) for part in module]

        def run(state: Pass, images: Tensor) -> Tensor:
            for part in parts:
                images = part(state, images)
            return images

        return run

    def _read_residual(self, module: Residual) -> Run:
        body, shortcut = self._read(module.body), self._read(module.shortcut)
        return lambda state, images: body(state, images) + shortcut(state, images)

    def _read_branches(self, module: Branches) -> Run:
        parts = [self._read(part) for part in module.parts]
        return lambda state, images: torch.cat([part(state, images) for part in parts], dim=-1)

    def _read_conv2d(self, module: nn.Conv2d) -> Run:
        _check_conv(module)
        size, stride, padding = module.kernel_size[0], module.stride[0], int(module.padding[0])
        weight, bias = self._weights(module)

        def run(state: Pass, images: Tensor) -> Tensor:
            # Samples that all models share (in evaluation) are cut once.
            is_shared = images.stride(0) == 0
            windows = im2col(images[:1] if is_shared else images, size, stride, padding)
            rows = windows.flatten(1, 3)
            rows = rows.expand(len(images), -1, -1) if is_shared else rows
            return _times(rows, state, weight, bias).view(len(images), *windows.shape[1:4], -1)

        return run

    def _read_linear(self, module: nn.Linear) -> Run:
        weight, bias = self._weights(module)
        return lambda state, rows: _times(rows, state, weight, bias)

    def _read_maxpool2d(self, module: nn.MaxPool2d) -> Run:
        def run(_: Pass, images: Tensor) -> Tensor:
            # Channels last is a layout that torch knows: nothing is copied.
            flat = images.flatten(0, 1).permute(0, 3, 1, 2)
            pooled: Tensor = module(flat)
            last: Tensor = pooled.permute(0, 2, 3, 1).unflatten(0, images.shape[:2])
            return last

        return run

    def _read_batchnorm2d(self, module: nn.BatchNorm2d) -> Run:
        at = [self._slot(module.weight), self._slot(module.bias)]
        first = len(self.buffer_slots)
        for buffer in (module.running_mean, module.running_var, module.num_batches_tracked):
            if buffer is None:
                raise TypeError("batch normalisation must track its running statistics.")
            self.buffer_slots.append(Slot(self._buffer_dim, buffer.shape))
            self._buffer_dim += buffer.numel()
        epsilon, momentum = module.eps, module.momentum or 0.1

        def run(state: Pass, images: Tensor) -> Tensor:
            mean, variance, count = state.buffers[first : first + 3]
            factor, offset = (state.parameters[k] for k in at)
            if not state.is_training:
                scale = factor * (variance + epsilon).rsqrt()
                return affine(images, scale, offset - mean * scale)
            result, now_mean, now_variance, size = Normalise.apply(  # type: ignore[no-untyped-call]
                images, factor, offset, state.is_there, epsilon
            )
            unbiased = now_variance * (size / (size - 1).clamp(min=1))
            # Buffers are as exact as the samples were drawn, which may be more than these are.
            mean.lerp_(now_mean.to(mean.dtype), momentum)
            variance.lerp_(unbiased.to(variance.dtype), momentum)
            count += 1
            found: Tensor = result
            return found

        return run


def _times(rows: Tensor, state: Pass, weight: int, bias: int | None) -> Tensor:
    own = state.parameters[weight]
    offset = None if bias is None else state.parameters[bias]
    if state.gradients is None:
        return multiply(rows, own, offset)
    to_bias = None if bias is None else state.gradients[bias]
    result: Tensor = Product.apply(  # type: ignore[no-untyped-call]
        rows, own, offset, state.gradients[weight], to_bias, state.anchor
    )
    return result


def _check_conv(module: nn.Conv2d) -> None:
    is_plain = (
        module.groups == 1
        and module.dilation == (1, 1)
        and module.padding_mode == "zeros"
        and len({*module.kernel_size}) == len({*module.stride}) == len({*module.padding}) == 1
    )
    if not is_plain:
        raise TypeError(f"cannot stack {module}: only square, plain convolutions are known.")


def _flatten(images: Tensor) -> Tensor:
    # In torch's order: channels first.
    return images.movedim(-1, 2).flatten(2)


_PLAIN: dict[type[nn.Module], Callable[[Tensor], Tensor]] = {
    nn.ReLU: F.relu,
    nn.Identity: lambda images: images,
    nn.Flatten: _flatten,
    GlobalAverage: lambda images: images.mean(dim=(2, 3)),
}
