"""What a Flower user finds again after switching to RobustStrategy: hooks, logs, results."""

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.server import Server, SimpleClientManager

from bad_replies import HandMadeGrid, arrays_of, content_of, honest, record_of, run_round
from flower_small import MODEL, NODES, grid_of, strategy_of
from outvote.flower import RobustStrategy
from outvote.results.audit_log import read_audit


def best(contents, key):
    """The largest accuracy, and how many replies there were."""
    records = [next(iter(content.metric_records.values())) for content in contents]
    assert all(key in record for record in records)
    accuracies = [record["accuracy"] for record in records]
    return MetricRecord({"best": max(accuracies), "replies": len(records)})


def with_accuracy(node, model):
    if node == 104:
        return RecordDict({"metrics": MetricRecord({"num-examples": 1, "accuracy": 9.0})})
    return content_of(honest(node, model), accuracy=(node - 100) / 100)


def test_your_own_functions_aggregate_the_metrics_of_usable_replies():
    strategy = strategy_of(train_metrics_aggr_fn=best, evaluate_metrics_aggr_fn=best)
    result = strategy.start(grid_of(with_accuracy), record_of(MODEL), num_rounds=1)
    assert result.train_metrics_clientapp == {1: {"best": 0.1, "replies": 10}}
    # Evaluation needs no arrays, so node 104 counts.
    assert result.evaluate_metrics_clientapp == {1: {"best": 9.0, "replies": 11}}


@pytest.mark.parametrize("bad", [lambda contents, key: contents[0]["no such record"], max])
def test_a_function_for_metrics_that_fails_costs_the_metrics_and_not_the_round(bad, caplog):
    strategy = strategy_of(train_metrics_aggr_fn=bad, evaluate_metrics_aggr_fn=bad)
    result = strategy.start(grid_of(with_accuracy), record_of(MODEL), num_rounds=2)
    assert result.train_metrics_clientapp == result.evaluate_metrics_clientapp == {}
    assert "train_metrics_aggr_fn" in caplog.text
    assert "evaluate_metrics_aggr_fn" in caplog.text
    assert strategy.state.round == 2


def test_functions_for_metrics_must_be_given_again_when_a_run_is_resumed(tmp_path):
    strategy = strategy_of(audit_dir=tmp_path, train_metrics_aggr_fn=best)
    strategy.start(grid_of(with_accuracy), record_of(MODEL), num_rounds=1)
    with pytest.raises(ValueError, match=r"had its own train_metrics_aggr_fn= \(best\)"):
        RobustStrategy.resume(tmp_path)
    RobustStrategy.resume(tmp_path, train_metrics_aggr_fn=best)


class Halving(RobustStrategy):
    """A strategy of a user: a learning rate that falls, and a word after each round."""

    def __init__(self, words, **settings):
        super().__init__(**settings)
        self.words = words

    def configure_train(self, server_round, arrays, config, grid):
        config = ConfigRecord({**config, "lr": 0.5**server_round})
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        self.words.append((server_round, arrays is not None))
        return arrays, metrics


def test_the_strategy_can_be_subclassed_and_resumed(tmp_path):
    assert not getattr(RobustStrategy, "__final__", False)
    rates, words = [], []

    def respond(message):
        rates.append(message.content["config"]["lr"])
        return Message(content_of(honest(message.metadata.dst_node_id, MODEL)), reply_to=message)

    settings = {"rule": "median", "fraction_evaluate": 0.0}
    strategy = Halving(words, audit_dir=tmp_path, **settings)
    strategy.start(HandMadeGrid(NODES, respond), record_of(MODEL), num_rounds=2)
    again = Halving.resume(tmp_path, words=words)
    assert isinstance(again, Halving)
    again.start(HandMadeGrid(NODES, respond), record_of(MODEL), num_rounds=3)
    assert words == [(1, True), (2, True), (3, True)]
    assert rates == [0.5] * 11 + [0.25] * 11 + [0.125] * 11


