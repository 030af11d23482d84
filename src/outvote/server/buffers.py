"""Buffers of networks, such as running statistics, merged from the clients that were kept."""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn


@final
@dataclass(frozen=True, slots=True, eq=False)
class BufferKinds:
    """Which of a network's buffers are of a kind, one mark per number."""

    is_whole: Tensor
    """Whole numbers and truth values."""
    is_counter: Tensor
    """How many batches were seen."""
    is_variance: Tensor
    """Running variances."""

    @classmethod
    def of(cls, module: nn.Module, device: torch.device) -> "BufferKinds":
        """Read the kinds of a network's buffers, in their order."""
        named = list(module.named_buffers())
        whole = [not buffer.is_floating_point() for _, buffer in named]
        counters = [name.endswith("num_batches_tracked") for name, _ in named]
        variances = [name.endswith("running_var") for name, _ in named]
        sizes = torch.tensor([buffer.numel() for _, buffer in named], dtype=torch.int64)
        masks = (
            torch.tensor(marks, dtype=torch.bool).repeat_interleave(sizes).to(device)
            for marks in (whole, counters, variances)
        )
        return cls(*masks)


def are_same(one: Tensor, two: Tensor) -> Tensor:
    """Mark where two tensors are equal, or both are NaN."""
    return (one == two) | (one.isnan() & two.isnan())


def merge_buffers(
    before: Tensor, sent: Tensor, is_kept: Tensor, *, selects: Tensor, kinds: BufferKinds
) -> Tensor:
    """Merge ``sent [runs, clients, buffers]`` into ``[runs, buffers]``.

    What no client changed stays as it was `before`, such as a mask of infinities. Where a run's
    rule selects clients: the mean over those. Where it does not: the coordinate-wise median of
    those with finite statistics. Counters: the maximum. If no client was kept, all count.
    """
    if sent.numel() == 0:
        return sent.new_empty(len(sent), 0)
    is_same = are_same(sent, before.unsqueeze(1))
    counted = is_kept | ~is_kept.any(dim=-1, keepdim=True)
    share = counted.to(sent.dtype) / counted.sum(dim=-1, keepdim=True)
    # NaN times 0 is NaN: clients that do not count are set to 0.
    mean = (torch.where(counted.unsqueeze(-1), sent, 0.0) * share.unsqueeze(-1)).sum(dim=1)
    is_finite = (sent.isfinite() | is_same).all(dim=-1, keepdim=True)
    median = torch.where(is_finite, sent, torch.nan).nanquantile(0.5, dim=1)
    merged = torch.where(selects.unsqueeze(-1), mean, median)
    merged = torch.where(kinds.is_whole, merged.round(), merged)
    merged = torch.where(kinds.is_counter, sent.amax(dim=1), merged)
    return torch.where(is_same.all(dim=1), before, merged)


def buffer_changes(before: Tensor, after: Tensor) -> Tensor:
    """Return ``before - after``, exactly 0 where a buffer did not change."""
    return torch.where(are_same(before, after), 0.0, before - after)


def move_buffers(buffers: Tensor, update: Tensor, kinds: BufferKinds) -> Tensor:
    """Apply the part of an update that belongs to ``buffers [runs, buffers]``.

    Whole numbers are rounded, counters and variances clamped at 0.
    """
    moved = buffers - update.to(buffers)
    moved = torch.where(kinds.is_whole, moved.round(), moved)
    moved = torch.where(kinds.is_counter | kinds.is_variance, moved.clamp(min=0), moved)
    return torch.where(update == 0, buffers, moved)
