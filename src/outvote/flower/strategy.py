"""The strategy that Flower calls: it asks nodes, applies the rule to their updates, keeps a log."""

from collections.abc import Callable, Iterable
from logging import getLogger
from pathlib import Path
from typing import Any, final

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from outvote.flower.audit_writer import AuditWriter, log_round, log_settings
from outvote.flower.exclusion import Exclusions
from outvote.flower.model_record import SentModel, check_same_network
from outvote.flower.node_metrics import average_evaluations
from outvote.flower.node_sampling import (
    sample_for_evaluation,
    sample_for_training,
    write_messages,
)
from outvote.flower.reply_collection import LateReplies, send_and_receive
from outvote.flower.round_step import RoundRequest, finish_round
from outvote.flower.server_optimizers import ServerOptimizer, make_server_optimizer
from outvote.flower.server_state import ServerState, load_state
from outvote.flower.settings import Reference, Sampler, Settings, WhenTooMany, resumed_settings
from outvote.rules.rule import Rule
from outvote.rules.rule_spec import make_rule

LOG = getLogger("flwr")
Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]


@final
class RobustStrategy(Strategy):
    """Any rule of outvote as a Flower strategy that no single node can ruin or stop.

    rule: text or object, see `outvote list rules`.
    num_byzantine, byzantine_fraction: number or share of the nodes asked that may be Byzantine.
    audit_dir: a folder for the log and the checkpoint; None writes nothing.
    when_too_many: with too few usable replies for the rule, "keep" the model, or "lower" the
        number of Byzantine nodes that it assumes.
    use_num_examples: weight nodes by the number of examples they claim; off, as it is only a claim.
    server_optimizer: how the update becomes a step, as "fedadam(learning_rate=0.01)".
    exclude_after: after so many malformed replies a node is not asked any more; None: never.
    exclude_outvoted: exclude nodes that a sequential test finds outvoted beyond chance, an honest
        one with at most this probability, as 0.01. Read docs/how-to/flower-exclusion.md first.
    heterogeneity: how many times as far from the others as the median node an honest node may be
        in half of the rounds; for `exclude_outvoted`.
    probation: after so many rounds an excluded node is asked again; None: never.
    sample: your own choice of nodes, ``(round, nodes) -> nodes``.
    reference: the server's own training, ``(round, model) -> model``, for fltrust.
    seed: None draws the randomness of the rule afresh in every round, as a secret.
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
        exclude_outvoted: float | None = None,
        heterogeneity: float = 2.0,
        probation: int | None = 20,
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
        given = {name: value for name, value in locals().items() if name != "self"}
        given["rule"] = make_rule(rule)
        given["audit_dir"] = None if audit_dir is None else Path(audit_dir)
        given["server_optimizer"] = make_server_optimizer(server_optimizer or "fedavg")
        self.settings = Settings(**given)
        self.state = ServerState(
            exclusions=Exclusions(exclude_after, probation, rate=exclude_outvoted)
        )
        self._writer = AuditWriter(self.settings, self.state, is_resumed=False)
        self._request: RoundRequest | None = None
        self._evaluation: list[Message] = []
        self._late = LateReplies()

    @classmethod
    def resume(cls, audit_dir: str | Path, **settings: Any) -> "RobustStrategy":
        """Continue after the last checkpoint in a folder; where there is none, start.

        Settings that are not given are those of the run. `start` then runs the rounds that are left
        of `num_rounds`, from the model of the checkpoint.
        """
        folder = Path(audit_dir)
        found = cls(audit_dir=folder, **resumed_settings(folder, settings))
        for fault in load_state(folder, found.state, found.settings.rule):
            LOG.warning("An older checkpoint is used: %s", fault)
        found._writer = AuditWriter(found.settings, found.state, is_resumed=True)
        return found

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
    ) -> Result:
        """Run the rounds, after a resume those that are left; `num_rounds` counts from the first.

        The result holds the last model, and the metrics of the rounds run now. Flower's own loop
        cannot start in the middle, and one reply that it cannot decode ends it.
        """
        result = Result(arrays=self.state.model or initial_arrays)
        check_same_network(result.arrays, initial_arrays)
        self._writer.open()
        self.summary()
        last = self.state.round
        train_config = train_config or ConfigRecord()
        evaluate_config = evaluate_config or ConfigRecord()
        try:
            _evaluate_on_server(evaluate_fn, last, result)
            for number in range(last + 1, num_rounds + 1):
                LOG.info("")
                LOG.info("[ROUND %s/%s]", number, num_rounds)
                messages = self.configure_train(number, result.arrays, train_config, grid)
                replies = send_and_receive(grid, messages, timeout)
                arrays, metrics = self.aggregate_train(number, replies)
                result.arrays = result.arrays if arrays is None else arrays
                _add_metrics(result.train_metrics_clientapp, number, "training", metrics)
                messages = self.configure_evaluate(number, result.arrays, evaluate_config, grid)
                replies = send_and_receive(grid, messages, timeout)
                metrics = self.aggregate_evaluate(number, replies)
                _add_metrics(result.evaluate_metrics_clientapp, number, "evaluation", metrics)
                _evaluate_on_server(evaluate_fn, number, result)
        finally:
            self.close()
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Choose nodes and write their messages."""
        self._writer.open()
        for round_, nodes in self._late.arrived(grid).items():
            LOG.info("Too late for round %d: nodes %s", round_, ", ".join(map(str, nodes)))
            self._writer.add_late(round_, nodes)
        sample = sample_for_training(self.settings, self.state, server_round, grid)
        messages = write_messages(
            self.settings, server_round, arrays, config, MessageType.TRAIN, sample.nodes
        )
        self._request = RoundRequest(
            round=server_round, sent=SentModel.read(arrays), messages=messages, sample=sample
        )
        LOG.info("configure_train: %d of %d nodes are asked", len(messages), sample.num_online)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate the replies; return the new model (None: it is kept) and the nodes' metrics."""
        request, self._request = self._request, None
        if request is None or request.round != server_round:
            raise RuntimeError(
                f"aggregate_train for round {server_round} needs configure_train before it."
            )
        result = finish_round(self.settings, self.state, request, replies)
        self._late.expect(server_round, request.messages, result.missing)
        log_round(result.audit)
        self._writer.add(result.audit)
        return result.model, result.metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Choose nodes that evaluate the model, and write their messages."""
        nodes = sample_for_evaluation(self.settings, self.state, server_round, grid)
        self._evaluation = write_messages(
            self.settings, server_round, arrays, config, MessageType.EVALUATE, nodes
        )
        return self._evaluation

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Average the nodes' metrics robustly."""
        messages, self._evaluation = self._evaluation, []
        return average_evaluations(self.settings, server_round, messages, replies)

    def summary(self) -> None:
        """Log the settings."""
        log_settings(self.settings, self.state.round)

    def close(self) -> None:
        """Save the state of the federation, and release the folder."""
        self._writer.close()


def _evaluate_on_server(evaluate: Evaluate | None, number: int, result: Result) -> None:
    metrics = None if evaluate is None else evaluate(number, result.arrays)
    _add_metrics(result.evaluate_metrics_serverapp, number, "measured by the server", metrics)


def _add_metrics(
    by_round: dict[int, MetricRecord], number: int, label: str, metrics: MetricRecord | None
) -> None:
    if metrics is not None:
        LOG.info("\t%s: %s", label, dict(metrics))
        by_round[number] = metrics
