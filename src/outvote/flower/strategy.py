"""The strategy that Flower calls: it asks nodes, applies the rule to their updates, keeps a log."""

import time
from collections.abc import Callable, Iterable
from logging import getLogger
from math import nan
from pathlib import Path
from typing import Any, NoReturn

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from outvote.flower.audit_writer import AuditWriter, MetricKind, log_faults
from outvote.flower.console import (
    log_end,
    log_metrics,
    log_round,
    log_sample,
    log_settings,
    log_start,
)
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
from outvote.flower.server_state import ServerState, load_state
from outvote.flower.settings import (
    MetricsFunction,
    Reference,
    Sampler,
    Settings,
    WhenTooMany,
    refuse,
    resumed_settings,
)
from outvote.results.audit_log import find_log, read_manifest
from outvote.rules.rule import Rule
from outvote.rules.rule_spec import make_rule
from outvote.server.selection import Selection, make_selection
from outvote.server.step import Server, make_server

LOG = getLogger("flwr")
Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]
NO_SETTINGS = ("self", "others", "__class__")
FORMER_SERVER = (
    "RobustStrategy is a strategy of flwr.serverapp, and Flower's former servers (flwr.server: "
    "ServerAppComponents, start_server, start_simulation) cannot run it; call "
    "strategy.start(grid, initial_arrays) in the @app.main() of a flwr.serverapp.ServerApp."
)


