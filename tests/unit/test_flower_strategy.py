"""The strategy: settings, too few replies, dtypes, statistics."""

import numpy as np
import pytest
from flwr.app import Message

import outvote as ov
from bad_replies import (
    HandMadeGrid,
    arrays_of,
    content_of,
    honest,
    record_of,
    respond_with,
    run_round,
)
from flower_small import MODEL, NODES, grid_of, strategy_of
from outvote.flower import RobustStrategy
from outvote.results.audit_log import read_audit


class VectorMedian(ov.VectorRule):
    """A median that cannot weigh."""

    def max_byzantine(self, num_clients):
        return (num_clients - 1) // 2

    def aggregate(self, rows, num_byzantine):
        return rows.median(dim=0).values


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_byzantine": None}, "needs the number of Byzantine nodes"),
        ({"byzantine_fraction": 0.2}, "must not be given both"),
        ({"num_byzantine": -1}, "num_byzantine must be a whole number from 0 on, got -1"),
        ({"num_byzantine": None, "byzantine_fraction": 0.5}, "below 0.5, got 0.5"),
        ({"rule": "multikrum"}, "did you mean 'multi-krum'"),
        ({"rule": "fltrust"}, "pass reference="),
        ({"rule": VectorMedian(), "use_num_examples": True}, "cannot weigh by sample_counts"),
        ({"when_too_many": "raise"}, "when_too_many must be one of 'keep', 'lower'"),
        ({"server_optimizer": "fedadm"}, "did you mean 'fedadam'"),
        ({"exclude_outvoted": 3}, "exclude_outvoted must be a rate .* got 3; 0.01 is usual"),
        ({"exclude_outvoted": 0.1, "num_byzantine": 0}, "exclude_outvoted excludes at most"),
        ({"heterogeneity": 0.5}, "heterogeneity must be a number from 1 on, got 0.5"),
        ({"rule": "median", "num_byzantine": None, "exclude_after": 3}, "set num_byzantine or"),
        ({"exclude_after": 0}, "exclude_after must be a whole number from 1 on, got 0"),
        ({"fraction_train": 1.5}, "fraction_train must be from 0 to 1, got 1.5"),
        ({"seed": -4}, "seed must be 0 or larger"),
        ({"selection": "by-scor"}, "unknown selection 'by-scor'; did you mean 'by-score'"),
        ({"selection": "by-score(floor=2)", "fraction_train": 0.5}, "floor must be above 0 and at"),
        ({"selection": "by-score"}, "has no effect where all nodes are asked in every round"),
        (
            {"selection": "by-score", "fraction_train": 0.5, "sample": lambda _, nodes: nodes},
            "selection='by-score' and sample= both choose the nodes",
        ),
    ],
)
def test_wrong_settings_are_refused_before_any_round(settings, message):
    with pytest.raises(ValueError, match=message):
        strategy_of(**settings)


def test_the_model_is_what_the_rule_makes_of_the_updates():
    model = {name: np.full_like(array, 100) for name, array in MODEL.items()}
    grid = grid_of(honest)
    found, _ = run_round(strategy_of("krum"), grid, record_of(model))
    rows = [np.concatenate([a.ravel() for a in honest(n, MODEL).values()]) for n in NODES]
    expected = ov.Krum()(np.stack(rows), num_byzantine=2)
    got = np.concatenate([array.ravel() for array in arrays_of(found).values()])
    np.testing.assert_allclose(got, expected, atol=1e-5)


def test_small_updates_of_large_weights_are_distinguished():
    # In float32 the distances between raw weights would drown: 1e-4 of 1000.
    draw = np.random.default_rng(0)
    base = {"w": draw.normal(0, 1000, 10_000).astype(np.float32)}

    def send(node, model):
        scale = 3e-3 if node < 102 else 1e-3
        step = np.random.default_rng(node).normal(0, scale, 10_000).astype(np.float32)
        return {"w": model["w"] + step}

    found, _ = run_round(strategy_of("krum"), grid_of(send), record_of(base))
    chosen = [n for n in NODES if np.array_equal(arrays_of(found)["w"], send(n, base)["w"])]
    assert len(chosen) == 1
    assert chosen[0] >= 102


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_dtype_of_the_model_never_changes(dtype):
    model = {"w": np.ones((3, 4), dtype), "b": np.zeros(2, np.float32)}
    found, _ = run_round(strategy_of("median"), grid_of(honest), record_of(model))
    assert {name: array.dtype for name, array in arrays_of(found).items()} == {
        "w": np.dtype(dtype),
        "b": np.dtype(np.float32),
    }


