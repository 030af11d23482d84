"""Convolutions without im2col against those of torch in float64."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from outvote.ops import IS_INTERPRETED, convolution, is_for_kernels, load_kernels
from outvote.training.fused_layers import Convolution
from outvote.training.im2col import padded

# Triton's interpreter cannot multiply bfloat16.
NARROW = torch.float16 if IS_INTERPRETED else torch.bfloat16
# Shape of the samples, filters, size, stride, padding.
LAYERS = [
    ((2, 3, 8, 8, 16), 24, 3, 1, 1),
    ((1, 2, 6, 10, 8), 48, 5, 1, 2),
    ((2, 2, 7, 9, 40), 8, 3, 2, 1),
    ((3, 1, 4, 4, 72), 136, 3, 1, 0),
    ((1, 3, 8, 8, 16), 16, 1, 2, 0),
    ((2, 1, 6, 6, 88), 16, 1, 1, 0),
]


@pytest.fixture(autouse=True)
def _needs_kernels(device: torch.device) -> None:
    if not is_for_kernels(torch.empty(1, device=device)) or not load_kernels(
        "outvote.ops.triton.convolution"
    ):
        pytest.skip("Triton runs on a GPU, or with TRITON_INTERPRET=1")


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


@pytest.mark.parametrize("layer", LAYERS)
def test_it_is_the_convolution_of_torch(layer: Any, device: torch.device) -> None:
    shape, num, size, stride, padding = layer
    images, filters = _layer(shape, num, size)
    wanted = _torch(images, filters, stride, padding)
    narrow = images.to(NARROW).to(device)
    weights = _packed(filters).to(NARROW).to(device)
    assert convolution.is_readable(narrow)
    found = convolution.convolve(narrow, weights, (size, stride, padding))
    torch.testing.assert_close(found.cpu(), wanted.to(NARROW), rtol=0, atol=0)


@pytest.mark.parametrize("is_pooled", [False, True])
@pytest.mark.parametrize("has_scale", [False, True])
def test_what_follows_is_done_in_the_same_pass(
    is_pooled: bool, has_scale: bool, device: torch.device
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
    whole = torch.full(plus.shape, 7.0, dtype=NARROW, device=device)
    convolution.convolve_into(
        whole[..., 8:32],
        images.to(NARROW).to(device),
        _packed(filters).to(NARROW).to(device),
        (3, 1, 1),
        scale=scale.float().to(device) if has_scale else None,
        shift=shift.float().to(device),
        plus=None if is_pooled else plus.to(NARROW).to(device)[..., 8:32],
        relu=True,
        is_pooled=is_pooled,
    )
    wanted = wanted if is_pooled else wanted + plus[..., 8:32]
    torch.testing.assert_close(whole[..., 8:32].cpu(), wanted.to(NARROW), rtol=0, atol=0)
    assert bool((whole[..., :8] == 7).all())
    assert bool((whole[..., 32:] == 7).all())


def test_models_may_share_their_images(device: torch.device) -> None:
    images, filters = _layer((3, 2, 6, 6, 8), 16, 3)
    shared = images[:1].expand_as(images)
    found = convolution.convolve(
        shared[:1].to(NARROW).to(device).expand_as(images),
        _packed(filters).to(NARROW).to(device),
        (3, 1, 1),
    )
    wanted = _torch(shared, filters, 1, 1).to(NARROW)
    torch.testing.assert_close(found.cpu(), wanted, rtol=0, atol=0)


@pytest.mark.parametrize("layer", LAYERS)
def test_its_gradients_are_those_of_torch(layer: Any, device: torch.device) -> None:
    shape, num, size, stride, padding = layer
    images, filters = _layer(shape, num, size)
    exact = images.clone().requires_grad_(), filters.clone().requires_grad_()
    wanted = _torch(*exact, stride, padding)
    outer = _drawn(*wanted.shape, seed=5)
    (wanted * outer).sum().backward()

    given = images.to(NARROW).to(device).requires_grad_()
    weights = _packed(filters).to(NARROW).to(device)
    to_weight = torch.full_like(weights, torch.nan)
    anchor = torch.zeros((), requires_grad=True)
    found = Convolution.apply(given, weights, to_weight, (size, stride, padding), anchor)
    (found.double() * outer.to(device)).sum().backward()
    assert given.grad is not None
    _close(given.grad, exact[0].grad)
    assert exact[1].grad is not None
    _close(to_weight, _packed(exact[1].grad))


def test_strips_add_up_to_the_gradient(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = load_kernels("outvote.ops.triton.convolution")
    monkeypatch.setattr(kernels, "SHORTEST", 64)
    images, _ = _layer((2, 5, 8, 8, 16), 24, 3)
    outer = _drawn(2, 5, 8, 8, 24, seed=1)
    filters = _drawn(2, 24, 16, 3, 3, seed=2).requires_grad_()
    (_torch(images, filters, 1, 1) * outer).sum().backward()
    target = torch.empty(2, 144, 24, dtype=NARROW, device=device)
    given = images.to(NARROW).to(device), outer.to(NARROW).to(device)
    convolution.weight_gradient(*given, target, (3, 1, 1))
    assert filters.grad is not None
    _close(target, _packed(filters.grad))


def _close(found: Tensor, wanted: Tensor | None) -> None:
    assert wanted is not None
    scale = float(wanted.abs().max())
    torch.testing.assert_close(found.cpu().double(), wanted, rtol=2**-7, atol=2**-8 * scale)
