"""One network, many sets of weights: all of them forward and backward as one program.

Samples are ``[models, batch, height, width, channels]``. A convolution is one batched matrix
product of im2col and the weights. While clients train, the weights of each model are packed in the
layout of these products (`StackedModel.pack`); `unpack` puts them back into torch's order.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F

from outvote.kernels import is_for_kernels, load_kernels
from outvote.models.parts import Branches, GlobalAverage, Residual
from outvote.training.batch_norm import Normalise, affine
from outvote.training.im2col import im2col

Layer = Callable[["Pass", Tensor], Tensor]
# Packed parameters start at multiples of it: fast products need aligned addresses.
ALIGNED = 64
# The inputs of convolutions are padded to multiples of it: other products are several times slower.
COLUMNS = 8


@dataclass(slots=True)
class Pass:
    """The inputs of one forward pass, besides the samples."""

    parameters: Sequence[Tensor]
    buffers: Sequence[Tensor]
    gradients: Sequence[Tensor] | None = None
    """Where the gradients of weights are written; None: torch allocates them."""
    is_there: Tensor | None = None
    """Which samples of a batch are no padding, ``[models, batch]``; None: all."""
    is_training: bool = False
    anchor: Tensor = field(default_factory=lambda: torch.zeros((), requires_grad=True))


def padded(num_values: int) -> int:
    """Return how many values a window of a convolution has in a product: a multiple of `COLUMNS`.

    The values behind its own are 0, in the windows and in the weights.
    """
    return -(-num_values // COLUMNS) * COLUMNS


@dataclass(frozen=True, slots=True)
class Slot:
    """The position and layout of a parameter or buffer in the vector of a model.

    A packed "plain" or "linear" one is as torch has it. The filters of a "conv" are the columns of
    a matrix ``[padded(height * width * channels), filters]``: the layout of products.
    """

    start: int
    shape: torch.Size
    kind: Literal["plain", "linear", "conv"] = "plain"
    packed_start: int = 0
    """Its position among the packed parameters, see `StackedModel.pack`."""
    is_product: bool = False
    """Whether a product writes its gradient in place."""

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return prod(self.shape)

    @property
    def packed_size(self) -> int:
        """How many numbers it has among the packed parameters."""
        if self.kind != "conv":
            return self.size
        return padded(prod(self.shape[1:])) * self.shape[0]

    def read(self, vectors: Tensor) -> Tensor:
        """Return it from ``vectors [models, dim]``; weights are ``[models, inputs, outputs]``."""
        values = vectors[:, self.start : self.start + self.size].view(-1, *self.shape)
        if self.kind == "plain":
            return values
        # [filters, channels, height, width] -> [height * width * channels, filters]
        return values.movedim(1, -1).movedim(1, -2).flatten(1, -2)

    def view(self, packed: Tensor) -> Tensor:
        """Return a view of it in ``packed [models, packed_dim]``.

        Weights are ``[models, inputs, outputs]``, those of a convolution with the padded inputs.
        """
        values = packed[:, self.packed_start : self.packed_start + self.packed_size]
        if self.kind == "conv":
            return values.view(-1, self.packed_size // self.shape[0], self.shape[0])
        values = values.view(-1, *self.shape)
        return values.mT if self.kind == "linear" else values

    def view_unpadded(self, packed: Tensor) -> Tensor:
        """Return the part of `view` that has the values of `read`."""
        found = self.view(packed)
        return found[:, : prod(self.shape[1:])] if self.kind == "conv" else found

    def write(self, values: Tensor, vectors: Tensor) -> None:
        """Write what `read` returned back into ``vectors [models, dim]``."""
        if self.kind != "plain":
            _, channels, *window = self.shape
            values = values.unflatten(1, (*window, channels))
            values = values.movedim(-1, 1).movedim(-1, 2)
        target = vectors[:, self.start : self.start + self.size]
        target.view(-1, *self.shape).copy_(values)


class StackedModel:
    """A network for many sets of weights at once."""

    def __init__(self, module: nn.Module) -> None:
        """Read a network; every layer must be of a known kind."""
        self.slots: list[Slot] = []
        self.buffer_slots: list[Slot] = []
        self.num_parameters = self.num_buffers = self.packed_dim = 0
        self._tables: dict[torch.device, Any] = {}
        self._layer = self._read(module)

    def pack(self, vectors: Tensor) -> Tensor:
        """Copy the parameters of ``vectors [models, dim]`` into ``[models, packed_dim]``.

        There every parameter has the layout of products, and starts at an aligned address.
        """
        packed = vectors.new_zeros(len(vectors), self.packed_dim)
        for slot in self.slots:
            slot.view_unpadded(packed).copy_(slot.read(vectors))
        return packed

    def views(self, packed: Tensor) -> list[Tensor]:
        """Return one view per packed parameter."""
        return [slot.view(packed) for slot in self.slots]

    def unpack(self, packed: Tensor) -> Tensor:
        """Return packed parameters as vectors ``[models, dim]``, in torch's order."""
        vectors = packed.new_empty(len(packed), self.num_parameters)
        for slot in self.slots:
            slot.write(slot.view_unpadded(packed), vectors)
        return vectors

    @torch.no_grad()
    def write_changes(
        self, vectors: Tensor, runs: Tensor, packed: Tensor, out: Tensor, rows: Tensor
    ) -> None:
        """Write the weights before training minus those after, in torch's order.

        Model k started from ``vectors[runs[k]]``, its weights are ``packed[k]``, and its row is
        ``out[rows[k]]``.
        """
        kernels = _kernels() if is_for_kernels(packed) else None
        if kernels is None:
            out[rows] = vectors[runs].sub_(self.unpack(packed))
            return
        if packed.device not in self._tables:
            self._tables[packed.device] = kernels.tables(self.slots, packed.device)
        kernels.write_changes(vectors, runs, packed, out, rows, *self._tables[packed.device])

    def gaps(self) -> list[tuple[int, int]]:
        """Return where packed vectors hold no parameter: the starts and ends of these parts."""
        ends = [slot.packed_start + slot.packed_size for slot in self.slots]
        starts = [*(slot.packed_start for slot in self.slots[1:]), self.packed_dim]
        return [pair for pair in zip(ends, starts, strict=True) if pair[0] < pair[1]]

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
        torch returns those of the others.
        """
        return self._layer(Pass(parameters, buffers, gradients, is_there, is_training), images)

    def _read(self, module: nn.Module) -> Layer:
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
        layer: Layer = reader(module)
        return layer

    def _slot(
        self,
        parameter: Tensor,
        *,
        kind: Literal["plain", "linear", "conv"] = "plain",
        is_product: bool = False,
    ) -> int:
        slot = Slot(self.num_parameters, parameter.shape, kind, self.packed_dim, is_product)
        self.slots.append(slot)
        self.num_parameters += slot.size
        self.packed_dim += -(-slot.packed_size // ALIGNED) * ALIGNED
        return len(self.slots) - 1

    def _weights(self, module: nn.Conv2d | nn.Linear) -> tuple[int, int | None]:
        kind: Literal["linear", "conv"] = "conv" if isinstance(module, nn.Conv2d) else "linear"
        weight = self._slot(module.weight, kind=kind, is_product=True)
        bias: Tensor | None = module.bias
        return weight, None if bias is None else self._slot(bias, is_product=True)

    def _read_sequential(self, module: nn.Sequential) -> Layer:
        parts = [self._read(part) for part in module]

        def run(state: Pass, images: Tensor) -> Tensor:
            for part in parts:
                images = part(state, images)
            return images

        return run

    def _read_residual(self, module: Residual) -> Layer:
        body, shortcut = self._read(module.body), self._read(module.shortcut)
        return lambda state, images: body(state, images) + shortcut(state, images)

    def _read_branches(self, module: Branches) -> Layer:
        parts = [self._read(part) for part in module.parts]
        return lambda state, images: torch.cat([part(state, images) for part in parts], dim=-1)

    def _read_conv2d(self, module: nn.Conv2d) -> Layer:
        _check_conv(module)
        size, stride, padding = module.kernel_size[0], module.stride[0], int(module.padding[0])
        weight, bias = self._weights(module)

        def run(state: Pass, images: Tensor) -> Tensor:
            # Evaluation shares the samples among the models: one copy of the windows is enough.
            is_shared = images.stride(0) == 0
            windows = im2col(images[:1] if is_shared else images, size, stride, padding)
            num_values = windows.shape[-1]
            if num_values % COLUMNS:
                windows = F.pad(windows, (0, padded(num_values) - num_values))
            rows = windows.flatten(1, 3)
            rows = rows.expand(len(images), -1, -1) if is_shared else rows
            return _times(rows, state, weight, bias).view(len(images), *windows.shape[1:4], -1)

        return run

    def _read_linear(self, module: nn.Linear) -> Layer:
        weight, bias = self._weights(module)
        return lambda state, rows: _times(rows, state, weight, bias)

    def _read_maxpool2d(self, module: nn.MaxPool2d) -> Layer:
        def run(_: Pass, images: Tensor) -> Tensor:
            # torch pools the channels-last layout without a copy.
            flat = images.flatten(0, 1).permute(0, 3, 1, 2)
            pooled: Tensor = module(flat)
            last: Tensor = pooled.permute(0, 2, 3, 1).unflatten(0, images.shape[:2])
            return last

        return run

    def _read_batchnorm2d(self, module: nn.BatchNorm2d) -> Layer:
        statistics = (module.running_mean, module.running_var, module.num_batches_tracked)
        if not module.affine or any(buffer is None for buffer in statistics):
            raise TypeError(
                "cannot stack batch normalisation without weights or running statistics; set "
                "affine and track_running_stats."
            )
        at = [self._slot(module.weight), self._slot(module.bias)]
        first = len(self.buffer_slots)
        for buffer in statistics:
            assert buffer is not None
            self.buffer_slots.append(Slot(self.num_buffers, buffer.shape))
            self.num_buffers += buffer.numel()
        epsilon, momentum = module.eps, module.momentum

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
            count += 1
            # Without a momentum, torch keeps the mean over all batches.
            share = (1 / count).to(mean.dtype).unsqueeze(-1) if momentum is None else momentum
            # The statistics have the precision of the stored samples, which may be higher.
            mean.lerp_(now_mean.to(mean.dtype), share)
            variance.lerp_(unbiased.to(variance.dtype), share)
            found: Tensor = result
            return found

        return run


class Product(Function):
    """``rows @ weight + bias`` for many models; the weights' gradients are written, not returned.

    Returned gradients would be allocated in every step, and copied once more.
    """

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        to_weight: Tensor,
        to_bias: Tensor | None,
        anchor: Tensor,
    ) -> Tensor:
        """Multiply ``rows [models, num, inputs]`` with ``weight [models, inputs, outputs]``.

        `anchor` requires a gradient: without one, torch would skip the backward pass.
        """
        del anchor
        ctx.save_for_backward(rows, weight)
        ctx.to_weight, ctx.to_bias = to_weight, to_bias
        return _multiply(rows, weight, bias)

    @staticmethod
    def backward(ctx: Any, *outer: Any) -> Any:
        """Write the gradients of the weights, return that of the rows."""
        (gradient,) = outer
        rows, weight = ctx.saved_tensors
        torch.bmm(rows.mT, gradient, out=ctx.to_weight)
        if ctx.to_bias is not None:
            torch.sum(gradient, dim=1, out=ctx.to_bias)
        inner = torch.bmm(gradient, weight.mT) if ctx.needs_input_grad[0] else None
        return inner, None, None, None, None, None


def _multiply(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if bias is None:
        return torch.bmm(rows, weight)
    return torch.baddbmm(bias.unsqueeze(1), rows, weight)


def _times(rows: Tensor, state: Pass, weight: int, bias: int | None) -> Tensor:
    own = state.parameters[weight]
    offset = None if bias is None else state.parameters[bias]
    if state.gradients is None:
        return _multiply(rows, own, offset)
    to_bias = None if bias is None else state.gradients[bias]
    result: Tensor = Product.apply(  # type: ignore[no-untyped-call]
        rows, own, offset, state.gradients[weight], to_bias, state.anchor
    )
    return result


def _kernels() -> Any:
    return load_kernels("outvote.kernels.unpack_triton")


def is_plain(module: nn.Conv2d) -> bool:
    """Return whether a convolution is square, without groups, dilation or another padding."""
    return (
        module.groups == 1
        and module.dilation == (1, 1)
        and module.padding_mode == "zeros"
        and len({*module.kernel_size}) == len({*module.stride}) == len({*module.padding}) == 1
    )


def _check_conv(module: nn.Conv2d) -> None:
    if not is_plain(module):
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
