"""Convolutions of many models, with what follows them and their gradients, against torch's own."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from outvote.ops.convolution import After, Window, add_up_windows, convolve, cut_windows, padded
from outvote.training.fused_layers import Product

DTYPES = [torch.float16, torch.float32, torch.float64]
# Shape of the samples, filters, size, stride, padding.
LAYERS = [
    ((2, 3, 8, 8, 16), 24, 3, 1, 1),
    ((1, 2, 6, 10, 8), 48, 5, 1, 2),
    ((2, 2, 7, 9, 40), 8, 3, 2, 1),
    ((3, 1, 4, 4, 72), 136, 3, 1, 0),
    ((1, 3, 8, 8, 16), 16, 1, 2, 0),
    ((2, 1, 6, 6, 88), 16, 1, 1, 0),
]


def _drawn(*shape: int, seed: int) -> Tensor:
    # Of few digits: the products are exact in 16 bits as long as their sums are.
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-1, 2, shape, generator=generator).double()


def _layer(shape: tuple[int, ...], filters: int, size: int) -> tuple[Tensor, Tensor]:
    images = _drawn(*shape, seed=0)
    return images, _drawn(shape[0], filters, shape[-1], size, size, seed=1)


def _packed(filters: Tensor) -> Tensor:
    """Return filters ``[models, filters, channels, size, size]`` in the layout of products."""
    rows = filters.permute(0, 3, 4, 2, 1).flatten(1, 3)
    return F.pad(rows, (0, 0, 0, padded(rows.shape[1]) - rows.shape[1])).contiguous()


def _torch(images: Tensor, filters: Tensor, stride: int, padding: int) -> Tensor:
    found = [
        F.conv2d(own.movedim(-1, 1), weight, stride=stride, padding=padding).movedim(1, -1)
        for own, weight in zip(images, filters, strict=True)
    ]
    return torch.stack(found)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "window"),
    [
        ((2, 2, 16, 16, 3), (11, 4, 5)),
        ((2, 3, 4, 4, 64), (5, 1, 2)),
        ((2, 2, 2, 2, 130), (3, 1, 1)),
        ((1, 2, 9, 7, 5), (3, 2, 1)),
        ((2, 1, 8, 8, 4), (1, 2, 0)),
        ((1, 1, 6, 6, 1), (3, 1, 0)),
    ],
)
def test_windows_and_their_sums_are_those_of_torch(
    shape: tuple[int, ...], window: Window, dtype: torch.dtype, device: torch.device
) -> None:
    size, stride, padding = window
    images = _drawn(*shape, seed=0)
    flat = images.flatten(0, 1).movedim(-1, 1).requires_grad_()
    # unfold has the channels before the window.
    unfolded = F.unfold(flat, size, stride=stride, padding=padding)
    wanted = unfolded.unflatten(1, (shape[-1], size * size)).movedim(1, 2).flatten(1, 2).mT
    wanted = F.pad(wanted, (0, -wanted.shape[-1] % 8))
    found = cut_windows(images.to(device, dtype), window)
    assert torch.equal(found.cpu().double().flatten(0, 1).flatten(1, 2), wanted)
    outer = _drawn(*found.shape, seed=1)
    (wanted * outer.flatten(0, 1).flatten(1, 2)).sum().backward()
    total = add_up_windows(outer.to(device, dtype), images.shape, window)
    assert torch.equal(total.cpu().double().flatten(0, 1).movedim(-1, 1), flat.grad)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layer", LAYERS)
def test_it_is_the_convolution_of_torch(
    layer: Any, dtype: torch.dtype, device: torch.device
) -> None:
    shape, num, size, stride, padding = layer
    images, filters = _layer(shape, num, size)
    wanted = _torch(images, filters, stride, padding)
    given = images.to(dtype).to(device), _packed(filters).to(dtype).to(device)
    found = convolve(*given, (size, stride, padding))
    torch.testing.assert_close(found.cpu(), wanted.to(dtype), rtol=0, atol=0)


@pytest.mark.parametrize("is_pooled", [False, True])
@pytest.mark.parametrize("has_scale", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_follows_is_that_of_torch(
    is_pooled: bool, has_scale: bool, dtype: torch.dtype, device: torch.device
) -> None:
    images, filters = _layer((2, 3, 6, 8, 16), 24, 3)
    scale, shift = _drawn(2, 24, seed=2) / 2, _drawn(2, 24, seed=3)
    wanted = _torch(images, filters, 1, 1)
    wanted = wanted * scale[:, None, None, None] if has_scale else wanted
    wanted = F.relu(wanted + shift[:, None, None, None])
    if is_pooled:
        flat = wanted.flatten(0, 1).movedim(-1, 1)
        wanted = F.max_pool2d(flat, 2).movedim(1, -1).unflatten(0, (2, 3))
    plus = _drawn(*wanted.shape[:-1], 40, seed=4)
    # Written beside the channels of others, and added to what is there.
    whole = torch.full(plus.shape, 7.0, dtype=dtype, device=device)
    after = After(
        scale=scale.to(dtype).to(device) if has_scale else None,
        shift=shift.to(dtype).to(device),
        relu=True,
        is_pooled=is_pooled,
        plus=plus.to(dtype).to(device)[..., 8:32],
        out=whole[..., 8:32],
    )
    convolve(images.to(dtype).to(device), _packed(filters).to(dtype).to(device), (3, 1, 1), after)
    wanted = wanted + plus[..., 8:32]
    torch.testing.assert_close(whole[..., 8:32].cpu(), wanted.to(dtype), rtol=0, atol=0)
    assert bool((whole[..., :8] == 7).all())
    assert bool((whole[..., 32:] == 7).all())


def test_models_may_share_their_images(device: torch.device) -> None:
    images, filters = _layer((3, 2, 6, 6, 8), 16, 3)
    shared = images[:1].expand_as(images)
    given = shared[:1].float().to(device).expand_as(images)
    found = convolve(given, _packed(filters).float().to(device), (3, 1, 1))
    wanted = _torch(shared, filters, 1, 1).float()
    torch.testing.assert_close(found.cpu(), wanted, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layer", LAYERS)
def test_its_gradients_are_those_of_torch(
    layer: Any, dtype: torch.dtype, device: torch.device
) -> None:
    shape, num, size, stride, padding = layer
    images, filters = _layer(shape, num, size)
    exact = images.clone().requires_grad_(), filters.clone().requires_grad_()
    wanted = _torch(*exact, stride, padding)
    outer = _drawn(*wanted.shape, seed=5)
    (wanted * outer).sum().backward()

    given = images.to(dtype).to(device).requires_grad_()
    weights = _packed(filters).to(dtype).to(device)
    targets = torch.full_like(weights, torch.nan), None
    anchor = torch.zeros((), requires_grad=True)
    found = Product.apply(given, weights, None, targets, (size, stride, padding), anchor)
    (found.double() * outer.to(device)).sum().backward()
    assert given.grad is not None
    _close(given.grad, exact[0].grad)
    assert exact[1].grad is not None
    _close(targets[0], _packed(exact[1].grad))


def _close(found: Tensor, wanted: Tensor | None) -> None:
    assert wanted is not None
    scale = float(wanted.abs().max())
    torch.testing.assert_close(found.cpu().double(), wanted, rtol=2**-7, atol=2**-8 * scale)
