"""How many runs fit into memory side by side: an estimate, on the safe side."""

import os

import torch
from torch import Tensor, nn

from outvote.experiment.spec import Spec

# Weights, velocity, gradient, a copy to train in, what is sent, what is attacked and judged.
VECTORS_PER_CLIENT = 10
# What one layer hands to the next is kept for the way back, and so are its gradient and windows.
COPIES_OF_ACTIVATIONS = 3
SHARE_OF_FREE = 0.6
BYTES = 4


def most_runs(
    spec: Spec, network: nn.Module, shape: tuple[int, int, int], clients: int, device: torch.device
) -> int:
    """Return how many runs of `clients` sampled clients can be played together, at least 1."""
    free = _free_bytes(device)
    if free is None:
        return 1 << 30
    dim = sum(parameter.numel() for parameter in network.parameters())
    each = VECTORS_PER_CLIENT * dim
    if device.type == "cuda":
        batch = spec.training.batch_size
        each += COPIES_OF_ACTIVATIONS * batch * _activations(network, shape)
    return max(1, int(SHARE_OF_FREE * free) // (BYTES * each * clients))


def _activations(network: nn.Module, shape: tuple[int, int, int]) -> int:
    """Count the numbers that one picture leaves in a network, windows of convolutions included."""
    counts = []

    def count(layer: nn.Module, given: tuple[Tensor, ...], result: Tensor) -> None:
        counts.append(result.numel())
        if isinstance(layer, nn.Conv2d):
            window = given[0].shape[1] * layer.kernel_size[0] * layer.kernel_size[1]
            counts.append(window * result.shape[-1] * result.shape[-2])

    leaves = [layer for layer in network.modules() if not list(layer.children())]
    hooks = [layer.register_forward_hook(count) for layer in leaves]
    was_training = network.training
    height, width, channels = shape
    try:
        with torch.no_grad():
            network.eval()(torch.zeros(1, channels, height, width))
    finally:
        network.train(was_training)
        for hook in hooks:
            hook.remove()
    return sum(counts)


def _free_bytes(device: torch.device) -> int | None:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None