def test_the_results_of_earlier_rounds_are_there_after_a_resume(tmp_path):
    def evaluate(number, arrays):
        return MetricRecord({"accuracy": number / 10, "by_class": [0.5, float(number)]})

    settings = {"rule": "median", "num_byzantine": 2}
    whole = RobustStrategy(audit_dir=None, **settings).start(
        grid_of(honest), record_of(MODEL), 4, evaluate_fn=evaluate
    )
    first = RobustStrategy(audit_dir=tmp_path, **settings)
    first.start(grid_of(honest), record_of(MODEL), 2, evaluate_fn=evaluate)
    second = RobustStrategy.resume(tmp_path)
    found = second.start(grid_of(honest), record_of(MODEL), 4, evaluate_fn=evaluate)
    assert found.train_metrics_clientapp == whole.train_metrics_clientapp
    assert found.evaluate_metrics_clientapp == whole.evaluate_metrics_clientapp
    assert found.evaluate_metrics_serverapp == whole.evaluate_metrics_serverapp
    assert sorted(found.train_metrics_clientapp) == [1, 2, 3, 4]
    assert sorted(found.evaluate_metrics_serverapp) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"fraction_fit": 0.5}, "fraction_train"),
        ({"min_fit_clients": 3}, "min_train_nodes"),
        ({"min_available_clients": 3}, "min_available_nodes"),
        ({"fit_metrics_aggregation_fn": max}, "train_metrics_aggr_fn"),
        ({"evaluate_fn": max}, "start"),
        ({"initial_parameters": []}, "initial_arrays"),
        ({"on_fit_config_fn": max}, "train_config"),
        ({"accept_failures": True}, "no setting"),
    ],
)
def test_keywords_of_the_former_strategy_api_are_named_when_the_strategy_is_made(old, new):
    (name,) = old
    with pytest.raises(TypeError, match=rf"{name} is of Flower's former .*{new}") as caught:
        strategy_of(**old)
    assert "\n" not in str(caught.value)


def test_an_unknown_keyword_names_the_closest_one():
    with pytest.raises(TypeError, match=r"no setting 'exclude_outvotd'; .* 'exclude_outvoted'"):
        strategy_of(exclude_outvotd=0.1)


def test_the_former_server_gets_one_clear_sentence():
    """Flower's former servers call other methods, and would raise AttributeError in `fit`."""
    server = Server(client_manager=SimpleClientManager(), strategy=strategy_of())
    with pytest.raises(TypeError, match=r"^RobustStrategy is a strategy of flwr\.serverapp.*\.$"):
        server.fit(num_rounds=1, timeout=1)


def test_a_numpy_client_is_recognised_by_its_reply(tmp_path, caplog):
    class Old(NumPyClient):
        def fit(self, parameters, config):
            return parameters, 1, {}

        def evaluate(self, parameters, config):
            return 0.0, 1, {}

    app = ClientApp(client_fn=lambda context: Old().to_client())

    def respond(message):
        context = Context(1, 1, {}, RecordDict(), {})
        try:
            return app(message, context)
        except Exception as error:  # noqa: BLE001
            # As Flower's SuperNode reports it.
            return Message(Error(2, f"{type(error)}:<'{error}'>"), reply_to=message)

    strategy = strategy_of(audit_dir=tmp_path)
    strategy.start(HandMadeGrid(NODES, respond), record_of(MODEL), num_rounds=1)
    sentence = "its ClientApp is made of a NumPyClient or Client"
    assert all(sentence in each.reason for each in read_audit(tmp_path)[0].clients)
    assert caplog.text.count("write functions with @app.train() and @app.evaluate()") >= 1


def test_a_subclass_may_still_be_run_round_by_round(tmp_path):
    strategy = Halving([], rule="median", audit_dir=tmp_path)
    model, _ = run_round(strategy, grid_of(honest), record_of(MODEL))
    strategy.close()
    assert np.isfinite(arrays_of(model)["w"]).all()
