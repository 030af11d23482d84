"""Attack mods: what a Byzantine node sends."""

import numpy as np
import pytest
import torch
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.supercore.task_identity import TaskIdentity

import outvote as ov
from outvote.attacks.attack_spec import ATTACKS
from outvote.flower.attack_mod import AttackMod, batch_to_train_on, labels_to_train_on

MODEL = {
    "weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "bias": np.ones(2, dtype=np.float64),
    "num_batches": np.array(7),
}
STEP = 0.5


@pytest.fixture(autouse=True)
def _inside_a_run(monkeypatch):
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def node(partition=0, *, run=None, **settings):
    configured = {"partition-id": partition, "num-partitions": 4, **settings}
    return Context(
        run_id=1, node_id=5, node_config=configured, state=RecordDict(), run_config=run or {}
    )


def message(kind="train", *, model=MODEL, number=1):
    arrays = ArrayRecord({name: Array(np.asarray(value)) for name, value in model.items()})
    content = RecordDict({"arrays": arrays, "config": ConfigRecord({"server-round": number})})
    return Message(content=content, dst_node_id=5, message_type=kind)


def add_step(given, _context, step=STEP):
    """Be an honest app: every float goes up by a step, the counter by one."""
    arrays = {name: array.numpy() for name, array in given.content["arrays"].items()}
    after = {k: v + (step if v.dtype.kind == "f" else 1) for k, v in arrays.items()}
    record = ArrayRecord({k: Array(np.asarray(v, arrays[k].dtype)) for k, v in after.items()})
    content = RecordDict({"arrays": record, "metrics": MetricRecord({"num-examples": 3})})
    return Message(content=content, reply_to=given)


def sent(reply):
    return {name: array.numpy() for name, array in reply.content["arrays"].items()}


def update(reply, model=MODEL):
    """Return what was added to the model, as one vector."""
    arrays = sent(reply)
    return np.concatenate([(arrays[k] - model[k]).reshape(-1) for k in ("weight", "bias")])


@pytest.mark.parametrize(
    ("attack", "wanted"),
    [
        ("bit-flip", -STEP),
        ("nan", np.nan),
        ("inf", np.inf),
        ("zero", 0.0),
        ("ipm(epsilon=0.1)", -0.05),
    ],
)
def test_the_update_is_replaced_not_the_weights(attack, wanted):
    reply = AttackMod(attack=attack)(message(), node(), add_step)
    assert np.allclose(update(reply), wanted, equal_nan=True)


@pytest.mark.parametrize("name", [name for name in ATTACKS if name not in ("none", "label-flip")])
def test_every_attack_can_be_sent_round_after_round(name):
    mod, context = AttackMod(attack=name, rule="median"), node()
    for number in range(4):
        model = {k: v + number if v.dtype.kind == "f" else v for k, v in MODEL.items()}
        reply = mod(message(model=model, number=number), context, add_step)
        is_finite = bool(np.isfinite(update(reply, model)).all())
        assert is_finite is not ATTACKS[name].sends_nonfinite


def test_shapes_dtypes_whole_numbers_and_metrics_stay_as_the_app_made_them():
    reply = AttackMod(attack="nan")(message(), node(), add_step)
    arrays = sent(reply)
    assert {k: (v.shape, v.dtype) for k, v in arrays.items()} == {
        k: (v.shape, v.dtype) for k, v in MODEL.items()
    }
    assert arrays["num_batches"] == 8
    assert reply.content["metrics"]["num-examples"] == 3


def test_gaussian_noise_is_repeated_by_a_seed_and_differs_by_round_and_node():
    mod = AttackMod(attack="gaussian(sigma=200)", seed=1)
    first, again, later = (
        update(mod(message(number=number), node(), add_step)) for number in (1, 1, 2)
    )
    assert np.abs(first).max() > 10
    assert np.array_equal(first, again)
    assert not np.allclose(first, later)


def test_lie_shifts_by_the_deviation_of_the_updates_that_the_node_has_seen():
    mod, context = AttackMod(attack="lie(z=2)"), node()
    first = update(mod(message(), context, add_step))
    assert np.allclose(first, STEP)  # it has seen no other update yet
    moved = {k: v + 1 if v.dtype.kind == "f" else v for k, v in MODEL.items()}
    second = update(mod(message(model=moved), context, add_step), moved)
    seen = np.array([STEP, 1.0, STEP])  # its own, the server's step, its own
    assert np.allclose(second, seen.mean() - 2 * seen.std(), atol=1e-6)


def test_the_estimate_is_made_from_the_latest_updates_and_no_more():
    mod, context = AttackMod(attack="lie", num_past_updates=3), node()
    for number in range(5):
        model = {k: v + number if v.dtype.kind == "f" else v for k, v in MODEL.items()}
        mod(message(model=model), context, lambda *given, k=number: add_step(*given, step=k))
    rows = context.state["outvote-drill"]["rows"].numpy()
    assert np.allclose(rows[:, 0], [3, 1, 4])


def test_a_server_that_kept_its_model_reveals_nothing_about_others():
    mod, context = AttackMod(attack="lie"), node()
    for _ in range(2):
        mod(message(), context, add_step)
    assert np.allclose(context.state["outvote-drill"]["rows"].numpy(), STEP)