def test_statistics_are_merged_by_the_median_and_do_not_sway_the_rule():
    model = {
        "w": np.zeros(4, np.float32),
        "bn.running_var": np.ones(2, np.float32),
        "bn.num_batches_tracked": np.array(7, np.int64),
        "is_on": np.array([True, False]),
    }

    def send(node, model):
        count = 7 + 1000 * (node - 99)
        update = np.float32(1 if node < 109 else 50) + np.float32(node % 3) / 10
        return {
            "w": np.full(4, update, np.float32),
            "bn.running_var": np.array([node, 1e9 if node == 104 else 2], np.float32),
            "bn.num_batches_tracked": np.array(2**62 if node == 103 else count, np.int64),
            "is_on": np.array([True, False]),
        }

    strategy = strategy_of("multi-krum")
    found = arrays_of(run_round(strategy, grid_of(send), record_of(model))[0])
    assert found["w"].max() < 2
    np.testing.assert_array_equal(found["bn.running_var"], [105, 2])
    assert found["bn.num_batches_tracked"] == 7 + 1000 * 7
    assert found["bn.num_batches_tracked"].dtype == np.int64
    assert found["is_on"].tolist() == [True, False]


def test_statistics_that_are_not_finite_make_a_reply_malformed(tmp_path):
    model = {"w": np.zeros(4, np.float32), "bn.running_mean": np.zeros(1, np.float32)}

    def send(node, model):
        mean = np.nan if node == 104 else node
        return {"w": model["w"] + 1, "bn.running_mean": np.array([mean], np.float32)}

    strategy = strategy_of("median", audit_dir=tmp_path)
    run_round(strategy, grid_of(send), record_of(model))
    strategy.close()
    malformed = [c.client for c in read_audit(tmp_path)[0].clients if c.standing == "malformed"]
    assert malformed == ["104"]


def test_what_nobody_changes_stays_as_it_is_to_the_last_bit():
    model = {
        "nothing": np.zeros((0, 3), np.float32),
        "single": np.array(0.1, np.float32),
        "half": np.array([0.1, -3], np.float16),
        "wide": np.array([[0.1, 1e30]]),
        "large": np.array([2**64 - 1, 5], np.uint64),
        "low": np.array(-(2**63), np.int64),
    }
    found = arrays_of(
        run_round(strategy_of("median"), grid_of(lambda node, sent: sent), record_of(model))[0]
    )
    for name, array in model.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert found[name].tobytes() == array.tobytes()


def test_num_byzantine_is_lowered_only_on_request(tmp_path):
    nodes = range(100, 104)
    kept = strategy_of("multi-krum", audit_dir=tmp_path / "keep")
    lowered = strategy_of("multi-krum", audit_dir=tmp_path / "lower", when_too_many="lower")
    assert run_round(kept, grid_of(honest, nodes), record_of(MODEL))[0] is None
    assert run_round(lowered, grid_of(honest, nodes), record_of(MODEL))[0] is not None
    kept.close()
    lowered.close()
    (keep,), (low,) = read_audit(tmp_path / "keep"), read_audit(tmp_path / "lower")
    assert (keep.is_updated, keep.num_byzantine) == (False, 2)
    assert (low.is_updated, low.num_byzantine) == (True, 0)
    assert "too few" in keep.reason
    assert "assuming 0" in low.reason


RULES_AROUND_A_MAJORITY = ("gas(krum)", "gas(dnc)", "gas(multi-krum)", "gas(median)", "multi-krum")


