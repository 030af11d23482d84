"""Flower: a strategy that one bad client can neither ruin nor stop, and mods for drills.

Needs the extra: ``pip install 'outvote[flower]'``. Nothing else in outvote imports flwr.

A round, module by module: `rounds` is the loop; it calls `strategy`, which holds `settings` and
`state`.

1. `asking` chooses nodes (`sampling`; who is not asked: `offenders`) and writes their messages.
2. `collecting` sends them and pulls the replies; `answers` tells whose they are and who is missing,
   `late` who answers when it is over.
3. `training` plays the rest: `receiving` turns replies into updates, each checked by `reply`
   against the `sent_model`, to the byte by `npy`; `judging` lets the rule decide;
   `server_optimizers` make a step of the update; `evaluating` merges what nodes measured.
4. `telling` logs it to the console, `journal` to the folder: `auditing`, then `checkpointing`.

On the side of the nodes, `mods` makes some of them lie, by an `estimate` of what others send.
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
