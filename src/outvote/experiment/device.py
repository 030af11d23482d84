"""Which device to train on, and how many cores there are."""

import os

import torch


def choose_device(name: str, *, must_be_here: bool = True) -> torch.device:
    """Return a device; "auto" is a GPU if there is one. To plan for a GPU, none need be here.

    >>> choose_device("cpu")
    device(type='cpu')
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"unknown device {name!r}; take cpu, cuda or cuda:0.") from error
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device must be cpu or cuda, got {name!r}.")
    if must_be_here and device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {name!r}: torch finds no CUDA device; take cpu.")
    return device


def num_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
