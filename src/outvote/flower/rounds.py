"""The loop over rounds: Flower's own, except that it can begin in the middle."""

from abc import abstractmethod
from collections.abc import Callable
from logging import getLogger

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from outvote.flower.collecting import send_and_receive

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]
LOG = getLogger("flwr")


class ResumableStrategy(Strategy):
    """A strategy that may have played some rounds before."""

    @abstractmethod
    def begin(self, initial_arrays: ArrayRecord) -> tuple[int, ArrayRecord]:
        """Return the last round that was played, and the model after it."""

    @abstractmethod
    def close(self) -> None:
        """Save where the federation stands, and let go of what is held."""

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
        """Play the rounds, after a resume those that are left; `num_rounds` counts from the first.

        The result holds the last model, and the metrics of the rounds played now.
        """
        last, arrays = self.begin(initial_arrays)
        result = Result(arrays=arrays)
        try:
            _measure(evaluate_fn, last, result)
            for number in range(last + 1, num_rounds + 1):
                LOG.info("")
                LOG.info("[ROUND %s/%s]", number, num_rounds)
                self._train(number, grid, train_config or ConfigRecord(), timeout, result)
                self._evaluate(number, grid, evaluate_config or ConfigRecord(), timeout, result)
                _measure(evaluate_fn, number, result)
        finally:
            self.close()
        return result

    def _train(
        self, number: int, grid: Grid, config: ConfigRecord, timeout: float, result: Result
    ) -> None:
        messages = self.configure_train(number, result.arrays, config, grid)
        replies = send_and_receive(grid, messages, timeout)
        arrays, metrics = self.aggregate_train(number, replies)
        if arrays is not None:
            result.arrays = arrays
        if metrics is not None:
            LOG.info("\ttraining: %s", dict(metrics))
            result.train_metrics_clientapp[number] = metrics

    def _evaluate(
        self, number: int, grid: Grid, config: ConfigRecord, timeout: float, result: Result
    ) -> None:
        messages = self.configure_evaluate(number, result.arrays, config, grid)
        replies = send_and_receive(grid, messages, timeout)
        metrics = self.aggregate_evaluate(number, replies)
        if metrics is not None:
            LOG.info("\tevaluation: %s", dict(metrics))
            result.evaluate_metrics_clientapp[number] = metrics


def _measure(evaluate: Evaluate | None, number: int, result: Result) -> None:
    """Let the server measure the model itself, if it wants to."""
    metrics = None if evaluate is None else evaluate(number, result.arrays)
    if metrics is not None:
        LOG.info("\tmeasured by the server: %s", dict(metrics))
        result.evaluate_metrics_serverapp[number] = metrics
