"""Flower: a strategy that one bad client can neither ruin nor stop, and mods for drills.

Needs the extra: ``pip install 'outvote[flower]'``. Nothing else in outvote imports flwr.
"""

try:
    from outvote.flower.mods import AttackMod, labels_to_train_on
    from outvote.flower.server_optimizers import (
        FedAdagrad,
        FedAdam,
        FedAvg,
        FedYogi,
        ServerOptimizer,
    )
    from outvote.flower.strategy import RobustStrategy
except ModuleNotFoundError as error:
    if not (error.name or "").startswith("flwr"):
        raise
    raise ImportError(
        "outvote.flower needs Flower 1.41 or newer; run: pip install 'outvote[flower]'"
    ) from error

__all__ = [
    "AttackMod",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedYogi",
    "RobustStrategy",
    "ServerOptimizer",
    "labels_to_train_on",
]
