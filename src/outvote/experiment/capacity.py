"""How many runs can be played side by side: an estimate, on the safe side."""

import os
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import nn

from outvote.training.gpu_memory import free_on_gpu

# What is local_updates, sent, attacked and judged, and copies of it; the trainer looks after itself.
VECTORS_PER_CLIENT = 8
SHARE_OF_FREE = 0.6
SHARE_OF_FILES = 0.5
BYTES = 4
UNLIMITED = 1 << 30
MEMINFO = Path("/proc/meminfo")


def most_runs(network: nn.Module, clients: int, device: torch.device, num_kept: int = 0) -> int:
    """Return how many runs of `clients` sampled clients fit into memory together, at least 1.

    `num_kept` is the number of vectors that a run keeps from round to round, for clients with
    momentum.
    """
    free = free_bytes(device)
    if free is None:
        return UNLIMITED
    dim = sum(parameter.numel() for parameter in network.parameters())
    per_run = BYTES * dim * (VECTORS_PER_CLIENT * clients + num_kept)
    return max(1, int(SHARE_OF_FREE * free) // per_run)


def most_locks() -> int:
    """Return how many run folders can be held at once: each is an open file."""
    if find_spec("resource") is None:
        return UNLIMITED
    import resource  # there is none on Windows

    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return UNLIMITED
    num_open = len(list(Path("/dev/fd").iterdir()))
    return max(1, int(SHARE_OF_FILES * (limit - num_open)))


def free_bytes(device: torch.device) -> int | None:
    """Return how much memory there is to take; None: unknown."""
    if device.type == "cuda":
        return free_on_gpu(device)
    if MEMINFO.is_file():
        # Unlike free pages, it counts the cache of files, which the system gives back.
        for line in MEMINFO.read_text().splitlines():
            name, _, rest = line.partition(":")
            if name == "MemAvailable":
                return int(rest.split()[0]) * 1024
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None
