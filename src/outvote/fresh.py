"""New memory: for many numbers, and for a few on a device."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


def fresh(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return memory that holds anything; on a CPU it comes in large pages where there are any.

    Fetching small pages from the system takes three times as long as writing to them; numpy asks
    for large ones, torch does not.
    """
    if device.type != "cpu":
        return torch.empty(shape, dtype=dtype, device=device)
    size = int(np.prod(shape, dtype=np.int64))
    return torch.from_numpy(np.empty(size * dtype.itemsize, np.uint8)).view(dtype).view(shape)


def on_device(
    values: Sequence[Any], device: torch.device, dtype: torch.dtype | None = None
) -> Tensor:
    """Return a few numbers on a device; `torch.tensor(..., device=...)` would wait for a GPU."""
    return torch.tensor(values, dtype=dtype, device="cpu").to(device, non_blocking=True)
