"""One network, many sets of weights: all of them forward and backward as one program.

Samples are ``[models, batch, height, width, channels]``. A convolution is one batched product of
windows and the weights. While clients train, the weights of each model are packed in the layout of
these products (`StackedModel.pack`); `unpack` puts them back into torch's order.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from outvote.models.parts import Branches, GlobalAverage, Residual
from outvote.ops import packing
from outvote.ops.convolution import After, Window, cut_windows, multiply, sides
from outvote.ops.packing import Slot
from outvote.ops.pooling import max_pool
from outvote.training import fused_layers
from outvote.training.fused_layers import Joined, Norm
from outvote.training.known_layers import NotAcceptedError, check_known

Layer = Callable[..., Tensor]
"""Takes the `Pass` and the samples."""
# Packed parameters start at multiples of it: fast products need aligned addresses.
ALIGNED = 64


@dataclass(slots=True)
class Pass:
    """The inputs of one forward pass, besides the samples."""

    parameters: Sequence[Tensor]
    buffers: Sequence[Tensor]
    gradients: Sequence[Tensor] | None = None
    """Where the backward pass writes the gradients of the parameters; None: there is none."""
    is_there: Tensor | None = None
    """Which samples of a batch are no padding, ``[models, batch]``; None: all."""
    is_training: bool = False
    scales: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """In evaluation, scale and shift of each batch normalisation, by its first buffer."""
    anchor: Tensor = field(default_factory=lambda: torch.zeros((), requires_grad=True))


class StackedModel:
    """A network for many sets of weights at once."""

    def __init__(self, module: nn.Module, num_axes: int = 3) -> None:
        """Read a network for samples of so many axes; refuse layers that are not known."""
        check_known(module, KNOWN)
        if num_axes not in (1, 3):
            raise NotAcceptedError("samples are neither images nor vectors")
        self._num_axes = num_axes
        self.slots: list[Slot] = []
        self.buffer_slots: list[Slot] = []
        self.num_parameters = self.num_buffers = self.packed_dim = 0
        self._layer = self._read(module)
        if self._num_axes != 1:
            raise NotAcceptedError("the network does not end with one number per class")

    def pack(self, vectors: Tensor) -> Tensor:
        """Copy the parameters of ``vectors [models, dim]`` into ``[models, packed_dim]``.

        There every parameter has the layout of products, and starts at an aligned address.
        """
        return packing.pack(self.slots, vectors, self.packed_dim)

    def views(self, packed: Tensor) -> list[Tensor]:
        """Return one view per packed parameter."""
        return [slot.view(packed) for slot in self.slots]

    def unpack(self, packed: Tensor) -> Tensor:
        """Return packed parameters as vectors ``[models, dim]``, in torch's order."""
        return packing.unpack(self.slots, packed)

    def write_changes(
        self, vectors: Tensor, runs: Tensor, packed: Tensor, out: Tensor, rows: Tensor
    ) -> None:
        """Write the weights before training minus those after, see `packing.write_changes`."""
        packing.write_changes(self.slots, vectors, runs, packed, out, rows)

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

        The backward pass writes the gradients of all parameters into `gradients`; without them
        there is none.
        """
        return self._layer(Pass(parameters, buffers, gradients, is_there, is_training), images)

    def evaluated(
        self, parameters: Sequence[Tensor], buffers: Sequence[Tensor] = ()
    ) -> Callable[[Tensor], Tensor]:
        """Return a function that gives the logits of images; what is the same for all is kept."""
        return partial(self._layer, Pass(parameters, buffers))

    def _read(self, module: nn.Module) -> Layer:
        return self._read_chain([module])

    def _read_chain(self, modules: Sequence[nn.Module]) -> "Chain":
        """Read layers that follow each other; some are computed together with those after them."""
        left = list(_flat(modules))
        layers: list[Layer] = []
        while left:
            module, *left = left
            kind = type(module)
            if kind in _PLAIN:
                layers.append(self._read_plain(module))
                continue
            self._check_axes(kind, _AXES[kind])
            reader = getattr(self, f"_read_{kind.__name__.lower()}")
            layers.append(reader(module, left))
        return Chain(layers)

    def _check_axes(self, kind: type[nn.Module], num_axes: int | None) -> None:
        """Refuse a layer that torch would apply to other axes: here channels are the last one."""
        if num_axes is not None and num_axes != self._num_axes:
            given = "images" if self._num_axes == 3 else "vectors"
            raise NotAcceptedError(f"a layer of the kind {kind.__name__} is given {given}")

    def _read_plain(self, module: nn.Module) -> Layer:
        if isinstance(module, GlobalAverage):
            self._check_axes(GlobalAverage, 3)
        if isinstance(module, nn.Flatten):
            if (module.start_dim, module.end_dim) != (1, -1):
                raise NotAcceptedError("a layer of the kind Flatten keeps some axes")
            if self._num_axes == 1:
                return _plain_layer(lambda values: values)
        if isinstance(module, GlobalAverage | nn.Flatten):
            self._num_axes = 1
        return _plain_layer(_PLAIN[type(module)])

    def _slot(
        self,
        parameter: Tensor,
        *,
        kind: Literal["plain", "linear", "conv"] = "plain",
    ) -> int:
        slot = Slot(self.num_parameters, parameter.shape, kind, self.packed_dim)
        self.slots.append(slot)
        self.num_parameters += slot.size
        self.packed_dim += -(-slot.packed_size // ALIGNED) * ALIGNED
        return len(self.slots) - 1

    def _weights(self, module: nn.Conv2d | nn.Linear) -> tuple[int, int | None]:
        kind: Literal["linear", "conv"] = "conv" if isinstance(module, nn.Conv2d) else "linear"
        weight = self._slot(module.weight, kind=kind)
        bias: Tensor | None = module.bias
        return weight, None if bias is None else self._slot(bias)

    def _read_residual(self, module: Residual, left: list[nn.Module]) -> Layer:
        body, shortcut = self._read_side_by_side([module.body, module.shortcut])
        has_relu = _take(left, nn.ReLU)
        # Branches that are written side by side can be added to what is there.
        is_joined = isinstance(body.last, BranchesLayer) and not has_relu

        def run(state: Pass, images: Tensor) -> Tensor:
            two = shortcut(state, images)
            if is_joined:
                return body(state, images, plus=two)
            one = body(state, images)
            if has_relu:
                found: Tensor = fused_layers.AddRelu.apply(one, two)  # type: ignore[no-untyped-call]
                return found
            return one + two

        return run

    def _read_side_by_side(self, modules: Sequence[nn.Module]) -> list["Chain"]:
        """Read parts that take the same samples, and whose results have as many axes."""
        before, found, after = self._num_axes, [], set()
        for module in modules:
            self._num_axes = before
            found.append(self._read_chain([module]))
            after.add(self._num_axes)
        if len(after) > 1:
            raise NotAcceptedError("images and vectors are put together")
        return found

    def _read_branches(self, module: Branches, left: list[nn.Module]) -> "BranchesLayer":
        parts = self._read_side_by_side(list(module.parts))
        pool = _take_pool(left) if all(_ends_with_relu(part) for part in parts) else None
        return BranchesLayer(parts, pool)

    def _read_conv2d(self, module: nn.Conv2d, left: list[nn.Module]) -> Layer:
        if not is_plain(module):
            raise NotAcceptedError("a Conv2d is not square, or has groups, dilation or padding")
        size, stride, padding = module.kernel_size[0], module.stride[0], int(module.padding[0])
        weight, bias = self._weights(module)

        window = (size, stride, padding)
        return self._read_product(ProductLayer(weight, bias, window), left)

    def _read_linear(self, module: nn.Linear, left: list[nn.Module]) -> Layer:
        weight, bias = self._weights(module)
        return self._read_product(ProductLayer(weight, bias), left)

    def _read_product(self, product: "ProductLayer", left: list[nn.Module]) -> Layer:
        if product.window is None:
            has_relu = product.bias is not None and _take(left, nn.ReLU)
            return ReluLayer(product, None) if has_relu else product
        if left and type(left[0]) is nn.BatchNorm2d:
            return self._read_norm(left.pop(0), left, product)
        if product.bias is not None and _take(left, nn.ReLU):
            return ReluLayer(product, _take_pool(left))
        return product

    def _read_maxpool2d(self, module: nn.MaxPool2d, left: list[nn.Module]) -> Layer:
        del left
        if module.return_indices:
            raise NotAcceptedError("a layer of the kind MaxPool2d returns indices")
        return lambda _, images: max_pool(images, module)

    def _read_batchnorm2d(self, module: nn.BatchNorm2d, left: list[nn.Module]) -> Layer:
        return self._read_norm(module, left, None)

    def _read_norm(
        self, module: nn.Module, left: list[nn.Module], product: "ProductLayer | None"
    ) -> "NormLayer":
        assert isinstance(module, nn.BatchNorm2d)
        statistics = (module.running_mean, module.running_var, module.num_batches_tracked)
        if not module.affine or any(buffer is None for buffer in statistics):
            raise NotAcceptedError("a BatchNorm2d has no weights or no running statistics")
        at = tuple(self._slot(values) for values in (module.weight, module.bias))
        first = len(self.buffer_slots)
        for buffer in statistics:
            assert buffer is not None
            self.buffer_slots.append(Slot(self.num_buffers, buffer.shape))
            self.num_buffers += buffer.numel()
        has_relu = _take(left, nn.ReLU)
        pool = _take_pool(left) if has_relu else None
        return NormLayer(product, module, at, first, has_relu, pool)


class Chain:
    """Layers that follow each other."""

    def __init__(self, layers: list[Layer]) -> None:
        """Take the layers."""
        self.layers = layers

    def __call__(self, state: Pass, images: Tensor, **more: Any) -> Tensor:
        """Run them; the last takes `more` than the samples."""
        *others, last = self.layers or [_plain_layer(lambda values: values)]
        for layer in others:
            images = layer(state, images)
        return last(state, images, **more)

    @property
    def last(self) -> Layer | None:
        """The last layer."""
        return self.layers[-1] if self.layers else None

    @property
    def num_channels(self) -> int | None:
        """How many channels its result has, if it can be written beside that of others."""
        return self.last.num_channels if isinstance(self.last, NormLayer) else None


@dataclass(frozen=True, slots=True, eq=False)
class BranchesLayer:
    """Several chains on the same samples, their channels side by side, pooled where wanted."""

    parts: list[Chain]
    pool: nn.MaxPool2d | None

    def __call__(self, state: Pass, images: Tensor, plus: Tensor | None = None) -> Tensor:
        """Let every part write its channels, added to `plus`."""
        sizes = [part.num_channels for part in self.parts]
        if None in sizes:
            found = torch.cat([part(state, images) for part in self.parts], dim=-1)
            found = found if self.pool is None else max_pool(found, self.pool)
            return found if plus is None else found + plus
        added = plus if self.pool is None else None
        joined = Joined(sum(size or 0 for size in sizes), added)
        written = [part(state, images, joined=joined, pool=self.pool) for part in self.parts]
        whole: Tensor = fused_layers.Join.apply(  # type: ignore[no-untyped-call]
            joined, added, *written
        )
        return whole if plus is None or added is not None else whole + plus


@dataclass(frozen=True, slots=True, eq=False)
class ProductLayer:
    """A convolution or linear layer as one batched product."""

    weight: int
    bias: int | None
    window: Window | None = None
    """Of a convolution."""

    def __call__(self, state: Pass, images: Tensor) -> Tensor:
        """Multiply and add the bias."""
        return self.multiply(state, images, self.bias)

    def multiply(self, state: Pass, images: Tensor, bias: int | None = None) -> Tensor:
        """Multiply, and add a bias where the next layer does not."""
        weight = state.parameters[self.weight]
        offset = None if bias is None else state.parameters[bias]
        gradients = state.gradients
        if gradients is None:
            rows = images if self.window is None else cut_windows(images, self.window)
            return multiply(rows, weight, offset)
        targets = gradients[self.weight], None if bias is None else gradients[bias]
        found: Tensor = fused_layers.Product.apply(  # type: ignore[no-untyped-call]
            images, weight, offset, targets, self.window, state.anchor
        )
        return found

    def evaluate(
        self,
        state: Pass,
        images: Tensor,
        after: After,
        pool: nn.MaxPool2d | None,
        joined: Joined | None = None,
    ) -> Tensor:
        """Return the product in evaluation, with what follows it."""
        window = self.window
        is_pooled = pool is not None and window is not None and _is_even(sides(images, window))
        is_last = is_pooled or pool is None
        after = after._replace(is_pooled=is_pooled)
        own = state.parameters[self.weight]
        found = fused_layers.evaluated(images, own, window, after, joined if is_last else None)
        return found if is_last else _pooled(found, pool, joined)


@dataclass(frozen=True, slots=True, eq=False)
class ReluLayer:
    """A product, its bias, ReLU, and pooling where it follows."""

    product: ProductLayer
    pool: nn.MaxPool2d | None

    def __call__(self, state: Pass, images: Tensor) -> Tensor:
        """Compute them together."""
        bias = self.product.bias
        assert bias is not None
        offset = state.parameters[bias]
        if state.gradients is None:
            after = After(shift=offset, relu=True)
            return self.product.evaluate(state, images, after, self.pool)
        product = self.product.multiply(state, images)
        is_pooled = self.pool is not None and _is_even(product.shape[2:-1])
        found: Tensor = fused_layers.BiasRelu.apply(  # type: ignore[no-untyped-call]
            product, offset, state.gradients[bias], is_pooled
        )
        return found if is_pooled or self.pool is None else max_pool(found, self.pool)


@dataclass(frozen=True, slots=True, eq=False)
class NormLayer:
    """Batch normalisation, the product before it, and ReLU and pooling where they follow."""

    product: ProductLayer | None
    module: nn.BatchNorm2d
    at: tuple[int, ...]
    """The slots of factor and offset."""
    first: int
    """The first of its three buffers."""
    has_relu: bool
    pool: nn.MaxPool2d | None

    @property
    def num_channels(self) -> int:
        """How many channels its result has."""
        return self.module.num_features

    def __call__(
        self,
        state: Pass,
        images: Tensor,
        joined: Joined | None = None,
        pool: nn.MaxPool2d | None = None,
    ) -> Tensor:
        """Normalise by the moments of the batch, or in evaluation by the running ones."""
        bias = None if self.product is None else self.product.bias
        own = None if bias is None else state.parameters[bias]
        pool = self.pool or pool
        if not state.is_training:
            return self._evaluate(state, images, own, joined, pool)
        if self.product is not None:
            images = self.product.multiply(state, images)
        # A bias changes nothing but the mean, and its gradient is 0.
        if bias is not None and state.gradients is not None:
            state.gradients[bias].zero_()
        is_pooled = pool is not None and _is_even(images.shape[2:4])
        is_last = is_pooled or pool is None
        mean, variance, _ = state.buffers[self.first : self.first + 3]
        factor, offset = (state.parameters[k] for k in self.at)
        targets = state.gradients or state.parameters
        norm = Norm(
            factor,
            offset,
            own,
            (mean, variance, self._share(state)),
            (targets[self.at[0]], targets[self.at[1]]),
            state.is_there,
            self.module.eps,
            self.has_relu,
            is_pooled,
            joined if is_last else None,
        )
        found: Tensor = fused_layers.FusedNorm.apply(  # type: ignore[no-untyped-call]
            images, norm, state.anchor
        )
        return found if is_last else _pooled(found, pool, joined)

    def _evaluate(
        self,
        state: Pass,
        images: Tensor,
        bias: Tensor | None,
        joined: Joined | None,
        pool: nn.MaxPool2d | None,
    ) -> Tensor:
        scale, shift = self._running(state, bias)
        after = After(scale, shift, self.has_relu)
        if self.product is not None:
            return self.product.evaluate(state, images, after, pool, joined)
        is_pooled = pool is not None and _is_even(images.shape[2:4])
        is_last = is_pooled or pool is None
        after = after._replace(is_pooled=is_pooled)
        found = fused_layers.normalised(images, after, joined if is_last else None)
        return found if is_last else _pooled(found, pool, joined)

    def _share(self, state: Pass) -> Tensor:
        """Count the batch, and return the share of its moments in the running ones, per model."""
        count = state.buffers[self.first + 2]
        count += 1
        momentum = self.module.momentum
        # Without a momentum, torch keeps the mean over all batches.
        if momentum is None:
            return 1 / count
        return torch.full_like(count, momentum, dtype=torch.float64)

    def _running(self, state: Pass, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return scale and shift of the running statistics."""
        if self.first not in state.scales:
            mean, variance, _ = state.buffers[self.first : self.first + 3]
            factor, offset = (state.parameters[k] for k in self.at)
            scale = factor * (variance + self.module.eps).rsqrt()
            shift = offset - (mean if bias is None else mean - bias) * scale
            state.scales[self.first] = scale, shift
        return state.scales[self.first]


