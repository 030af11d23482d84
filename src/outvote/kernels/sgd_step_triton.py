"""Triton kernels for steps of SGD; `step` is the way in."""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096
# The same guard against a norm of 0 that torch's own clipping has.
TINY = 1e-6


@triton.jit
def _square_sums(values, sums, num_places, stride, BLOCK: tl.constexpr):
    model = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    found = tl.load(values + model * stride + place, mask=place < num_places, other=0.0)
    found = found.to(tl.float32)
    tl.store(sums + model * tl.num_programs(0) + tl.program_id(0), tl.sum(found * found, axis=0))


@triton.jit
def _take_step(
    weights,
    gradients,
    velocities,
    copy,
    scales,
    num_places,
    stride,
    decay,
    momentum,
    rate,
    IS_CLIPPED: tl.constexpr,
    HAS_COPY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    model = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < num_places
    at = model * stride + place
    own = tl.load(weights + at, mask=inside, other=0.0)
    gradient = tl.load(gradients + at, mask=inside, other=0.0).to(tl.float32)
    if IS_CLIPPED:
        gradient *= tl.load(scales + model)
    moved = tl.load(velocities + at, mask=inside, other=0.0) * momentum + (gradient + decay * own)
    own -= rate * moved
    tl.store(velocities + at, moved, mask=inside)
    tl.store(weights + at, own, mask=inside)
    if HAS_COPY:
        tl.store(copy + at, own.to(copy.dtype.element_ty), mask=inside)


def take_step(weights, gradients, velocities, copy, training, learning_rate) -> None:
    """Clip, decay, gather momentum and step, in two passes."""
    num_models, num_places = weights.shape
    grid = (triton.cdiv(num_places, BLOCK), num_models)
    stride = weights.stride(0)
    scales = None
    if training.max_norm is not None:
        sums = torch.empty(num_models, grid[0], dtype=torch.float32, device=weights.device)
        _square_sums[grid](gradients, sums, num_places, stride, BLOCK=BLOCK, num_warps=8)
        scales = _scales(sums, training.max_norm)
    _take_step[grid](
        weights,
        gradients,
        velocities,
        weights if copy is None else copy,
        weights if scales is None else scales,
        num_places,
        stride,
        training.weight_decay,
        training.momentum,
        learning_rate,
        IS_CLIPPED=scales is not None,
        HAS_COPY=copy is not None,
        BLOCK=BLOCK,
        num_warps=8,
    )


def _scales(sums: Tensor, max_norm: float) -> Tensor:
    norms = sums.sum(dim=1, dtype=torch.float64).sqrt()
    return (max_norm / (norms + TINY)).clamp(max=1.0).float()
