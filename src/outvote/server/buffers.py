"""Running statistics of batch normalisation, merged from the clients that were kept."""

import torch
from torch import Tensor


def merge_buffers(sent: Tensor, is_kept: Tensor, *, selects: Tensor, is_counter: Tensor) -> Tensor:
    """Merge ``sent [runs, clients, buffers]`` into ``[runs, buffers]``.

    Where a run's rule selects clients: the mean over those. Where it does not: the coordinate-wise
    median of those with finite statistics. Counters: the maximum. If no client was kept, all count.
    """
    if sent.numel() == 0:
        return sent.new_empty(len(sent), 0)
    counted = is_kept | ~is_kept.any(dim=-1, keepdim=True)
    share = counted.to(sent.dtype) / counted.sum(dim=-1, keepdim=True)
    # NaN times 0 is NaN: clients that do not count are set to 0.
    mean = (torch.where(counted.unsqueeze(-1), sent, 0.0) * share.unsqueeze(-1)).sum(dim=1)
    is_finite = sent.isfinite().all(dim=-1, keepdim=True)
    median = torch.where(is_finite, sent, torch.nan).nanquantile(0.5, dim=1)
    merged = torch.where(selects.unsqueeze(-1), mean, median)
    return torch.where(is_counter, sent.amax(dim=1), merged)


def move_buffers(
    buffers: Tensor, update: Tensor, is_counter: Tensor, is_variance: Tensor
) -> Tensor:
    """Apply the part of an update that belongs to ``buffers [runs, buffers]``.

    Counters are rounded to whole numbers, variances clamped at 0.
    """
    moved = buffers - update.to(buffers)
    moved = torch.where(is_counter, moved.round(), moved)
    return torch.where(is_counter | is_variance, moved.clamp(min=0), moved)
