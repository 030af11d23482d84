"""Attack mods: drills in which chosen nodes of a federation are Byzantine."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType
from flwr.clientapp.typing import ClientAppCallable
from numpy.typing import NDArray

from outvote.attacks.attack import Attack
from outvote.attacks.attack_spec import make_attack
from outvote.attacks.label_flip import whole_numbers
from outvote.rules.rule import Rule
from outvote.rules.rule_spec import make_rule

DRILL = "outvote-drill"
"""In a message, the record that makes a ClientApp train on poisoned data; in the state of a node,
the record of the updates it has seen."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class AttackMod:
    """Makes chosen nodes of a federation Byzantine, to test how the server reacts.

    Put it first among the mods of a ClientApp. Without an attack the configuration decides: that of
    the node (`flower-supernode --node-config 'attack="bit-flip"'`), else that of the run, where
    nodes with a partition-id below `num-attackers` run `attack`. Only replies to training are
    forged; what the app returns beside the model stays as it is.

    A node does not see what others send. Attacks that use the honest gradients (lie, ipm,
    min-max, ...) get an estimate: the node's own updates and the server's steps of the last rounds.
    In the first round that is its own update alone, so lie has no standard deviation yet and sends
    the honest update. Attacks with a state of their own start anew in every round.
    """

    attack: str | Attack | None = None
    """Any attack of `outvote list attacks`; None: the configuration decides."""
    partitions: Collection[int] | None = None
    """The partition-ids that attack; None: every node. Needs an attack given here."""
    rule: str | Rule | None = None
    """What an attack that knows the defence searches against; None: `attack-rule` of the run."""
    num_past_updates: int = 8
    """How many updates an estimate is made from; each is kept in the state of the node."""
    seed: int | None = None
    """The seed of random attacks; None: fresh in every round."""

    def __post_init__(self) -> None:
        """Check the settings and parse the texts: a mistake shows before the first round."""
        if self.attack is not None:
            make_attack(self.attack)
        elif self.partitions is not None:
            raise ValueError(
                "partitions go with an attack that is given here, got partitions alone; pass "
                "attack=, or set both in the configuration (attack, num-attackers)."
            )
        if self.rule is not None:
            make_rule(self.rule)
        if self.num_past_updates < 1:
            raise ValueError(f"num_past_updates must be at least 1, got {self.num_past_updates}.")

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Run the app, and forge its reply if this node is Byzantine."""
        attack = self._attack_of(context)
        # The type may end with the name of one of several training functions.
        is_training = message.metadata.message_type.split(".")[0] == MessageType.TRAIN
        if attack is None or not is_training:
            return call_next(message, context)
        if attack.poisons_data:
            reply = _train_on_poisoned_data(attack, message, context, call_next)
        else:
            reply = call_next(message, context)
        if not reply.has_error() and type(attack).craft is not Attack.craft:
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
        honest = exchange.estimate_honest(context, self.num_past_updates)
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
    """Return the attack that the configuration sets for this node; None: it is honest."""
    text = context.node_config.get("attack")
    if text is None:
        num_attackers = context.run_config.get("num-attackers", 0)
        partition = context.node_config.get("partition-id")
        is_chosen = isinstance(partition, int) and partition < int(num_attackers)
        text = context.run_config.get("attack", "none") if is_chosen else "none"
    attack = make_attack(str(text))
    return None if attack.name == "none" else attack


def labels_to_train_on(message: Message, labels: Any, num_classes: int) -> Any:
    """Return the labels as they are, or the wrong ones if this node runs a label attack.

    A tensor for a tensor, else an array. Call it in the function that answers `message`.
    """
    attack = _poisoning_attack(message)
    if attack is None:
        return labels
    wrong, given = attack.label_map(num_classes), _check_labels(labels, num_classes)
    if wrong is None:
        raise ValueError(
            f"{attack} changes samples, not only labels; train on "
            "outvote.flower.batch_to_train_on(message, samples, targets, num_classes)."
        )
    is_tensor = isinstance(given, torch.Tensor)
    return given.new_tensor(wrong)[given] if is_tensor else np.asarray(wrong)[given]


def batch_to_train_on(
    message: Message, samples: torch.Tensor, targets: torch.Tensor, num_classes: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the batch as it is, or the poisoned one if this node runs a data attack.

    Call it for every batch in the function that answers `message`.
    """
    attack = _poisoning_attack(message)
    if attack is None:
        return samples, targets
    return attack.poison(samples, _check_labels(targets, num_classes), num_classes)


