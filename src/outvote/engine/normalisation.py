"""What networks with batch normalisation ask for."""

from torch import nn

from outvote.clients.training import Training

# There is no variance of a single picture.
LEAST_NORMALISED = 2


def has_normalisation(module: nn.Module) -> bool:
    """Tell whether a network normalises its batches."""
    return any(isinstance(part, nn.BatchNorm2d) for part in module.modules())


def check_normalisation(module: nn.Module, training: Training) -> None:
    """Refuse batches that cannot be normalised."""
    if has_normalisation(module) and training.batch_size < LEAST_NORMALISED:
        raise ValueError(
            f"training.batch_size must be at least {LEAST_NORMALISED} for a network with batch "
            f"normalisation, got {training.batch_size}; raise it, or take another network."
        )
