"""The strategy that Flower calls: asks nodes, lets the rule judge, and keeps a log."""

from collections.abc import Iterable
from logging import getLogger
from pathlib import Path
from typing import Any, final

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid

from outvote.flower.asking import choose_for_evaluation, choose_for_training, messages
from outvote.flower.checkpointing import load_state
from outvote.flower.evaluating import merge_replies
from outvote.flower.journal import Journal
from outvote.flower.late import LateReplies
from outvote.flower.offenders import Offenders
from outvote.flower.rounds import ResumableStrategy
from outvote.flower.sampling import Sampler
from outvote.flower.sent_model import SentModel, check_same
from outvote.flower.server_optimizers import ServerOptimizer, make_server_optimizer
from outvote.flower.settings import Reference, Settings, WhenTooMany, resumed_settings
from outvote.flower.state import ServerState
from outvote.flower.telling import log_round, log_settings
from outvote.flower.training import Asked, finish_round
from outvote.rules.rule import Rule
from outvote.rules.rule_spec import make_rule

LOG = getLogger("flwr")


@final
class RobustStrategy(ResumableStrategy):
    """Any rule of outvote as a Flower strategy that no single node can ruin or stop.

    rule: text or object, see `outvote list rules`.
    num_byzantine, byzantine_fraction: how many, or which share, of the nodes asked may lie.
    audit_dir: a folder for the log and the checkpoint; None writes nothing.
    when_too_many: with too few usable replies for the rule, "keep" the model, or "lower" the
        number of liars that it reckons with.
    use_num_examples: weigh by what the nodes say they have; off, because it is only a claim.
    server_optimizer: what is done with the update, as "fedadam(learning_rate=0.01)".
    exclude_after: after so many offences a node is not asked any more; None: never.
    probation: after so many rounds an excluded node is asked again; None: never.
    sample: your own choice of nodes, ``(round, nodes) -> nodes``.
    reference: the server's own training, ``(round, model) -> model``, for fltrust.
    seed: None stream the randomness of the rule afresh in every round, as a secret.
    checkpoint_every: how many rounds a kill may cost. The rest is as in Flower's own strategies.
    """

    def __init__(  # noqa: PLR0913  (Flower's strategies are set up by keywords)
        self,
        rule: str | Rule = "gas(multi-krum)",
        *,
        num_byzantine: int | None = None,
        byzantine_fraction: float | None = None,
        audit_dir: str | Path | None = "audit",
        when_too_many: WhenTooMany = "keep",
        use_num_examples: bool = False,
        server_optimizer: str | ServerOptimizer | None = None,
        exclude_after: int | None = None,
        probation: int | None = None,
        sample: Sampler | None = None,
        reference: Reference | None = None,
        seed: int | None = None,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 1.0,
        min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2,
        min_available_nodes: int = 2,
        checkpoint_every: int = 1,
        weighted_by_key: str = "num-examples",
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
    ) -> None:
        self.settings = Settings(
            rule=make_rule(rule),
            num_byzantine=num_byzantine,
            byzantine_fraction=byzantine_fraction,
            audit_dir=None if audit_dir is None else Path(audit_dir),
            when_too_many=when_too_many,
            use_num_examples=use_num_examples,
            server_optimizer=make_server_optimizer(server_optimizer or "fedavg"),
            exclude_after=exclude_after,
            probation=probation,
            sample=sample,
            reference=reference,
            seed=seed,
            fraction_train=fraction_train,
            fraction_evaluate=fraction_evaluate,
            min_train_nodes=min_train_nodes,
            min_evaluate_nodes=min_evaluate_nodes,
            min_available_nodes=min_available_nodes,
            checkpoint_every=checkpoint_every,
            weighted_by_key=weighted_by_key,
            arrayrecord_key=arrayrecord_key,
            configrecord_key=configrecord_key,
        )
        self.state = ServerState(offenders=Offenders(exclude_after, probation))
        self._journal = Journal(self.settings, self.state, is_resumed=False)
        self._asked: Asked | None = None
        self._asked_to_evaluate: list[Message] = []
        self._late = LateReplies()

    @classmethod
    def resume(cls, audit_dir: str | Path, **settings: Any) -> "RobustStrategy":
        """Go on after the last checkpoint in a folder; where there is none, start.

        Settings that are not given are those of the run. `start` then plays the rounds that are
        left of `num_rounds`, from the model of the checkpoint.
        """
        folder = Path(audit_dir)
        found = cls(audit_dir=folder, **resumed_settings(folder, settings))
        for fault in load_state(folder, found.state, str(found.settings.rule)):
            LOG.warning("An older checkpoint is used: %s", fault)
        found._journal = Journal(found.settings, found.state, is_resumed=True)
        return found

    def begin(self, initial_arrays: ArrayRecord) -> tuple[int, ArrayRecord]:
        """Return the last round that was played, and the model after it."""
        model = self.state.model or initial_arrays
        check_same(model, initial_arrays)
        self._journal.open()
        self.summary()
        return self.state.round, model

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Choose nodes and write their messages."""
        self._journal.open()
        for round_, nodes in self._late.arrived(grid).items():
            LOG.info("Too late for round %d: nodes %s", round_, ", ".join(map(str, nodes)))
            self._journal.add_late(round_, nodes)
        chosen = choose_for_training(self.settings, self.state, server_round, grid)
        kind = MessageType.TRAIN
        sent = messages(self.settings, server_round, arrays, config, kind, chosen.nodes)
        self._asked = Asked(
            round=server_round,
            sent=SentModel.read(arrays),
            messages=sent,
            num_byzantine=chosen.num_byzantine,
            excluded=chosen.excluded,
        )
        LOG.info("configure_train: %d of %d nodes are asked", len(sent), chosen.num_online)
        return sent

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Judge the replies; return the new model (None: it is kept) and what nodes measured."""
        asked, self._asked = self._asked, None
        if asked is None or asked.round != server_round:
            raise RuntimeError(
                f"aggregate_train for round {server_round} needs configure_train before it."
            )
        done = finish_round(self.settings, self.state, asked, replies)
        self._late.expect(server_round, asked.messages, done.missing)
        log_round(done.told)
        self._journal.add(done.told)
        return done.model, done.metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Choose nodes that measure the model, and write their messages."""
        chosen = choose_for_evaluation(self.settings, self.state, server_round, grid)
        kind = MessageType.EVALUATE
        sent = messages(self.settings, server_round, arrays, config, kind, chosen)
        self._asked_to_evaluate = sent
        return sent

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Average what nodes measured, so that one of them cannot poison the report."""
        asked, self._asked_to_evaluate = self._asked_to_evaluate, []
        return merge_replies(self.settings, server_round, asked, replies)

    def summary(self) -> None:
        """Log the settings."""
        log_settings(self.settings, self.state.round)

    def close(self) -> None:
        """Save where the federation stands, and let go of the folder."""
        self._journal.close()
