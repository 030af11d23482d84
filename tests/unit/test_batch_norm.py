"""Batch normalisation of many models against torch's own, model by model."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from outvote.training import batch_norm
from outvote.training.batch_norm import Normalise, affine, moments

EPSILON = 1e-5
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 4e-2}
SHAPES = [(2, 3, 4, 5, 7), (3, 4, 2, 2, 16), (1, 6, 3, 3, 130), (2, 40, 16, 16, 24)]


def _drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _mask(shape: tuple[int, ...]) -> Tensor:
    """All samples but the last of the first model, and of the last one only the first two."""
    is_there = torch.ones(shape[:2], dtype=torch.bool)
    is_there[0, -1] = False
    is_there[-1, 2:] = False
    return is_there


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("is_padded", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_samples_and_gradients_are_those_of_torch(
    shape: tuple[int, ...], is_padded: bool, dtype: torch.dtype, device: torch.device
) -> None:
    images = (3 * _drawn(*shape, seed=0) + 5).to(dtype)
    factor, offset = (_drawn(shape[0], shape[-1], seed=k).to(dtype) for k in (1, 2))
    is_there = _mask(shape) if is_padded else torch.ones(shape[:2], dtype=torch.bool)
    outer = _drawn(*shape, seed=3) * is_there[:, :, None, None, None]

    given = [values.to(device, copy=True).requires_grad_() for values in (images, factor, offset)]
    found, mean, variance, size = Normalise.apply(
        *given, is_there.to(device) if is_padded else None, EPSILON
    )
    assert found.dtype == dtype
    (found.double() * outer.to(device)).sum().backward()

    exact = [
        values.to(torch.float64, copy=True).requires_grad_() for values in (images, factor, offset)
    ]
    for k in range(shape[0]):
        there = is_there[k]
        flat = exact[0][k][there].movedim(-1, 1)
        wanted = F.batch_norm(
            flat, None, None, exact[1][k], exact[2][k], training=True, eps=EPSILON
        )
        (wanted * outer[k][there].movedim(-1, 1)).sum().backward()
        close = {"rtol": TOLERANCE[dtype], "atol": 3 * TOLERANCE[dtype]}
        here = found[k][there.to(device)].movedim(-1, 1)
        torch.testing.assert_close(here.cpu().double(), wanted.detach(), **close)
        torch.testing.assert_close(
            mean[k].cpu().double(), flat.detach().mean(dim=(0, 2, 3)), **close
        )
        expected = flat.detach().var(dim=(0, 2, 3), correction=0)
        torch.testing.assert_close(variance[k].cpu().double(), expected, **close)
        assert float(size[k]) == flat.numel() / shape[-1]
    for ours, theirs in zip(given, exact, strict=True):
        # Gradients of factors and offsets are sums over all samples.
        largest = float(theirs.grad.abs().max())
        torch.testing.assert_close(
            ours.grad.cpu().double(), theirs.grad, rtol=0, atol=TOLERANCE[dtype] * max(1, largest)
        )


def test_moments_of_samples_far_from_zero_keep_their_digits(device: torch.device) -> None:
    images = (_drawn(2, 64, 8, 8, 3, seed=0) + 1000).float()
    _, variance, _ = moments(images.to(device), None)
    wanted = images.double().var(dim=(1, 2, 3), correction=0)
    torch.testing.assert_close(variance.cpu().double(), wanted, rtol=1e-4, atol=0)


def test_a_model_without_samples_has_finite_moments(device: torch.device) -> None:
    images = _drawn(2, 3, 2, 2, 4, seed=0).float().to(device)
    is_there = torch.tensor([[True] * 3, [False] * 3], device=device)
    assert all(bool(values.isfinite().all()) for values in moments(images, is_there))


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_evaluation_multiplies_and_adds_by_channel(
    dtype: torch.dtype, device: torch.device
) -> None:
    images = _drawn(2, 5, 3, 4, 10, seed=0).to(dtype)
    scale, shift = _drawn(2, 10, seed=1), _drawn(2, 10, seed=2)
    with torch.no_grad():
        found = affine(images.to(device), scale.to(device), shift.to(device))
    wanted = images.double() * scale[:, None, None, None] + shift[:, None, None, None]
    assert found.dtype == dtype
    torch.testing.assert_close(
        found.cpu().double(),
        wanted,
        rtol=TOLERANCE[dtype],
        atol=1e-2 if dtype == torch.bfloat16 else 1e-5,
    )


@pytest.mark.parametrize("name", ["images", "scale", "shift"])
def test_evaluation_has_gradients_where_any_are_wanted(
    name: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The kernels, which have none, could be used.
    monkeypatch.setattr(batch_norm, "is_usable", lambda _: True)
    given = {
        "images": _drawn(2, 3, 2, 2, 4, seed=0),
        "scale": _drawn(2, 4, seed=1),
        "shift": _drawn(2, 4, seed=2),
    }
    given = {key: values.float().to(device) for key, values in given.items()}
    given[name].requires_grad_()
    affine(**given).sum().backward()
    assert float(given[name].grad.abs().sum()) > 0
