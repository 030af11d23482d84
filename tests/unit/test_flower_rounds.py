"""Around the rule: secrets, sampling, memories, metrics, manifest."""

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict

from bad_replies import HandMadeGrid, arrays_of, content_of, honest, record_of, run_round
from flower_small import MODEL, NODES, grid_of, strategy_of
from outvote.report.audit import Mark, audit_log
from outvote.results.audit_log import read_audit, read_manifest


def test_the_split_is_drawn_afresh_and_stands_in_the_log_alone(tmp_path, caplog):
    strategy = strategy_of("gas(multi-krum)", audit_dir=tmp_path)
    sent = []

    def respond(message):
        sent.append(str(dict(message.content["config"])))
        return Message(content_of(honest(message.metadata.dst_node_id, MODEL)), reply_to=message)

    strategy.start(HandMadeGrid(NODES, respond), record_of(MODEL), num_rounds=3)
    seeds = [entry.seed for entry in read_audit(tmp_path)]
    assert len(set(seeds)) == 3
    spoken = caplog.text + "".join(sent) + (strategy.run_dir / "manifest.json").read_text()
    assert not any(str(seed) in spoken for seed in seeds)


def test_a_seed_repeats_splits_and_samples():
    def run(seed):
        strategy = strategy_of("gas(median)", seed=seed, fraction_train=0.7)
        grid = grid_of(honest)
        result = strategy.start(grid, record_of(MODEL), num_rounds=2)
        return grid.asked, [array.tobytes() for array in arrays_of(result.arrays).values()]

    assert run(1) == run(1)
    assert run(1)[0] != run(2)[0]


def test_counts_matter_only_to_who_asks():
    def send(node, model):
        arrays = {"w": np.full(4, node - 100, np.float32)}
        return content_of(arrays, **{"num-examples": 10**6 if node == 104 else 1})

    def mean(**settings):
        strategy = strategy_of("mean", num_byzantine=0, **settings)
        found, _ = run_round(strategy, grid_of(send), record_of({"w": np.zeros(4, np.float32)}))
        return float(arrays_of(found)["w"][0])

    assert mean() == pytest.approx(5)
    # Of eleven nodes with 1 example each, the one that claims a million counts as three.
    num_nodes = len(NODES)
    others = sum(node - 100 for node in NODES if node != 104)
    wanted = (others + 3 * 4) / (num_nodes - 1 + 3)
    assert mean(use_num_examples=True) == pytest.approx(wanted, rel=1e-5)


def test_your_own_sampling_chooses_from_who_is_there():
    seen = []

    def sample(round_, nodes):
        seen.append((round_, list(nodes)))
        return nodes[:5]

    grid = grid_of(honest)
    strategy = strategy_of("median", sample=sample)
    run_round(strategy, grid, record_of(MODEL))
    assert seen == [(1, list(NODES))]
    assert grid.asked == [list(NODES)[:5]]
    stranger = strategy_of("median", sample=lambda round_, nodes: [7])
    with pytest.raises(ValueError, match="sample chose node 7"):
        run_round(stranger, grid, record_of(MODEL))


def test_the_round_is_sent_to_nodes_and_the_config_of_the_caller_stays_as_it_was():
    config = ConfigRecord({"lr": 0.5})
    grid = grid_of(honest)
    (first, *_) = strategy_of().configure_train(3, record_of(MODEL), config, grid)
    assert dict(first.content["config"]) == {"lr": 0.5, "server-round": 3}
    assert dict(config) == {"lr": 0.5}


def test_rules_with_state_and_rules_with_a_reference_work(tmp_path):
    grid = grid_of(honest)
    stateful = strategy_of("centered-clipping(radius=1.0)", num_byzantine=2)
    result = stateful.start(grid, record_of(MODEL), num_rounds=2)
    assert stateful.state.rule_state.shape == (14,)
    assert np.isfinite(arrays_of(result.arrays)["w"]).all()

    def train(round_, model):
        return record_of({name: array + 1 for name, array in arrays_of(model).items()})

    trusted = strategy_of("fltrust", num_byzantine=None, reference=train)
    found = arrays_of(run_round(trusted, grid, record_of(MODEL))[0])
    assert np.abs(found["w"] - 1).max() < 0.3


def test_evaluation_is_averaged_robustly_end_to_end():
    def send(node, model):
        bad = {100: float("nan"), 101: -1e9}
        metrics = {"accuracy": bad.get(node, 0.8), "num-examples": 3}
        return RecordDict({"metrics": MetricRecord(metrics)})

    strategy, grid = strategy_of(), grid_of(send)
    messages = strategy.configure_evaluate(1, record_of(MODEL), ConfigRecord(), grid)
    found = strategy.aggregate_evaluate(1, grid.send_and_receive(messages))
    assert found == {"accuracy": pytest.approx(0.8)}


def test_a_rule_that_needs_no_number_of_byzantine_nodes_resists_false_metrics():
    def send(node, model):
        return content_of(honest(node, model), loss=1e9 if node == 101 else 1.0)

    grid = grid_of(send)
    strategy = strategy_of("median", num_byzantine=None)
    assert run_round(strategy, grid, record_of(MODEL))[1]["loss"] == pytest.approx(1)
    messages = strategy.configure_evaluate(1, record_of(MODEL), ConfigRecord(), grid)
    found = strategy.aggregate_evaluate(1, grid.send_and_receive(messages))
    assert found["loss"] == pytest.approx(1)
    assert run_round(strategy_of("mean", None), grid, record_of(MODEL))[1]["loss"] > 1e7


def test_the_manifest_holds_the_settings_of_the_run(tmp_path):
    strategy = strategy_of("gas(median)", audit_dir=tmp_path, server_optimizer="fedadam")
    run_round(strategy, grid_of(honest), record_of(MODEL))
    strategy.close()
    found = read_manifest(tmp_path)
    assert (found.rule, found.num_byzantine) == ("gas(median)", 2)
    assert found.settings["server_optimizer"] == "fedadam"
    assert found.settings["when_too_many"] == "keep"


def test_nobody_looks_suspicious_because_others_did_not_answer(tmp_path):
    def respond(message):
        node = message.metadata.dst_node_id
        return Message(content_of(honest(node, MODEL)), reply_to=message) if node < 103 else None

    strategy = strategy_of(audit_dir=tmp_path)
    run_round(strategy, HandMadeGrid(NODES, respond), record_of(MODEL))
    strategy.close()
    audit = audit_log(tmp_path)
    assert audit.marks[0].tolist() == [Mark.ABSENT] * 3 + [Mark.MISSING] * 8
    assert np.isnan(audit.scores).all()


def test_the_server_waits_until_enough_nodes_are_connected(monkeypatch):
    monkeypatch.setattr("outvote.flower.node_sampling.SECONDS_BETWEEN_LOOKS", 0)
    grid = grid_of(honest, nodes=[])
    looks = iter(range(100))
    grid.get_node_ids = lambda: list(NODES)[: next(looks)]
    strategy = strategy_of("median", min_available_nodes=7, fraction_train=0.5)
    messages = strategy.configure_train(1, record_of(MODEL), ConfigRecord(), grid)
    assert len(messages) == 3
    assert next(looks) == 8


def test_aggregating_without_asking_first_is_an_error():
    with pytest.raises(RuntimeError, match="needs configure_train before it"):
        strategy_of().aggregate_train(1, [])
