"""How many runs fit into memory side by side: an estimate, on the safe side."""

import os

import torch
from torch import nn

# What is learnt, sent, attacked and judged, and copies of it; the trainer looks after itself.
VECTORS_PER_CLIENT = 8
SHARE_OF_FREE = 0.6
BYTES = 4


def most_runs(network: nn.Module, clients: int, device: torch.device) -> int:
    """Return how many runs of `clients` sampled clients can be played together, at least 1."""
    free = _free_bytes(device)
    if free is None:
        return 1 << 30
    dim = sum(parameter.numel() for parameter in network.parameters())
    return max(1, int(SHARE_OF_FREE * free) // (BYTES * VECTORS_PER_CLIENT * dim * clients))


def _free_bytes(device: torch.device) -> int | None:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None
