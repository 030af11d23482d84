"""Flower: a strategy that one bad client can neither ruin nor stop, and attack mods for drills.

Needs the extra: ``pip install 'outvote[flower]'``. Nothing else in outvote imports flwr.

A round, module by module; `strategy` has the loop over rounds, `settings` its keywords:

1. `node_sampling` chooses nodes (`exclusion`: who is left out, on the evidence of
   `sequential_test`) and writes their messages.
2. `reply_collection` sends them, pulls the replies, and finds who is missing or late.
3. `round_step` does the rest: `reply_checks` compares each reply with the `model_record` and
   computes its update, the rule aggregates, `outvote.server` makes a step of the update, and
   `node_metrics` averages what nodes measured.
4. `console` logs the round, `audit_writer` keeps it in a folder, `server_state` is the checkpoint.

On the side of the nodes, `attack_mod` makes some of them Byzantine.
"""

try:
    from outvote.flower.attack_mod import AttackMod, batch_to_train_on, labels_to_train_on
    from outvote.flower.strategy import RobustStrategy
except ModuleNotFoundError as error:
    if not (error.name or "").startswith("flwr"):
        raise
    raise ImportError(
        "outvote.flower needs Flower 1.41 or newer; run: pip install 'outvote[flower]'"
    ) from error

__all__ = [
    "AttackMod",
    "RobustStrategy",
    "batch_to_train_on",
    "labels_to_train_on",
]
