"""Running statistics of batch normalisation: taken from the clients that were kept."""

import torch
from torch import Tensor


def merge_buffers(sent: Tensor, is_kept: Tensor, *, selects: Tensor, is_counter: Tensor) -> Tensor:
    """Merge ``sent [runs, clients, buffers]`` into ``[runs, buffers]``.

    Where a run's rule selects clients, the mean over those; where it does not, the coordinate-wise
    median of those whose statistics are finite; of counters always the largest. If nobody was kept,
    everybody counts.
    """
    if sent.numel() == 0:
        return sent.new_empty(len(sent), 0)
    counted = is_kept | ~is_kept.any(dim=-1, keepdim=True)
    share = counted.to(sent.dtype) / counted.sum(dim=-1, keepdim=True)
    # NaN times 0 is NaN: whoever does not count is set to 0.
    mean = (torch.where(counted.unsqueeze(-1), sent, 0.0) * share.unsqueeze(-1)).sum(dim=1)
    is_finite = sent.isfinite().all(dim=-1, keepdim=True)
    median = torch.where(is_finite, sent, torch.nan).nanquantile(0.5, dim=1)
    merged = torch.where(selects.unsqueeze(-1), mean, median)
    return torch.where(is_counter, sent.amax(dim=1), merged)


def move_buffers(
    buffers: Tensor, update: Tensor, is_counter: Tensor, is_variance: Tensor
) -> Tensor:
    """Apply an update to ``buffers [runs, buffers]`` that a rule made of them.

    What cannot be is mended: a counter is a whole number, and no variance is negative.
    """
    moved = buffers - update.to(buffers)
    moved = torch.where(is_counter, moved.round(), moved)
    return torch.where(is_counter | is_variance, moved.clamp(min=0), moved)