def is_plain(module: nn.Conv2d) -> bool:
    """Return whether a convolution is square, without groups, dilation or another padding."""
    return (
        module.groups == 1
        and module.dilation == (1, 1)
        and module.padding_mode == "zeros"
        and len({*module.kernel_size}) == len({*module.stride}) == len({*module.padding}) == 1
    )


def _flatten(images: Tensor) -> Tensor:
    # In torch's order: channels first.
    return images.movedim(-1, 2).flatten(2)


def _plain_layer(work: Callable[[Tensor], Tensor]) -> Layer:
    return lambda _, images: work(images)


def _flat(modules: Sequence[nn.Module]) -> Iterator[nn.Module]:
    for module in modules:
        if type(module) is nn.Sequential:
            yield from _flat(list(module))
        else:
            yield module


def _take(left: list[nn.Module], kind: type[nn.Module]) -> bool:
    """Take the next layer, if it is of a kind."""
    return bool(left) and type(left[0]) is kind and left.pop(0) is not None


def _take_pool(left: list[nn.Module]) -> nn.MaxPool2d | None:
    """Take the next layer, if it pools windows of 2 x 2 side by side."""
    pool = left[0] if left else None
    if type(pool) is not nn.MaxPool2d or pool.ceil_mode or pool.return_indices:
        return None
    settings = (pool.kernel_size, pool.stride, pool.padding, pool.dilation)
    if [_pair(each) for each in settings] != [(2, 2), (2, 2), (0, 0), (1, 1)]:
        return None
    left.pop(0)
    return pool