class RobustStrategy(Strategy):
    """Any rule of outvote as a Flower strategy that no single node can ruin or stop.

    The rest is as in Flower's own strategies. Subclasses may override the methods of Flower's
    `Strategy`; call those of this class in them.

    Args:
        rule: Text or object, see `outvote list rules`.
        num_byzantine: How many of the nodes asked may be Byzantine.
        byzantine_fraction: Or their share.
        audit_dir: A folder in which every run gets its own, for log and checkpoint; None writes
            nothing.
        when_too_many: With too few usable replies for the rule, "keep" the model, or "lower" the
            number of Byzantine nodes that it assumes.
        use_num_examples: Weight nodes by the number of examples they claim, none more than three
            times the median; off, as it is only a claim.
        server_optimizer: How the update becomes a step: an `ov.Server`, or a text such as
            "fedadam(learning_rate=0.01)".
        exclude_after: After so many malformed replies a node is not asked any more; None: never.
        exclude_outvoted: Exclude nodes that a sequential test finds outvoted beyond chance, an
            honest one with at most this probability, as 0.01. Read docs/how-to/flower-exclusion.md
            first.
        heterogeneity: How many times as far from the others as the median node an honest node may
            be in half of the rounds; for `exclude_outvoted`.
        probation: After so many rounds an excluded node is asked again; None: never.
        sample: Your own choice of nodes, ``(round, nodes) -> nodes``.
        selection: How nodes are sampled for training: "uniform", or "by-score", less often if their
            scores were high in earlier rounds, and never excluded; "by-score(floor=0.2,
            memory=0.8)". Read docs/concepts/client-selection.md first.
        reference: The server's own training, ``(round, model) -> model``, for fltrust.
        seed: None draws the randomness of the rule afresh in every round, as a secret.
        fraction_train: Share of the nodes that train in a round, as in Flower.
        fraction_evaluate: Share of the nodes that evaluate, as in Flower.
        min_train_nodes: Fewest nodes that train, as in Flower.
        min_evaluate_nodes: Fewest nodes that evaluate, as in Flower.
        min_available_nodes: The server waits until this many are connected.
        checkpoint_every: How many rounds a kill may cost.
        max_memory: Updates that would take more, as one matrix with its copies, are aggregated some
            coordinates at a time; the replies themselves, which Flower holds, are not counted.
        weighted_by_key: Where replies have the number of examples, as in Flower.
        arrayrecord_key: Where messages have the model, as in Flower.
        configrecord_key: Where messages have the settings, as in Flower.
        train_metrics_aggr_fn: As in Flower, ``(contents, key) -> metrics``; it gets all usable
            replies, also those of nodes that the rule drops.
        evaluate_metrics_aggr_fn: Likewise, for evaluation.
        others: Keywords of Flower's former strategies; an error that names the new one.
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
        server_optimizer: str | Server | None = None,
        exclude_after: int | None = None,
        exclude_outvoted: float | None = None,
        heterogeneity: float = 2.0,
        probation: int | None = 20,
        sample: Sampler | None = None,
        selection: str | Selection = "uniform",
        reference: Reference | None = None,
        seed: int | None = None,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 1.0,
        min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2,
        min_available_nodes: int = 2,
        checkpoint_every: int = 1,
        max_memory: int | str = "2GB",
        weighted_by_key: str = "num-examples",
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        train_metrics_aggr_fn: MetricsFunction | None = None,
        evaluate_metrics_aggr_fn: MetricsFunction | None = None,
        **others: Any,
    ) -> None:
        given = {name: value for name, value in locals().items() if name not in NO_SETTINGS}
        if others:
            raise refuse(next(iter(others)))
        given["rule"] = make_rule(rule)
        given["audit_dir"] = None if audit_dir is None else Path(audit_dir).absolute()
        given["server_optimizer"] = make_server(server_optimizer or "fedavg")
        given["selection"] = make_selection(selection)
        self.settings = Settings(**given)
        self.state = ServerState(
            exclusions=Exclusions(exclude_after, probation, rate=exclude_outvoted)
        )
        self._writer = AuditWriter(self.settings, self.state)
        self._request: RoundRequest | None = None
        self._evaluation: list[Message] = []
        self._late = LateReplies()

    @classmethod
    def resume(cls, audit_dir: str | Path, **settings: Any) -> "RobustStrategy":
        """Continue the newest run in a folder after its last checkpoint; if there is none, start.

        The folder is `audit_dir`, or that of one run. Settings that are not given are those of the
        run. `start` then runs the rounds that are left of `num_rounds`, from the model of the
        checkpoint.
        """
        folder = find_log(Path(audit_dir).absolute())
        found = cls(audit_dir=audit_dir, **resumed_settings(folder, settings))
        log_faults(load_state(folder, found.state, found.settings.rule))
        if found.state.round or read_manifest(folder) is not None:
            found._writer = AuditWriter(found.settings, found.state, continued=folder)
        return found

    @property
    def run_dir(self) -> Path | None:
        """The folder of the run; None before it starts, or if nothing is written."""
        return self._writer.folder

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

        The result holds the last model, and the metrics of all rounds. Flower's own loop cannot
        start in the middle, and one reply that it cannot decode ends it.
        """
        began = time.monotonic()
        self._writer.open()
        try:
            result = Result(arrays=self.state.model or initial_arrays)
            check_same_network(result.arrays, initial_arrays)
            self._add_past_metrics(result)
            configs = {"train": train_config, "evaluate": evaluate_config}
            log_start(type(self).__name__, num_rounds, result.arrays, configs)
            self.summary()
            LOG.info("")
            last = self.state.round
            if evaluate_fn is not None:
                metrics = evaluate_fn(last, result.arrays)
                LOG.info("Initial global evaluation results: %s", metrics)
                self._keep(result.evaluate_metrics_serverapp, last, "server", metrics)
            for number in range(last + 1, num_rounds + 1):
                LOG.info("")
                LOG.info("[ROUND %s/%s]", number, num_rounds)
                self._train(grid, number, result, train_config or ConfigRecord(), timeout)
                self._evaluate(grid, number, result, evaluate_config or ConfigRecord(), timeout)
                if evaluate_fn is not None:
                    LOG.info("Global evaluation")
                    metrics = evaluate_fn(number, result.arrays)
                    LOG.info("\t└──> MetricRecord: %s", metrics)
                    self._keep(result.evaluate_metrics_serverapp, number, "server", metrics)
        finally:
            self.close()
        log_end(result, time.monotonic() - began)
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Choose nodes and write their messages."""
        before = self.state.round
        self._writer.open()
        if self.state.round != before:
            raise RuntimeError(
                f"the run went on to round {self.state.round} while this server waited for its "
                "folder; call resume again."
            )
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
        if messages:
            log_sample("configure_train", len(messages), sample.num_online)
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
        sample = sample_for_evaluation(self.settings, self.state, server_round, grid)
        self._evaluation = write_messages(
            self.settings, server_round, arrays, config, MessageType.EVALUATE, sample.nodes
        )
        if self._evaluation:
            log_sample("configure_evaluate", len(self._evaluation), sample.num_online)
        return self._evaluation

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Average the nodes' metrics robustly."""
        messages, self._evaluation = self._evaluation, []
        return average_evaluations(self.settings, server_round, messages, replies)

    def summary(self) -> None:
        """Log the settings."""
        log_settings(self.settings, self.state.round, self.run_dir)

    def close(self) -> None:
        """Save the state of the federation, and release the folder."""
        self._writer.close()

    def initialize_parameters(self, *_: Any, **__: Any) -> NoReturn:
        """Raise TypeError: Flower's former servers call this first, and cannot run this class."""
        raise TypeError(FORMER_SERVER)

    def _train(
        self, grid: Grid, number: int, result: Result, config: ConfigRecord, timeout: float
    ) -> None:
        messages = self.configure_train(number, result.arrays, config, grid)
        arrays, metrics = self.aggregate_train(number, send_and_receive(grid, messages, timeout))
        result.arrays = result.arrays if arrays is None else arrays
        log_metrics(metrics)
        self._keep(result.train_metrics_clientapp, number, "train", metrics)

    def _evaluate(
        self, grid: Grid, number: int, result: Result, config: ConfigRecord, timeout: float
    ) -> None:
        messages = self.configure_evaluate(number, result.arrays, config, grid)
        metrics = self.aggregate_evaluate(number, send_and_receive(grid, messages, timeout))
        log_metrics(metrics)
        self._keep(result.evaluate_metrics_clientapp, number, "evaluate", metrics)

    def _keep(
        self,
        by_round: dict[int, MetricRecord],
        number: int,
        kind: MetricKind,
        metrics: MetricRecord | None,
    ) -> None:
        if metrics is not None:
            by_round[number] = metrics
            self._writer.add_metrics(number, kind, metrics)

    def _add_past_metrics(self, result: Result) -> None:
        """Add the metrics of the rounds before a resume."""
        by_kind = {
            "train": result.train_metrics_clientapp,
            "evaluate": result.evaluate_metrics_clientapp,
            "server": result.evaluate_metrics_serverapp,
        }
        for line in self._writer.past_metrics():
            by_kind[line.kind][line.round] = MetricRecord(
                {name: _known(value) for name, value in line.metrics.items()}
            )


def _known(value: Any) -> Any:
    """Return a stored metric; JSON has no NaN."""
    if isinstance(value, list):
        return [nan if each is None else each for each in value]
    return nan if value is None else value
