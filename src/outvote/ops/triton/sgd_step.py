"""Triton kernels for steps of SGD; called by `sgd`."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from outvote.ops.triton import cdiv

BLOCK = 4096
# The same guard against a norm of 0 that torch's own clipping has.
TINY = 1e-6


@triton.jit
def _square_sums(values, sums, num_values, stride, BLOCK: tl.constexpr):
    model = tl.program_id(1).to(tl.int64)
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    found = tl.load(values + model * stride + index, mask=index < num_values, other=0.0)
    found = found.to(tl.float32)
    tl.store(sums + model * tl.num_programs(0) + tl.program_id(0), tl.sum(found * found, axis=0))


@triton.jit(do_not_specialize=["num_going"])
def _take_step(
    weights,
    gradients,
    velocities,
    copy,
    scales,
    start,
    runs,
    num_going,
    num_values,
    stride,
    decay,
    momentum,
    rate,
    IS_CLIPPED: tl.constexpr,
    IS_FIRST: tl.constexpr,
    HAS_START: tl.constexpr,
    HAS_COPY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    model = tl.program_id(1).to(tl.int64)
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < num_values
    at = model * stride + index
    # Only models that take another step need a velocity and a copy.
    is_kept = inside & (model + tl.zeros((BLOCK,), dtype=tl.int64) < num_going)
    if HAS_START:
        run = tl.load(runs + model).to(tl.int64)
        own = tl.load(start + run * stride + index, mask=inside, other=0.0)
    else:
        own = tl.load(weights + at, mask=inside, other=0.0)
    gradient = tl.load(gradients + at, mask=inside, other=0.0).to(tl.float32)
    if IS_CLIPPED:
        gradient *= tl.load(scales + model)
    moved = gradient + decay * own
    if not IS_FIRST:
        moved += tl.load(velocities + at, mask=inside, other=0.0) * momentum
    own -= rate * moved
    tl.store(velocities + at, moved, mask=is_kept)
    tl.store(weights + at, own, mask=inside)
    if HAS_COPY:
        tl.store(copy + at, own.to(copy.dtype.element_ty), mask=is_kept)


def take_step(
    weights,
    gradients,
    velocities,
    copy,
    settings,
    learning_rate,
    *,
    is_first=False,
    start=None,
    num_going=None,
) -> None:
    """Clip, decay, gather momentum and step, in two passes; see `sgd.take_step`."""
    num_models, num_values = weights.shape
    grid = (cdiv(num_values, BLOCK), num_models)
    stride = weights.stride(0)
    scales = None
    if settings.max_norm is not None:
        sums = torch.empty(num_models, grid[0], dtype=torch.float32, device=weights.device)
        _square_sums[grid](gradients, sums, num_values, stride, BLOCK=BLOCK, num_warps=8)
        scales = _scales(sums, settings.max_norm)
    _take_step[grid](
        weights,
        gradients,
        velocities,
        weights if copy is None else copy,
        weights if scales is None else scales,
        *((weights, weights) if start is None else start),
        num_models if num_going is None else num_going,
        num_values,
        stride,
        settings.weight_decay,
        settings.momentum,
        learning_rate,
        IS_CLIPPED=scales is not None,
        IS_FIRST=is_first,
        HAS_START=start is not None,
        HAS_COPY=copy is not None,
        BLOCK=BLOCK,
        num_warps=8,
    )


def _scales(sums: Tensor, max_norm: float) -> Tensor:
    norms = sums.sum(dim=1, dtype=torch.float64).sqrt()
    return (max_norm / (norms + TINY)).clamp(max=1.0).float()