def test_an_attack_that_knows_the_defence_takes_the_rule_from_mod_or_run():
    wanted = "optimal-lie"
    for mod, run in (
        (AttackMod(attack=wanted, rule="median"), {}),
        (AttackMod(attack=wanted), {"attack-rule": "median"}),
    ):
        assert np.isfinite(update(mod(message(), node(run=run), add_step))).all()
    with pytest.raises(ValueError, match="needs a rule"):
        AttackMod(attack=wanted)(message(), node(), add_step)


@pytest.mark.parametrize(
    ("settings", "run", "is_byzantine"),
    [
        ({}, {}, False),
        ({"attack": "bit-flip"}, {}, True),
        ({}, {"attack": "bit-flip"}, False),
        ({}, {"attack": "bit-flip", "num-attackers": 2}, False),
        ({}, {"attack": "bit-flip", "num-attackers": 3}, True),
        ({"attack": "none"}, {"attack": "bit-flip", "num-attackers": 3}, False),
    ],
)
def test_the_configuration_chooses_who_is_byzantine(settings, run, is_byzantine):
    reply = AttackMod()(message(), node(2, run=run, **settings), add_step)
    assert np.allclose(update(reply), -STEP if is_byzantine else STEP)


def test_partitions_choose_who_is_byzantine():
    mod = AttackMod(attack="bit-flip", partitions=[0, 3])
    signs = [np.sign(update(mod(message(), node(k), add_step))[0]) for k in range(4)]
    assert signs == [-1, 1, 1, -1]


def test_evaluation_and_failures_are_left_alone():
    mod = AttackMod(attack="nan")
    assert np.allclose(update(mod(message("evaluate"), node(), add_step)), STEP)
    failed = Message(Error(code=0, reason="out of memory"), reply_to=message())
    assert mod(message(), node(), lambda *_: failed) is failed


@pytest.mark.parametrize("kind", [np.array, torch.tensor, list])
def test_label_flip_changes_what_the_app_trains_on(kind):
    seen = []

    def app(given, context):
        seen.extend(labels_to_train_on(given, kind([0, 1, 9]), 10))
        return add_step(given, context)

    given = message()
    reply = AttackMod(attack="label-flip")(given, node(), app)
    assert [int(label) for label in seen] == [9, 8, 0]
    assert np.allclose(update(reply), STEP)
    assert set(given.content) == {"arrays", "config"}


@pytest.mark.parametrize("labels", [[-1, 0], [0, 10]])
def test_label_flip_refuses_labels_that_are_no_classes(labels):
    def app(given, _context):
        labels_to_train_on(given, labels, 10)

    with pytest.raises(ValueError, match="from 0 to 9"):
        AttackMod(attack="label-flip")(message(), node(), app)


def test_label_flip_fails_aloud_in_an_app_that_does_not_ask_for_labels():
    with pytest.raises(RuntimeError, match="labels_to_train_on"):
        AttackMod(attack="label-flip")(message(), node(), add_step)


def test_float16_models_overflow_to_infinity_without_a_warning():
    model = {"weight": np.ones(3, np.float16)}
    reply = AttackMod(attack="gaussian(sigma=1e9)")(message(model=model), node(), add_step)
    assert sent(reply)["weight"].dtype == np.float16
    assert np.isinf(sent(reply)["weight"]).all()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"attack": "bitflip"}, "bit-flip"),
        ({"rule": "medain"}, "median"),
        ({"partitions": [1]}, "attack="),
        ({"attack": "lie", "num_past_updates": 0}, "num_past_updates must be at least 1"),
    ],
)
def test_mistakes_are_errors_before_the_first_round(settings, words):
    with pytest.raises(ValueError, match=words):
        AttackMod(**settings)


def test_a_reply_or_model_that_cannot_be_forged_is_an_error():
    def empty(given, _context):
        return Message(content=RecordDict({"arrays": ArrayRecord()}), reply_to=given)

    def silent(given, _context):
        return Message(content=RecordDict(), reply_to=given)

    mod = AttackMod(attack="nan")
    with pytest.raises(ValueError, match="'weight'"):
        mod(message(), node(), empty)
    with pytest.raises(ValueError, match="one record of arrays"):
        mod(message(), node(), silent)
    with pytest.raises(ValueError, match="floats"):
        mod(message(model={"count": np.array(7)}), node(), add_step)


class Stamp(ov.Attack):
    """Stamps samples, trains them as class 0, and sends twice the update."""

    name = "stamp"

    def poison(self, samples, targets, num_classes):
        return samples.clamp(min=9), targets.new_zeros(targets.shape)

    def craft(self, context):
        return ov.AttackOutput(rows=2 * context.own_rows)


def test_a_data_attack_gets_samples_and_targets_and_crafts_the_update(monkeypatch):
    monkeypatch.setitem(ATTACKS, "stamp", Stamp)
    seen = []

    def train(given, context):
        batch = batch_to_train_on(given, torch.tensor([[1.0], [20.0]]), torch.tensor([3, 4]), 10)
        seen.append([part.tolist() for part in batch])
        return add_step(given, context)

    reply = AttackMod(attack="stamp")(message(), node(), train)
    assert seen == [[[[9.0], [20.0]], [0, 0]]]
    assert np.allclose(update(reply), 2 * STEP)
    train(message(), None)
    assert seen[1] == [[[1.0], [20.0]], [3, 4]]


def test_an_attack_on_samples_needs_an_app_that_passes_them(monkeypatch):
    monkeypatch.setitem(ATTACKS, "stamp", Stamp)

    def train(given, context):
        labels_to_train_on(given, [3, 4], 10)

    with pytest.raises(ValueError, match="batch_to_train_on"):
        AttackMod(attack="stamp")(message(), node(), train)
