"""Attack mods: drills in which chosen nodes of a federation lie."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, Message, MessageType
from flwr.clientapp.typing import ClientAppCallable

from outvote.attacks.attack import Attack
from outvote.attacks.attack_spec import make_attack
from outvote.attacks.label_flip import whole_numbers
from outvote.flower.estimate import Exchange, remember
from outvote.rules.rule import Rule
from outvote.rules.rule_spec import make_rule

DRILL = "outvote-drill"
"""The record that tells a ClientApp to train on wrong labels."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class AttackMod:
    """Makes chosen nodes of a federation lie, to see what the server does about it.

    Put it first among the mods of a ClientApp. Without an attack the configuration decides: that of
    the node (`flower-supernode --node-config 'attack="bit-flip"'`), else that of the run, where
    `attack` is what the nodes with a partition-id below `num-attackers` do. Only replies to
    training are forged; what the app returns beside the model stays as it is.

    A node does not see what others send. Attacks that go by the honest gradients (lie, ipm,
    min-max, ...) get an estimate: the node's own updates and the server's steps of the last rounds.
    In the first round that is its own update alone, so that lie has no spread yet and tells the
    truth. Attacks with a memory of their own begin anew in every round.
    """

    attack: str | Attack | None = None
    """Any attack, as `outvote list attacks` has them; None: what the configuration says."""
    partitions: Collection[int] | None = None
    """The partition-ids that attack; None: every node. Goes with an attack given here."""
    rule: str | Rule | None = None
    """What an attack that knows the defence searches against; None: `attack-rule` of the run."""
    memory: int = 8
    """How many updates an estimate rests on; each is kept in the state of the node."""
    seed: int | None = None
    """Where noise comes from; None: fresh in every round."""

    def __post_init__(self) -> None:
        """Check the settings and read the texts: a mistake shows before the first round."""
        if self.attack is not None:
            make_attack(self.attack)
        elif self.partitions is not None:
            raise ValueError(
                "partitions go with an attack that is given here, got partitions alone; pass "
                "attack=, or let the configuration say both (attack, num-attackers)."
            )
        if self.rule is not None:
            make_rule(self.rule)
        if self.memory < 1:
            raise ValueError(f"memory must be at least 1, got {self.memory}.")

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Let the app answer, and forge the answer if this node is to lie."""
        attack = self._attack_of(context)
        if attack is None or not _is_training(message):
            return call_next(message, context)
        if attack.poisons_data:
            return _train_on_wrong_labels(attack, message, context, call_next)
        reply = call_next(message, context)
        if not reply.has_error():
            self._forge(attack, message, context, reply)
        return reply

    def _attack_of(self, context: Context) -> Attack | None:
        if self.attack is None:
            return configured_attack(context)
        is_chosen = self.partitions is None or context.node_config.get("partition-id") in (
            self.partitions
        )
        return make_attack(self.attack) if is_chosen else None

    def _forge(self, attack: Attack, message: Message, context: Context, reply: Message) -> None:
        exchange = Exchange.of(message, reply)
        honest = remember(context, exchange, self.memory)
        rule = self.rule or context.run_config.get("attack-rule")
        rows = attack(
            honest,
            num_byzantine=1,
            own=exchange.update[None],
            rule=make_rule(rule) if isinstance(rule, str) else rule,
            seed=self._seed(message, context),
        )
        exchange.send(rows[0])

    def _seed(self, message: Message, context: Context) -> np.random.Generator | None:
        if self.seed is None:
            return None
        records = message.content.config_records.values()
        rounds = [record["server-round"] for record in records if "server-round" in record]
        return np.random.default_rng([self.seed, context.node_id, *map(int, map(str, rounds))])


def configured_attack(context: Context) -> Attack | None:
    """Return what the configuration makes of this node; None: it is honest."""
    text = context.node_config.get("attack")
    if text is None:
        num_attackers = context.run_config.get("num-attackers", 0)
        partition = context.node_config.get("partition-id")
        is_chosen = isinstance(partition, int) and partition < int(num_attackers)
        text = context.run_config.get("attack", "none") if is_chosen else "none"
    attack = make_attack(str(text))
    return None if attack.name == "none" else attack


def labels_to_train_on(message: Message, labels: Any, num_classes: int) -> Any:
    """Return the labels as they are, or the wrong ones if a drill wants this node to be misled.

    A tensor for a tensor, else an array. Call it in the function that answers `message`.
    """
    record = message.content.get(DRILL)
    if not isinstance(record, ConfigRecord):
        return labels
    record["is-read"] = True
    wrong = make_attack(str(record["attack"])).label_map(num_classes)
    given = whole_numbers(labels)
    if wrong is None or len(given) == 0:
        return given
    if int(given.min()) < 0 or int(given.max()) >= num_classes:
        raise ValueError(
            f"labels must be from 0 to {num_classes - 1}, got {int(given.min())} to "
            f"{int(given.max())}; pass the right num_classes."
        )
    is_tensor = isinstance(given, torch.Tensor)
    return given.new_tensor(wrong)[given] if is_tensor else np.asarray(wrong)[given]


def _train_on_wrong_labels(
    attack: Attack, message: Message, context: Context, call_next: ClientAppCallable
) -> Message:
    record = ConfigRecord({"attack": str(attack), "is-read": False})
    message.content[DRILL] = record
    try:
        reply = call_next(message, context)
    finally:
        del message.content[DRILL]
    if not (reply.has_error() or record["is-read"]):
        raise RuntimeError(
            f"{attack} changes what a node trains on, but this ClientApp did not ask for it; let "
            "it train on outvote.flower.labels_to_train_on(message, labels, num_classes)."
        )
    return reply


def _is_training(message: Message) -> bool:
    """Tell by the type, which may carry the name of one of several training functions."""
    return message.metadata.message_type.split(".")[0] == MessageType.TRAIN
