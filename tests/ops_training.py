"""The cases of `test_ops` for the operations that training and attacks use."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ops_case import ROUNDED, Case
from outvote.ops import convolution, layers, moments, packing, pooling, sgd
from outvote.ops.convolution import After, Window, padded
from outvote.ops.moments import Request
from outvote.ops.packing import Slot


def drawn(generator: torch.Generator, dtype: torch.dtype, *shape: int) -> Tensor:
    """Draw normal numbers."""
    return torch.randn(shape, generator=generator).to(dtype)


class Sgd(NamedTuple):
    """Settings of a step."""

    momentum: float
    weight_decay: float
    max_norm: float | None


def take_step(
    weights: Tensor, gradients: Tensor, velocities: Tensor, *more: Any, **how: Any
) -> Any:
    """Take a step, and return what it wrote."""
    copy, *rest = more
    num_going = how.get("num_going")
    sgd.take_step(weights, gradients, velocities, copy, *rest, **how)
    # What takes no other step may be anything.
    return weights, velocities[:num_going], None if copy is None else copy[:num_going]


def steps(
    max_norm: float | None,
    *,
    is_narrow: bool = False,
    has_start: bool = False,
    is_first: bool = False,
) -> Any:
    """Return what draws the arguments of a step."""

    def make(generator: torch.Generator, dtype: torch.dtype) -> Any:
        weights, gradients, velocities = (drawn(generator, dtype, 3, 5000) for _ in range(3))
        copy = weights.bfloat16() if is_narrow else None
        how: dict[str, Any] = {"is_first": is_first}
        if is_first:  # What is not set yet must not be read.
            velocities.fill_(torch.nan)
        if has_start:
            weights.fill_(torch.nan)
            start = drawn(generator, dtype, 2, 5000), torch.tensor([1, 0, 1])
            how |= {"start": start, "num_going": 2}
        return weights, gradients, velocities, copy, Sgd(0.5, 1e-3, max_norm), 0.1, how

    return make


# Shape of the images, filters, window.
CONVOLUTIONS: dict[str, tuple[tuple[int, ...], int, Window]] = {
    "3 x 3": ((2, 3, 8, 8, 16), 24, (3, 1, 1)),
    "5 x 5, lines longer than columns": ((1, 2, 6, 10, 8), 48, (5, 1, 2)),
    "stride 2": ((2, 2, 7, 9, 40), 8, (3, 2, 1)),
    "more than a block of channels and filters": ((3, 1, 4, 4, 72), 136, (3, 1, 0)),
    "one pixel": ((1, 3, 8, 8, 16), 16, (1, 2, 0)),
    "channels not in eights": ((2, 2, 6, 6, 3), 8, (3, 1, 1)),
    "several strips of pixels": ((1, 4, 32, 32, 8), 8, (3, 1, 1)),
}


def filters(generator: torch.Generator, dtype: torch.dtype, layer: Any) -> Tensor:
    """Draw the filters of a convolution, zeros behind them as in packed weights."""
    shape, num, (size, _, _) = layer
    num_values = size * size * shape[-1]
    found = torch.zeros(shape[0], padded(num_values), num, dtype=dtype)
    found[:, :num_values] = drawn(generator, dtype, shape[0], num_values, num)
    return found


def of_layers(make: Callable[[torch.Generator, torch.dtype, Any], Any]) -> dict[str, Any]:
    """Return a family for every convolution."""
    return {
        name: lambda generator, dtype, layer=layer: make(generator, dtype, layer)
        for name, layer in CONVOLUTIONS.items()
    }


def to_convolve(generator: torch.Generator, dtype: torch.dtype, layer: Any) -> Any:
    shape, _, window = layer
    return drawn(generator, dtype, *shape), filters(generator, dtype, layer), window


def shared(generator: torch.Generator, dtype: torch.dtype) -> Any:
    """Draw images that all models share."""
    layer = ((3, 2, 6, 6, 8), 16, (3, 1, 1))
    images = drawn(generator, dtype, 1, 2, 6, 6, 8).expand(3, -1, -1, -1, -1)
    return images, filters(generator, dtype, layer), (3, 1, 1)


def with_after(is_pooled: bool, has_scale: bool) -> Any:
    """Return what draws a convolution that writes beside the channels of others."""

    def make(generator: torch.Generator, dtype: torch.dtype) -> Any:
        layer = ((2, 3, 6, 8, 16), 24, (3, 1, 1))
        halves = 2 if is_pooled else 1
        shape = (2, 3, 6 // halves, 8 // halves, 40)
        whole, plus = torch.full(shape, 7.0, dtype=dtype), drawn(generator, dtype, *shape)
        scale = drawn(generator, torch.float32, 2, 24) if has_scale else None
        shift = drawn(generator, dtype, 2, 60)[:, 36:]
        return *to_convolve(generator, dtype, layer), scale, shift, is_pooled, plus, whole

    return make


def convolve(images: Tensor, weights: Tensor, window: Window, *more: Any) -> Any:
    """Convolve, and return all that is written."""
    if not more:
        return convolution.convolve(images, weights, window)
    scale, shift, is_pooled, plus, whole = more
    after = After(scale, shift, True, is_pooled, plus[..., 8:32], whole[..., 8:32])
    convolution.convolve(images, weights, window, after)
    return whole


def gradients(generator: torch.Generator, dtype: torch.dtype, layer: Any) -> Any:
    images, weights, window = to_convolve(generator, dtype, layer)
    sides = convolution.sides(images, window)
    outer = drawn(generator, dtype, *images.shape[:2], *sides, weights.shape[-1])
    return images, weights, outer, window


def weight_gradient(images: Tensor, weights: Tensor, outer: Tensor, window: Window) -> Tensor:
    target = torch.full_like(weights, torch.nan)
    convolution.weight_gradient(images, outer, target, window)
    return target


def windows(generator: torch.Generator, dtype: torch.dtype, layer: Any) -> Any:
    """Draw the gradients of windows, with anything where they have zeros."""
    shape, _, window = layer
    images = torch.empty(shape)
    num_values = padded(window[0] ** 2 * shape[-1])
    sides = convolution.sides(images, window)
    return drawn(generator, dtype, *shape[:2], *sides, num_values), images.shape, window


# Of samples of many models.
SAMPLES = {
    "few channels": (2, 3, 4, 6, 7),
    "small images": (3, 4, 2, 2, 16),
    "more than a block of channels": (1, 6, 4, 2, 130),
    "several strips": (1, 5, 16, 16, 24),
}


class Norm(NamedTuple):
    """Samples, padding and parameters, which are parts of a longer vector."""

    images: Tensor
    is_there: Tensor | None
    factor: Tensor
    offset: Tensor
    bias: Tensor


def norm(
    generator: torch.Generator, dtype: torch.dtype, shape: tuple[int, ...], *, is_padded: bool
) -> Norm:
    images = (3 * drawn(generator, torch.float64, *shape) + 5).to(dtype)
    is_there = None
    if is_padded:
        is_there = torch.ones(shape[:2], dtype=torch.bool)
        is_there[0, -1] = is_there[-1, 2:] = False
    packed = drawn(generator, dtype, shape[0], 3, shape[-1] + 5)
    return Norm(images, is_there, *(packed[:, k, : shape[-1]] for k in range(3)))


def to_normalise(shape: tuple[int, ...], *, is_padded: bool) -> Any:
    def make(generator: torch.Generator, dtype: torch.dtype) -> Any:
        given = norm(generator, dtype, shape, is_padded=is_padded)
        running = drawn(generator, torch.float32, 2, shape[0], shape[-1]).abs()
        share = torch.full((shape[0],), 0.25, dtype=torch.float64)
        bias = given.bias if is_padded else None
        return *given[:-1], bias, (running[0], running[1], share)

    return make


def norm_moments(
    images: Tensor, is_there: Any, factor: Tensor, offset: Tensor, bias: Any, running: Any
) -> Any:
    """Return the moments and the running ones."""
    found = layers.norm_moments(images, is_there, (factor, offset, bias), running, 1e-5)
    return found, running


def to_differentiate(shape: tuple[int, ...], follows: str, *, is_padded: bool) -> Any:
    """Return what draws the gradient of normalised samples, channels among those of others."""

    def make(generator: torch.Generator, dtype: torch.dtype) -> Any:
        images, is_there, factor, offset, _ = norm(generator, dtype, shape, is_padded=is_padded)
        ones = torch.ones(shape[0], shape[-1])
        running = ones, ones.clone(), torch.ones(shape[0], dtype=torch.float64)
        parameters = factor.float(), offset.float(), None
        moments = layers.norm_moments(images.float(), is_there, parameters, running, 1e-5)
        index = None
        if follows == "pooling":
            index = layers.affine_pooled(images, *moments[2:4], has_index=True)[1]
        outer = drawn(generator, dtype, *(images if index is None else index).shape[:-1], 200)
        outer = outer[..., 8 : 8 + shape[-1]]
        if is_there is not None:
            outer = outer * is_there[:, :, None, None, None].to(dtype)
        return outer, index, images, is_there, moments, factor, offset, bool(follows)

    return make


def inner_gradient(
    outer: Tensor, index: Any, images: Tensor, is_there: Any, moments: Any, *more: Any
) -> Any:
    """Return the gradients of samples, factors and offsets."""
    factor, offset, relu = more
    targets = torch.zeros_like(factor), torch.zeros_like(offset)
    found = layers.inner_gradient(outer, index, images, is_there, moments, targets, relu=relu)
    return found, targets


def to_scale(shape: tuple[int, ...], *, is_pooled: bool = False, is_joined: bool = False) -> Any:
    """Return what draws samples, scale and shift; and where to write, and what to add."""

    def make(generator: torch.Generator, dtype: torch.dtype) -> Any:
        images, _, _, shift, _ = norm(generator, dtype, shape, is_padded=False)
        scale = drawn(generator, torch.float32, shape[0], shape[-1]) if is_joined else None
        halves = 2 if is_pooled else 1
        sides = (*shape[:2], shape[2] // halves, shape[3] // halves, shape[4] + 9)
        whole, plus = torch.full(sides, 7.0, dtype=dtype), drawn(generator, dtype, *sides)
        return images, scale, shift, *((whole, plus) if is_joined else (None, None))

    return make


def one_pixel(generator: torch.Generator, dtype: torch.dtype) -> Any:
    """Draw images of one pixel, with what is added: torch takes any stride for contiguous there."""
    plus = drawn(generator, dtype, 3, 4, 8).as_strided((3, 4, 1, 1, 8), (32, 8, 1, 1, 1))
    images, shift = drawn(generator, dtype, 3, 4, 1, 1, 8), drawn(generator, dtype, 3, 8)
    return images, None, shift, torch.zeros_like(images), plus


def affine(images: Tensor, scale: Any, shift: Tensor, whole: Any, plus: Any) -> Any:
    """Scale and shift, in place or beside the channels of others."""
    if whole is None:
        return layers.affine(images, scale, shift, images, relu=True), images
    start = (whole.shape[-1] - images.shape[-1]) // 2
    own = slice(start, start + images.shape[-1])
    layers.affine(images, scale, shift, whole[..., own], plus=plus[..., own])
    return whole, images


def affine_pooled(images: Tensor, scale: Any, shift: Tensor, whole: Any, _: Any) -> Any:
    out = None if whole is None else whole[..., 4 : 4 + images.shape[-1]]
    found, index = layers.affine_pooled(images, scale, shift, out, has_index=True)
    return found, index, whole, layers.affine_pooled(images, scale, shift)[0]


def relu_gradient(outer: Tensor, index: Any, outputs: Tensor, shape: Any, bias: Tensor) -> Any:
    target = torch.zeros_like(bias)
    return layers.relu_gradient(outer, index, outputs, shape, target), target


def to_differentiate_relu(shape: tuple[int, ...], *, is_pooled: bool) -> Any:
    def make(generator: torch.Generator, dtype: torch.dtype) -> Any:
        images, _, _, bias, _ = norm(generator, dtype, shape, is_padded=False)
        images = (images - 5).to(dtype)
        index = None
        outputs = layers.affine(images, None, bias, relu=True)
        if is_pooled:
            outputs, index = layers.affine_pooled(images, None, bias, has_index=True)
        outer = drawn(generator, dtype, *outputs.shape[:-1], 200)[..., 8 : 8 + shape[-1]]
        return outer, index, outputs, images.shape, bias

    return make


def to_pool(generator: torch.Generator, dtype: torch.dtype, window: Window) -> Any:
    """Draw samples of few values: the first of several largest counts."""
    images = drawn(generator, dtype, 2, 3, 9, 8, 20).round()
    images[0, 1, 4, 4, 3] = torch.nan
    module = nn.MaxPool2d(*window)
    sides = convolution.sides(images, window)
    return images, module, drawn(generator, dtype, 2, 3, *sides, 20)


def max_pool(images: Tensor, module: nn.MaxPool2d, outer: Tensor) -> Any:
    """Return what is pooled, and its gradient."""
    images = images.contiguous().requires_grad_()
    found = pooling.max_pool(images, module)
    torch.where(found.isnan(), 0, found * outer).sum().backward()
    with torch.no_grad():
        return found, images.grad, pooling.max_pool(images, module)


def to_measure(
    shape: tuple[int, ...], request: Request, *, is_half: bool = False, is_masked: bool = True
) -> Any:
    """Return what draws rows, some of which do not count, whatever they are."""

    def make(generator: torch.Generator, dtype: torch.dtype) -> Any:
        rows = (drawn(generator, dtype, *shape) + 3).to(torch.float16 if is_half else dtype)
        is_used = None
        if is_masked:
            is_used = torch.rand(shape[:2], generator=generator) < 0.7
            is_used[:, -1] = True
            rows[~is_used] = torch.nan
        return rows, is_used, dtype, request

    return make


def measure(*given: Any) -> Any:
    found = moments.measure(*given)
    names = ("mean", "counts", "spread", "squared_norms", "products", "along")
    return [getattr(found, name) for name in names], found.is_safe()


REQUESTS = {
    "the mean": Request(),
    "the spread": Request(spread=True),
    "norms": Request(spread=True, norms=True, is_exact=True),
    "all": Request(
        spread=True, norms=True, products=True, toward=lambda _, spread: spread, is_exact=True
    ),
}


def to_unpack(shapes: dict[tuple[int, ...], Any]) -> Any:
    """Return what draws vectors, packed weights, and rows of which some stay."""

    def make(generator: torch.Generator, dtype: torch.dtype) -> Any:
        slots, dim, packed_dim = [], 0, 0
        for shape, kind in shapes.items():
            slots.append(Slot(dim, torch.Size(shape), kind, packed_dim))
            dim += slots[-1].size
            packed_dim += -(-slots[-1].packed_size // 64) * 64
        packed = drawn(generator, dtype, 3, packed_dim)
        runs, rows = torch.tensor([1, 0, 1]), torch.tensor([4, 0, 2])
        out = torch.full((5, dim), 7.0, dtype=dtype)
        return slots, drawn(generator, dtype, 2, dim), runs, packed, out, rows

    return make


def write_changes(*given: Any) -> Tensor:
    packing.write_changes(*given)
    return given[4]


CASES: dict[str, Case] = {
    "add_relu": Case(
        layers.add_relu,
        {
            "rows": lambda g, dtype: (drawn(g, dtype, 3, 5000), drawn(g, dtype, 3, 5000)),
            "turned": lambda g, dtype: (drawn(g, dtype, 7, 9).mT, drawn(g, dtype, 9, 7)),
        },
        ROUNDED,
    ),
    "add_up_windows": Case(convolution.add_up_windows, of_layers(windows), ROUNDED),
    "affine": Case(
        affine,
        {
            f"{name}, {how}": to_scale(shape, is_joined=how == "joined")
            for name, shape in SAMPLES.items()
            for how in ("in place", "joined")
        }
        | {"one pixel": one_pixel},
        ROUNDED,
    ),
    "affine_pooled": Case(
        affine_pooled,
        {
            f"{name}, {how}": to_scale(shape, is_pooled=True, is_joined=how == "joined")
            for name, shape in SAMPLES.items()
            for how in ("alone", "joined")
        },
        ROUNDED,
    ),
    "convolve": Case(
        convolve,
        {
            **of_layers(to_convolve),
            "shared": shared,
            "scaled and added": with_after(is_pooled=False, has_scale=True),
            "shifted and pooled": with_after(is_pooled=True, has_scale=False),
        },
        ROUNDED,
    ),
    "cut_windows": Case(
        lambda images, _, window: convolution.cut_windows(images, window),
        {**of_layers(to_convolve), "shared": shared},
    ),
    "image_gradient": Case(
        lambda images, weights, outer, window: convolution.image_gradient(
            outer, weights, images.shape, window
        ),
        of_layers(gradients),
        ROUNDED,
    ),
    "inner_gradient": Case(
        inner_gradient,
        {
            f"{name}, {follows}, {is_padded}": to_differentiate(shape, follows, is_padded=is_padded)
            for name, shape in SAMPLES.items()
            for follows, is_padded in (("", True), ("relu", False), ("pooling", True))
        },
        ROUNDED,
    ),
    "max_pool": Case(
        max_pool,
        {
            str(window): lambda g, dtype, window=window: to_pool(g, dtype, window)
            for window in ((3, 2, 1), (2, 2, 0), (3, 1, 1), (3, 3, 0), (5, 2, 2))
        },
        ROUNDED,
    ),
    "moments": Case(
        measure,
        {
            **{
                f"{name}, {shape}": to_measure(shape, request)
                for name, request in REQUESTS.items()
                for shape in ((1, 1, 7), (3, 5, 700), (2, 18, 333), (2, 130, 40))
            },
            "16 bits": to_measure((2, 6, 100), REQUESTS["norms"], is_half=True),
            "all count": to_measure((2, 6, 100), REQUESTS["all"], is_masked=False),
        },
        ROUNDED,
    ),
    "norm_moments": Case(
        norm_moments,
        {
            f"{name}, {is_padded}": to_normalise(shape, is_padded=is_padded)
            for name, shape in SAMPLES.items()
            for is_padded in (False, True)
        },
        ROUNDED,
    ),
    "relu_gradient": Case(
        relu_gradient,
        {
            f"{name}, {is_pooled}": to_differentiate_relu(shape, is_pooled=is_pooled)
            for name, shape in SAMPLES.items()
            for is_pooled in (False, True)
        },
        ROUNDED,
    ),
    "take_step": Case(
        lambda *given: take_step(*given[:-1], **given[-1]),
        {
            "plain": steps(None),
            "clipped": steps(2.0),
            "short enough": steps(1e6),
            "clipped, with a copy": steps(0.1, is_narrow=True),
            "the first": steps(2.0, is_first=True),
            "from rows, the last of some": steps(None, is_first=True, has_start=True),
        },
        ROUNDED,
    ),
    "write_changes": Case(
        write_changes,
        {
            # Filters and weights that fill no tile.
            "mixed": to_unpack(
                {
                    (35, 3, 5, 5): "conv",
                    (35,): "plain",
                    (9, 35, 3, 3): "conv",
                    (64, 9, 1, 1): "conv",
                    (5, 2049): "linear",
                }
            ),
            "one of two pieces": to_unpack({(2100,): "plain"}),
        },
        is_widened=False,
    ),
    "weight_gradient": Case(weight_gradient, of_layers(gradients), ROUNDED),
}
