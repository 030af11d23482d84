"""Batch normalisation: which networks have it, and what their batches need."""

from torch import nn

from outvote.training.local_sgd import LocalSGD

# A single sample has no variance.
MIN_BATCH = 2


def has_batch_norm(module: nn.Module) -> bool:
    """Return whether a network has batch normalisation."""
    return any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in module.modules())


def check_batch_size(module: nn.Module, training: LocalSGD) -> None:
    """Refuse batches that cannot be normalised."""
    if has_batch_norm(module) and training.batch_size < MIN_BATCH:
        raise ValueError(
            f"training.batch_size must be at least {MIN_BATCH} for a network with batch "
            f"normalisation, got {training.batch_size}; raise it, or take another network."
        )
