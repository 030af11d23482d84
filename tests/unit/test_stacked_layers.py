"""Layers of many models and their gradients against torch's own."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from outvote.ops import layers
from outvote.ops.layers import norm_moments
from outvote.ops.pooling import max_pool, window_of
from outvote.training import fused_layers
from outvote.training.fused_layers import AddRelu, BiasRelu, FusedNorm, Join, Joined, Norm, Product

EPSILON = 1e-5
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 4e-2}
SHAPES = [(2, 3, 4, 6, 7), (3, 4, 2, 2, 16), (1, 6, 4, 2, 130), (2, 40, 16, 16, 24)]
SHARE = 0.25


def _drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _mask(shape: tuple[int, ...]) -> Tensor:
    """All samples but the last of the first model, and of the last one only the first two."""
    is_there = torch.ones(shape[:2], dtype=torch.bool)
    is_there[0, -1] = False
    is_there[-1, 2:] = False
    return is_there


def _anchor() -> Tensor:
    return torch.zeros((), requires_grad=True)


def _close(found: Tensor, wanted: Tensor, dtype: torch.dtype, largest: float = 1.0) -> None:
    """Compare; gradients of factors and offsets are sums over all samples."""
    tolerance = TOLERANCE[dtype] * max(1.0, largest)
    torch.testing.assert_close(
        found.detach().cpu().double(), wanted.detach(), rtol=TOLERANCE[dtype], atol=3 * tolerance
    )


class Case:
    """Samples far from 0, their parameters, and what torch makes of them in float64."""

    def __init__(
        self, shape: tuple[int, ...], dtype: torch.dtype, is_padded: bool, follows: str = ""
    ) -> None:
        self.shape, self.dtype = shape, dtype
        self.images = (3 * _drawn(*shape, seed=0) + 5).to(dtype)
        self.factor, self.offset, self.bias = (
            _drawn(shape[0], shape[-1], seed=k).to(dtype) for k in (1, 2, 6)
        )
        self.is_there = _mask(shape) if is_padded else torch.ones(shape[:2], dtype=torch.bool)
        halves = 2 if follows == "relu-pool" else 1
        pooled = (*shape[:2], shape[2] // halves, shape[3] // halves, shape[4])
        self.outer = _drawn(*pooled, seed=3) * self.is_there[:, :, None, None, None]
        self.running = (
            _drawn(shape[0], shape[-1], seed=4),
            _drawn(shape[0], shape[-1], seed=5).abs(),
        )
        self.exact = [
            values.to(torch.float64, copy=True).requires_grad_()
            for values in (self.images, self.factor, self.offset)
        ]
        self.wanted, self.means, self.variances = [], [], []
        for k in range(shape[0]):
            flat = self.exact[0][k][self.is_there[k]].movedim(-1, 1)
            result = F.batch_norm(
                flat, None, None, self.exact[1][k], self.exact[2][k], training=True, eps=EPSILON
            )
            result = F.relu(result) if follows else result
            result = F.max_pool2d(result, 2) if halves == 2 else result
            (result * self.outer[k][self.is_there[k]].movedim(-1, 1)).sum().backward()
            self.wanted.append(result.movedim(1, -1))
            self.means.append(flat.detach().mean(dim=(0, 2, 3)))
            self.variances.append(flat.detach().var(dim=(0, 2, 3), correction=0))

    def check(self, found: Tensor, given: Tensor, targets: list[Tensor]) -> None:
        """Compare samples and gradients; those of padding mean nothing."""
        for k, wanted in enumerate(self.wanted):
            there = self.is_there[k]
            _close(found[k][there.to(found.device)], wanted, self.dtype)
        for ours, theirs in zip([given.grad, *targets], self.exact, strict=True):
            _close(ours, theirs.grad, self.dtype, float(theirs.grad.abs().max()))


@pytest.mark.parametrize("follows", ["", "relu", "relu-pool"])
@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("is_padded", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_fused_with_what_follows_it_is_that_of_torch(
    shape: tuple[int, ...], is_padded: bool, dtype: torch.dtype, follows: str, device: torch.device
) -> None:
    case = Case(shape, dtype, is_padded, follows)
    images = case.images.to(device, copy=True).requires_grad_()
    # As in a packed model: the parameters of a model are far from those of the next.
    packed = F.pad(torch.stack([case.factor, case.offset, case.bias], dim=1), (0, 5)).to(device)
    factor, offset, bias = (packed[:, k, : shape[-1]] for k in range(3))
    targets = [torch.zeros_like(packed)[:, k, : shape[-1]] for k in range(2)]
    wide = dtype if dtype == torch.float64 else torch.float32
    mean, variance = (values.to(device, wide) for values in case.running)
    before = mean.clone(), variance.clone()
    share = torch.full((shape[0],), SHARE, dtype=torch.float64, device=device)
    halves = 2 if follows == "relu-pool" else 1
    sides = (*shape[:2], shape[2] // halves, shape[3] // halves, 2 * shape[-1])
    plus = None if halves == 2 else _drawn(*sides, seed=7).to(device, dtype).requires_grad_()
    joined = Joined(2 * shape[-1], plus)
    norm = Norm(
        factor,
        offset,
        bias,
        (mean, variance, share),
        (targets[0], targets[1]),
        case.is_there.to(device) if is_padded else None,
        EPSILON,
        relu=bool(follows),
        pool=follows == "relu-pool",
        joined=joined,
    )
    one = FusedNorm.apply(images, norm, _anchor())
    two = one.detach().clone().requires_grad_()
    fused_layers.placed(two, joined)
    found = Join.apply(joined, plus, one, two)
    outer = torch.cat([case.outer, 2 * case.outer], dim=-1).to(device)
    (found.double() * outer).sum().backward()
    if plus is not None:
        _close(plus.grad, outer.cpu().double(), dtype)
        found = found - plus
    case.check(found[..., : shape[-1]], images, targets)
    _close(two.grad, 2 * case.outer, dtype)
    for k in range(shape[0]):
        size = int(case.is_there[k].sum()) * shape[2] * shape[3]
        middle = case.means[k] + case.bias[k].double()
        _close(mean[k], before[0][k].cpu().double().lerp(middle, SHARE), dtype)
        unbiased = case.variances[k] * size / (size - 1)
        _close(variance[k], before[1][k].cpu().double().lerp(unbiased, SHARE), dtype, 10.0)


@pytest.mark.parametrize("is_pooled", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_product_bias_relu_and_pooling_are_those_of_torch(
    is_pooled: bool, dtype: torch.dtype, device: torch.device
) -> None:
    models, sides, inputs, outputs = 3, (5, 4, 6), 16, 20
    # Of few digits: the products are exact, and so is what is positive and what is the largest.
    rows = _drawn(models, 5 * 4 * 6, inputs, seed=0).sign().to(dtype)
    weight = (_drawn(models, inputs, outputs, seed=1).round().clamp(-2, 2) / 4).to(dtype)
    bias = (_drawn(models, outputs, seed=2).round() / 4).to(dtype)
    exact = [values.double().requires_grad_() for values in (rows, weight, bias)]
    wanted = F.relu(torch.baddbmm(exact[2].unsqueeze(1), exact[0], exact[1]))
    wanted = wanted.view(models, *sides, outputs)
    if is_pooled:
        wanted = F.max_pool2d(wanted.flatten(0, 1).movedim(-1, 1), 2).movedim(1, -1)
        wanted = wanted.unflatten(0, (models, -1))
    outer = _drawn(*wanted.shape, seed=3)
    (wanted * outer).sum().backward()

    given = rows.to(device, copy=True).requires_grad_()
    to_weight = torch.empty(models, outputs, inputs, dtype=dtype, device=device).mT
    to_bias = torch.empty(models, outputs, dtype=dtype, device=device)
    targets = to_weight, None
    product = Product.apply(given, weight.to(device), None, targets, None, _anchor())
    product = product.view(models, *sides, outputs)
    found = BiasRelu.apply(product, bias.to(device), to_bias, is_pooled)
    (found.double() * outer.to(device)).sum().backward()
    _close(found, wanted, dtype)
    for ours, theirs in zip((given.grad, to_weight, to_bias), exact, strict=True):
        _close(ours, theirs.grad, dtype, float(theirs.grad.abs().max()))


@pytest.mark.parametrize("window", [(3, 2, 1), (2, 2, 0), (3, 1, 1), (3, 3, 0), (5, 2, 2)])
def test_pooled_windows_are_those_of_torch(
    window: tuple[int, int, int], device: torch.device
) -> None:
    module = nn.MaxPool2d(*window)
    # Of few values: the first of several largest counts.
    images = _drawn(2, 3, 9, 8, 20, seed=0).round().float()
    images[0, 1, 4, 4, 3] = torch.nan
    wanted, found = (images.to(device, copy=True).requires_grad_() for _ in range(2))
    flat = module(wanted.flatten(0, 1).movedim(-1, 1)).movedim(1, -1).unflatten(0, (2, 3))
    own = max_pool(found, module)
    torch.testing.assert_close(own, flat, rtol=0, atol=0, equal_nan=True)
    outer = _drawn(*own.shape, seed=1).float().to(device)
    for values in (flat, own):
        torch.where(values.isnan(), 0, values * outer).sum().backward()
    torch.testing.assert_close(found.grad, wanted.grad)


def test_other_pooling_is_left_to_torch() -> None:
    assert window_of(nn.MaxPool2d(3, 2, padding=(1, 1))) == (3, 2, 1)
    for module in (
        nn.MaxPool2d(3, ceil_mode=True),
        nn.MaxPool2d((2, 3)),
        nn.MaxPool2d(3, dilation=2),
        nn.MaxPool2d(13, padding=6),
    ):
        assert window_of(module) is None


def test_add_and_relu_are_those_of_torch(device: torch.device) -> None:
    left, right = (
        _drawn(2, 3, 5, 5, 7, seed=k).float().to(device).requires_grad_() for k in (0, 1)
    )
    found = AddRelu.apply(left, right)
    wanted = F.relu(left.detach() + right.detach())
    torch.testing.assert_close(found, wanted)
    found.sum().backward()
    torch.testing.assert_close(left.grad, (wanted > 0).float())
    torch.testing.assert_close(right.grad, (wanted > 0).float())


def test_moments_of_samples_far_from_zero_keep_their_digits(device: torch.device) -> None:
    images = (_drawn(2, 64, 8, 8, 3, seed=0) + 1000).float()
    ones = torch.ones(2, 3, device=device)
    running = (ones.clone(), ones.clone(), torch.ones(2, dtype=torch.float64, device=device))
    norm_moments(images.to(device), None, (ones, ones, None), running, EPSILON)
    wanted = images.double().var(dim=(1, 2, 3))
    torch.testing.assert_close(running[1].cpu().double(), wanted, rtol=1e-4, atol=0)


def test_a_model_without_samples_has_finite_moments(device: torch.device) -> None:
    images = _drawn(2, 3, 2, 2, 4, seed=0).float().to(device)
    is_there = torch.tensor([[True] * 3, [False] * 3], device=device)
    ones = torch.ones(2, 4, device=device)
    running = (ones.clone(), ones.clone(), torch.ones(2, dtype=torch.float64, device=device))
    found = norm_moments(images, is_there, (ones, ones, None), running, EPSILON)
    assert all(bool(values.isfinite().all()) for values in (*found, *running))


@pytest.mark.parametrize("side", [1, 2])
def test_rows_of_a_gradient_lie_at_the_distance_that_kernels_read(side: int) -> None:
    """After one pixel per image, torch's own strides are those of no row."""
    received: list[Tensor] = []
    images = _drawn(3, 4, side, side, 8, seed=0).requires_grad_()
    middle = images.clone()
    middle.register_hook(received.append)
    flat = middle.movedim(-1, 2).flatten(2)
    torch.bmm(flat, _drawn(3, flat.shape[-1], 5, seed=1)).square().sum().backward()
    found = layers.evenly_spaced(received[0])
    strides = (found.stride(0), found.stride(-2), 1)
    assert torch.equal(
        found.as_strided((3, 4 * side * side, 8), strides), images.grad.flatten(1, 3)
    )