def _poisoning_attack(message: Message) -> Attack | None:
    record = message.content.get(DRILL)
    if not isinstance(record, ConfigRecord):
        return None
    record["is-read"] = True
    return make_attack(str(record["attack"]))


def _check_labels(labels: Any, num_classes: int) -> Any:
    given = whole_numbers(labels)
    if len(given) and (int(given.min()) < 0 or int(given.max()) >= num_classes):
        raise ValueError(
            f"labels must be from 0 to {num_classes - 1}, got {int(given.min())} to "
            f"{int(given.max())}; pass the right num_classes."
        )
    return given


def _train_on_poisoned_data(
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
            f"{attack} changes what a node trains on, but this ClientApp did not ask for it; "
            "train on outvote.flower.labels_to_train_on(message, labels, num_classes), or on "
            "batch_to_train_on(message, samples, targets, num_classes)."
        )
    return reply


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """The model that a node was sent, as one vector, and the update that it trained.

    Whole numbers, such as counters of batches, are no gradients and are left out.
    """

    record: ArrayRecord
    names: tuple[str, ...]
    model: NDArray[Any]
    update: NDArray[Any]

    @classmethod
    def of(cls, message: Message, reply: Message) -> "Exchange":
        """Find the model in the message, and the trained one in the reply."""
        sent, returned = _only_arrays(message, "message"), _only_arrays(reply, "reply")
        before = {name: array.numpy() for name, array in sent.items()}
        after = {name: array.numpy() for name, array in returned.items()}
        names = tuple(name for name, array in before.items() if array.dtype.kind == "f")
        for name in names:
            if name not in after or after[name].shape != before[name].shape:
                raise ValueError(
                    f"the reply must hold the arrays of the message, got no {name!r} of the shape "
                    f"{before[name].shape}; correct the ClientApp."
                )
        model, trained = _vector(before, names), _vector(after, names)
        return cls(record=returned, names=names, model=model, update=trained - model)

    def estimate_honest(self, context: Context, num_rows: int) -> NDArray[Any]:
        """Return the latest updates that the node has seen, one per row, its own of now the last.

        The server's step since the last round is an estimate of what others sent.
        """
        known = context.state.get(DRILL)
        rows = [self.update[None]]
        if isinstance(known, ArrayRecord) and known["model"].shape == self.model.shape:
            step = self.model - known["model"].numpy()
            rows = [known["rows"].numpy(), step[None, :][: int(step.any())], *rows]
        latest = np.concatenate(rows)[-num_rows:]
        context.state[DRILL] = ArrayRecord({"model": Array(self.model), "rows": Array(latest)})
        return latest

    def send(self, update: NDArray[Any]) -> None:
        """Put another update into the reply, in the dtypes that the app chose."""
        vector, first = self.model + update, 0
        for name in self.names:
            array = self.record[name].numpy()
            values = vector[first : first + array.size].reshape(array.shape)
            with np.errstate(over="ignore"):
                self.record[name] = Array(values.astype(array.dtype))
            first += array.size


def _only_arrays(message: Message, what: str) -> ArrayRecord:
    records = list(message.content.array_records.values())
    if len(records) != 1:
        raise ValueError(
            f"a {what} of a drill must hold one record of arrays, the model, got {len(records)}."
        )
    return records[0]


def _vector(arrays: dict[str, NDArray[Any]], names: tuple[str, ...]) -> NDArray[Any]:
    if not names:
        raise ValueError("the model must have arrays of floats, got none; there is no update.")
    # float16 would round what is subtracted.
    dtype = np.result_type(np.float32, *(arrays[name].dtype for name in names))
    return np.concatenate([arrays[name].astype(dtype).reshape(-1) for name in names])