@pytest.mark.parametrize("rule", RULES_AROUND_A_MAJORITY)
def test_colluders_gain_nothing_by_the_absence_of_honest_nodes(rule, tmp_path):
    """Two of six nodes collude, one honest node sends NaN, and one never answers."""

    def respond(message):
        node, model = message.metadata.dst_node_id, arrays_of(message.content["arrays"])
        value = {1: -1.0, 2: -1.0, 3: np.nan}.get(node, 1.0)
        arrays = {name: (array + value).astype(array.dtype) for name, array in model.items()}
        return None if node == 4 else Message(content_of(arrays), reply_to=message)

    strategy = strategy_of(rule, num_byzantine=2, audit_dir=tmp_path)
    grid = HandMadeGrid(range(1, 7), respond)
    found = strategy.start(grid, record_of(MODEL), num_rounds=3, timeout=0)
    for name, array in MODEL.items():
        np.testing.assert_array_equal(arrays_of(found.arrays)[name], array)
    for entry in read_audit(tmp_path):
        assert not entry.is_updated
        assert "4 usable updates are too few" in entry.reason
        assert entry.num_byzantine == 2


def test_a_rule_inside_gas_that_tolerates_fewer_keeps_the_model(tmp_path):
    strategy = strategy_of("gas(bulyan)")
    assert run_round(strategy, grid_of(honest, range(10)), record_of(MODEL))[0] is None
    assert run_round(strategy, grid_of(honest, range(11)), record_of(MODEL), 2)[0] is not None
    lowered = strategy_of("gas(bulyan)", audit_dir=tmp_path / "low", when_too_many="lower")
    assert run_round(lowered, grid_of(honest, range(10)), record_of(MODEL))[0] is not None
    lowered.close()
    assert "assuming 1" in read_audit(tmp_path / "low")[0].reason


def test_a_byzantine_fraction_is_of_the_nodes_asked_not_of_those_who_answer(tmp_path):
    strategy = RobustStrategy("multi-krum", byzantine_fraction=0.2, audit_dir=tmp_path)
    grid = HandMadeGrid(range(100, 120), respond_with("error", range(100, 109)))
    run_round(strategy, grid, record_of(MODEL))
    strategy.close()
    assert read_audit(tmp_path)[0].num_byzantine == 4


def test_a_byzantine_fraction_is_of_the_nodes_asked_not_of_those_connected(tmp_path):
    strategy = RobustStrategy(
        "multi-krum", byzantine_fraction=0.2, audit_dir=tmp_path, fraction_train=0.5
    )
    run_round(strategy, grid_of(honest, range(100, 120)), record_of(MODEL))
    strategy.close()
    (entry,) = read_audit(tmp_path)
    assert (len(entry.clients), entry.num_byzantine) == (10, 2)


def test_nodes_that_train_and_nodes_that_evaluate_are_drawn_independently():
    grid = grid_of(honest, range(100, 120))
    strategy = strategy_of("median", seed=1, fraction_train=0.5, fraction_evaluate=0.5)
    strategy.start(grid, record_of(MODEL), num_rounds=3)
    trained, evaluated = grid.asked[::2], grid.asked[1::2]
    assert all(len(nodes) == 10 for nodes in grid.asked)
    assert all(first != second for first, second in zip(trained, evaluated, strict=True))


def test_a_round_in_which_nobody_answers_keeps_the_model(tmp_path):
    strategy = strategy_of(audit_dir=tmp_path)
    grid = HandMadeGrid(NODES, lambda message: None)
    assert run_round(strategy, grid, record_of(MODEL)) == (None, None)
    strategy.close()
    (entry,) = read_audit(tmp_path)
    assert entry.reason == "no reply could be used"
    assert [each.standing for each in entry.clients] == ["missing"] * 11


def test_a_model_that_would_not_be_finite_is_not_taken(tmp_path):
    strategy = strategy_of(
        "median", audit_dir=tmp_path, server_optimizer="fedavg(learning_rate=10)"
    )
    grid = grid_of(lambda node, model: {"w": np.full(4, 2e38, np.float32)})
    assert run_round(strategy, grid, record_of({"w": np.zeros(4, np.float32)}))[0] is None
    strategy.close()
    assert read_audit(tmp_path)[0].reason == "the new model would not have been finite"