def _is_even(sides: Sequence[int]) -> bool:
    """Return whether 2 x 2 pixels cover an image."""
    return len(sides) == 2 and not any(side % 2 for side in sides)


def _pair(value: int | tuple[int, ...]) -> tuple[int, ...]:
    return (value, value) if isinstance(value, int) else tuple(value)


def _ends_with_relu(chain: Chain) -> bool:
    last = chain.last
    return isinstance(last, NormLayer) and last.has_relu and last.pool is None


def _pooled(images: Tensor, pool: nn.MaxPool2d | None, joined: Joined | None) -> Tensor:
    """Pool where wanted, and copy to the place among the branches where there are some."""
    found = images if pool is None else max_pool(images, pool)
    return found if joined is None else fused_layers.placed(found, joined)


_PLAIN: dict[type[nn.Module], Callable[[Tensor], Tensor]] = {
    nn.ReLU: F.relu,
    nn.Identity: lambda images: images,
    nn.Flatten: _flatten,
    GlobalAverage: lambda images: images.mean(dim=(2, 3)),
}
# How many axes the samples of a layer have; None: any number.
_AXES: dict[type[nn.Module], int | None] = {
    nn.Conv2d: 3,
    nn.BatchNorm2d: 3,
    nn.MaxPool2d: 3,
    nn.Linear: 1,
    Residual: None,
    Branches: None,
}
KNOWN = (*_PLAIN, *_AXES)