def test_a_step_that_is_not_taken_changes_no_state():
    """Else momentum and rule would remember an update that was refused."""
    optimizer = "fedavg(learning_rate=1e38, momentum=0.5)"
    strategy = strategy_of("centered-clipping", num_byzantine=0, server_optimizer=optimizer)
    assert run_round(strategy, grid_of(honest), record_of(MODEL))[0] is not None
    before = dict(strategy.state.optimizer_state), strategy.state.rule_state
    assert before[0]
    assert before[1] is not None
    huge = {name: np.full_like(array, 3e38) for name, array in MODEL.items()}
    grid = grid_of(lambda node, model: huge)
    assert run_round(strategy, grid, record_of(MODEL), number=2)[0] is None
    after = strategy.state.optimizer_state
    assert {name: id(each) for name, each in after.items()} == {
        name: id(each) for name, each in before[0].items()
    }
    assert strategy.state.rule_state is before[1]


def test_a_rule_that_splits_by_layer_gets_the_sizes_of_the_arrays(tmp_path):
    strategy = strategy_of("gas(median, split=by-layer)", audit_dir=tmp_path)
    found, _ = run_round(strategy, grid_of(honest), record_of(MODEL))
    strategy.close()
    rows = [honest(node, MODEL) for node in NODES]
    rule = ov.make_rule("gas(median, split=by-layer)")
    expected = rule(rows, num_byzantine=2)
    for name, array in arrays_of(found).items():
        np.testing.assert_allclose(array, expected[name], atol=1e-6)
    assert read_audit(tmp_path)[0].is_updated


class Failing(ov.VectorRule):
    """A rule that works in the first round only."""

    name = "failing"
    error: Exception = ZeroDivisionError("division by zero\nin its second line")
    calls = 0

    def max_byzantine(self, num_clients):
        return num_clients - 1

    def aggregate(self, rows, num_byzantine):
        type(self).calls += 1
        if self.calls > 1:
            raise self.error
        return rows.mean(dim=0)


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("by zero\nor so"), MemoryError(), RuntimeError("x" * 500)]
)
def test_any_exception_of_a_rule_keeps_the_model_and_is_logged(error, tmp_path, caplog):
    rule = Failing()
    Failing.calls, Failing.error = 0, error
    strategy = strategy_of(rule, audit_dir=tmp_path)
    result = strategy.start(grid_of(honest), record_of(MODEL), num_rounds=3)
    first, *others = read_audit(tmp_path)
    assert first.is_updated
    for entry in others:
        assert not entry.is_updated
        assert entry.reason.startswith(f"the rule raised {type(error).__name__}")
        assert len(entry.reason) < 200
        assert "\n" not in entry.reason
        assert {each.standing for each in entry.clients} == {"aggregated"}
    assert "the model is kept: the rule raised" in caplog.text
    assert np.isfinite(arrays_of(result.arrays)["w"]).all()


class PlainMean(ov.VectorRule):
    """A rule that cannot report whom it kept."""

    name = "plain-mean"

    def max_byzantine(self, num_clients):
        return num_clients - 1

    def aggregate(self, rows, num_byzantine):
        return rows.mean(dim=0)


def test_where_the_rule_cannot_report_who_was_kept_nobody_is_outvoted(tmp_path):
    strategy = strategy_of(PlainMean(), audit_dir=tmp_path, exclude_outvoted=0.9)
    for number in (1, 2):
        assert run_round(strategy, grid_of(honest), record_of(MODEL), number)[0] is not None
    strategy.close()
    entries = read_audit(tmp_path)
    assert [entry.round for entry in entries] == [1, 2]
    for entry in entries:
        assert {(each.standing, each.kept) for each in entry.clients} == {("aggregated", None)}
        assert {each.reason for each in entry.clients} == {""}
