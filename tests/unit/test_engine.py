"""The engine: all runs at once give what each gives in plain loops."""

import copy
from dataclasses import replace
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import final

import numpy as np
import pytest
import torch
from torch import nn

import outvote as ov
from federations import TRAINING, make_runs, networks, samples
from outvote.engine.federation import Federation, count_sampled, make_federation
from outvote.engine.local_updates import local_updates
from outvote.engine.record import honest_losses
from outvote.engine.reference import ReferenceRun
from outvote.engine.run_stack import Run, State, sample_participants
from outvote.engine.simulation import first_state, make_run_stack, simulate
from outvote.server.selection import ByScore
from outvote.server.step import Server
from outvote.training.local_sgd import LocalSGD
from outvote.training.sequential import SequentialTrainer
from outvote.training.stacked_trainer import StackedTrainer
from outvote.training.vmap_trainer import VmapTrainer

RULES = (
    "mean",
    "median",
    "multi-krum",
    "gas(multi-krum, num_groups=20)",
    "gas(rbtm, num_groups=7)",
)
ATTACKS = (
    "none",
    "bit-flip",
    "label-flip",
    "lie",
    "min-max",
    "min-sum",
    "ipm",
    "mimic",
    "gaussian",
    "nan",
)
# Every rule under every attack in one stack; ipm twice, so that two runs share rule and attack.
PAIRS = [(rule, attack) for rule in RULES for attack in (*ATTACKS, "ipm")]
SETS = (samples(120), samples(40))
# States are written in the first round, read in the second and read again in the third.
NUM_ROUNDS = 3


@pytest.fixture(scope="module")
def in_plain_loops() -> list[tuple[list[dict], torch.Tensor]]:
    """The records of three rounds of every pair, and its last weights."""
    runs = make_runs(PAIRS)
    return [
        reference_rounds(run, module, NUM_ROUNDS)[:2]
        for run, module in zip(runs, networks(runs), strict=True)
    ]


def reference_rounds(run, module, num_rounds, training=TRAINING, **more):
    """The records of the plain loops, their last weights, and the run itself."""
    train, test = SETS
    plain = ReferenceRun(
        run=run,
        model=copy.deepcopy(module),
        train=train,
        test=test,
        training=training,
        num_classes=4,
        **more,
    )
    records = [plain.run_round(number) for number in range(1, num_rounds + 1)]
    weights = nn.utils.parameters_to_vector(plain.model.parameters()).detach()
    return records, weights, plain


@pytest.mark.parametrize("is_batched", [False, True])
@pytest.mark.parametrize("trainer", [SequentialTrainer, StackedTrainer, VmapTrainer])
def test_stacked_runs_equal_the_plain_loops(trainer, is_batched: bool, in_plain_loops):
    runs, train, test = make_runs(PAIRS), *SETS
    modules = networks(runs)
    stack = make_run_stack(modules[0], train, test, runs, training=TRAINING, num_classes=4)
    stack = replace(stack, trainer=trainer(modules[0], train), is_batched=is_batched)
    steps = list(simulate(stack, first_state(modules, train), NUM_ROUNDS))
    for k, (records, weights) in enumerate(in_plain_loops):
        for step, expected in zip(steps, records, strict=True):
            assert list(step.records[k].clients) == expected["clients"], PAIRS[k]
            assert step.records[k].accuracy == pytest.approx(expected["accuracy"]), PAIRS[k]
        far = (steps[-1].state.weights[k] - weights).abs().max()
        assert far <= 1e-9, PAIRS[k]


def normalised(**batch_norm) -> nn.Module:
    layers = (nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4, **batch_norm), nn.ReLU())
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(144, 4)).double()


# Clients with 3 to 27 samples.
UNEQUAL = make_federation(np.split(np.arange(120), [3, 10, 22, 38, 56, 74, 93]), fraction=0.25)

# What each case adds to the plain round; all of it must be in the plain loops too.
FEATURES = {
    "client momentum": {"training": {"client_momentum": 0.6}},
    "server step": {"server": Server(learning_rate=0.7, momentum=0.4)},
    "FedAdam": {"server": Server(optimizer="adam", learning_rate=0.02, epsilon=0.01)},
    "FedAdagrad": {"server": Server(optimizer="adagrad", learning_rate=0.02, beta1=0.0)},
    "FedYogi": {"server": Server(optimizer="yogi", learning_rate=0.02, beta1=0.5, beta2=0.9)},
    "proximal term": {"training": {"proximal": 3.0, "max_norm": None}},
    "proximal term, clipped": {"training": {"proximal": 3.0, "max_norm": 0.3}},
    "rates": {"training": {"learning_rate": [0.1, 0.02]}},
    "rates by a callable": {"training": {"learning_rate": lambda number: 0.1 / number}},
    "batch normalisation": {"network": normalised},
    "cumulative statistics": {"network": partial(normalised, momentum=None)},
    "frozen statistics": {"network": partial(normalised, momentum=0.0)},
    "whole state": {"network": normalised, "aggregate": "state"},
    "schedule, no clipping": {"training": {"schedule": ((2, 0.01),), "max_norm": None}},
    "augmentation": {"training": {"augment": True}},
    "assumed number": {"run": {"assumed_byzantine": 1}},
    "sample counts": {"run": {"uses_sample_counts": True, "federation": UNEQUAL}},
    "selection by score": {"run": {"selection": ByScore(floor=0.1, memory=0.1)}},
    "assumed fraction": {"run": {"assumed_byzantine": 0.2}},
    "FedYogi, state and steps": {
        "network": normalised,
        "aggregate": "state",
        "server": Server(optimizer="yogi", learning_rate=0.01),
        "training": {"proximal": 1.0, "num_steps": 3, "learning_rate": (0.05, 0.0, 0.01)},
    },
    "momenta, state and steps": {
        "network": normalised,
        "aggregate": "state",
        "server": Server(momentum=0.5),
        "training": {"client_momentum": 0.3, "num_steps": 3},
        "run": {"assumed_byzantine": 0.3},
    },
}


FEATURE_PAIRS = [
    ("median", "lie"),
    ("gas(multi-krum, num_groups=7)", "bit-flip"),
    ("multi-krum", "label-flip"),
    ("centered-clipping", "min-max"),
    ("fltrust", "lie"),
    ("foolsgold", "label-flip"),
    ("fltrust", "fang"),
]


# Three pairs with each feature, and each pair with many: all with all are slow.
SOME_PAIRS = {
    feature: [FEATURE_PAIRS[(k + step) % len(FEATURE_PAIRS)] for step in (0, 2, 3)]
    for k, feature in enumerate(FEATURES)
}


@pytest.mark.parametrize(
    ("feature", "pairs"),
    [
        *((feature, pairs) for feature, pairs in SOME_PAIRS.items()),
        *(pytest.param(each, FEATURE_PAIRS, marks=pytest.mark.slow) for each in FEATURES),
    ],
    ids=[*(f"{feature}, three" for feature in FEATURES), *(f"{each}, all" for each in FEATURES)],
)
def test_every_feature_equals_the_plain_loops(feature: str, pairs):
    how = dict(FEATURES[feature])
    training = replace(TRAINING, **how.pop("training", {}))
    root, more = torch.arange(3, 23), how.pop("run", {})
    runs = [replace(run, root=root, **more) for run in make_runs(pairs)]
    network = how.pop("network", None)
    modules = networks(runs) if network is None else [network() for _ in runs]
    expected = [
        reference_rounds(run, module, NUM_ROUNDS, training, **how)
        for run, module in zip(runs, modules, strict=True)
    ]
    stack = make_run_stack(modules[0], *SETS, runs, training=training, num_classes=4, **how)
    for trainer in (SequentialTrainer, StackedTrainer, VmapTrainer):
        if trainer is VmapTrainer and feature == "cumulative statistics":
            continue  # vmap cannot run them.
        stack = replace(stack, trainer=trainer(modules[0], SETS[0]))
        steps = list(simulate(stack, first_state(modules, SETS[0]), NUM_ROUNDS))
        for k, found in enumerate(expected):
            check_equal(steps, k, *found)


def check_equal(steps, k: int, records, weights, plain) -> None:
    """Check run `k` of a stack against the plain loops."""
    for step, expected in zip(steps, records, strict=True):
        found = step.records[k]
        assert list(found.clients) == expected["clients"]
        assert found.kept == (expected["kept"] and tuple(expected["kept"]))
        assert found.num_byzantine_used == expected["num_byzantine_used"]
        assert found.accuracy == pytest.approx(expected["accuracy"])
    state = steps[-1].state
    torch.testing.assert_close(state.weights[k], weights, rtol=0, atol=1e-9)
    buffers = [buffer.flatten().double() for buffer in plain.model.buffers()]
    buffers = torch.cat([*buffers, torch.empty(0, dtype=torch.float64)])
    torch.testing.assert_close(state.buffers[k], buffers, rtol=0, atol=1e-9)
    assert set(state.client_states[k] if state.client_states else ()) == set(plain.last_sent)


@final
class Backdoor(ov.Attack):
    """Trains on marked samples as class 0, and boosts its row."""

    is_colluding = False

    def poison(self, samples, targets, num_classes):
        assert samples.shape[1:] == (1, 6, 6)
        assert num_classes == 4
        marked = samples.clone()
        marked[:, :, :2, :2] = 3.0
        return marked, torch.zeros_like(targets)

    def craft(self, context):
        return ov.AttackOutput(rows=2 * context.own_rows)


@final
class NearModel(ov.Rule):
    """The mean, pulled to the model by a share that falls with the round; no weights are known."""

    traits = ov.Traits(needs_model=True, selects_clients=False)

    def max_byzantine(self, num_clients):
        return num_clients - 1

    def compute(self, matrix, info):
        mean = matrix.columns.double().mean(dim=-1)
        return ov.Aggregation(vector=mean + 0.1 / info.round * info.model.double())


@pytest.mark.parametrize("aggregate", ["parameters", "state"])
def test_users_rules_and_attacks_equal_the_plain_loops(aggregate: str):
    pairs = [
        (NearModel(), Backdoor()),
        (ov.make_rule("median"), Backdoor()),
        (ov.make_rule("gas(median, split=by-layer)"), ov.make_attack("lie")),
        (NearModel(), ov.make_attack("label-flip")),
    ]
    base = make_runs([("mean", "none")] * len(pairs))
    runs = [
        replace(run, rule=rule, attack=attack)
        for run, (rule, attack) in zip(base, pairs, strict=True)
    ]
    modules = [normalised() for _ in runs]
    settings = {"training": TRAINING, "num_classes": 4, "aggregate": aggregate}
    stack = make_run_stack(modules[0], *SETS, runs, **settings)
    for trainer in (SequentialTrainer, StackedTrainer, VmapTrainer):
        stack = replace(stack, trainer=trainer(modules[0], SETS[0]))
        steps = list(simulate(stack, first_state(modules, SETS[0]), NUM_ROUNDS))
        for k, (run, module) in enumerate(zip(runs, modules, strict=True)):
            found = reference_rounds(run, module, NUM_ROUNDS, aggregate=aggregate)
            check_equal(steps, k, *found)
        for step in steps:
            unknown, known, *_ = step.records
            assert unknown.kept is unknown.num_kept_byzantine is unknown.byzantine_weight is None
            assert known.kept is not None
            assert len(unknown.scores) == len(unknown.clients)


@final
class SometimesInfinite(ov.Attack):
    """Trains on infinite samples where the first label of a batch is even: those rows are NaN."""

    is_colluding = False
    sends_nonfinite = True

    def poison(self, samples, targets, num_classes):
        return (samples * torch.inf if int(targets[0]) % 2 == 0 else samples), targets

    def craft(self, context):
        return ov.AttackOutput(rows=context.own)


def test_the_momentum_of_a_client_that_diverged_starts_anew():
    runs = [
        replace(run, attack=SometimesInfinite(), num_sampled=8)
        for run in make_runs([("mean", "none"), ("median", "none"), ("multi-krum", "none")])
    ]
    training = replace(TRAINING, client_momentum=0.6, num_steps=1, batch_size=4)
    modules, num_rounds = networks(runs), 6
    stack = make_run_stack(modules[0], *SETS, runs, training=training, num_classes=4)
    for trainer in (SequentialTrainer, StackedTrainer, VmapTrainer):
        stack = replace(stack, trainer=trainer(modules[0], SETS[0]))
        steps = list(simulate(stack, first_state(modules, SETS[0]), num_rounds))
        for k, (run, module) in enumerate(zip(runs, modules, strict=True)):
            check_equal(steps, k, *reference_rounds(run, module, num_rounds, training))
        rejected = [{(k, c) for k in range(3) for c in s.records[k].rejected} for s in steps]
        assert any(before - after for before, after in pairwise(rejected)), "no client recovered"


@pytest.mark.parametrize("attack", ["lie", "gas-aware(steps=2)"])
def test_the_reference_gradient_is_trained_once_a_round(attack: str, monkeypatch):
    root = torch.arange(20)
    runs = [replace(run, root=root) for run in make_runs([("fltrust", attack)])]
    train, test = SETS
    modules = networks(runs)
    how = {"training": TRAINING, "num_classes": 4, "trainer": "sequential"}
    stack = make_run_stack(modules[0], train, test, runs, **how)
    trained = []
    real = SequentialTrainer.train_one

    def counted(self, task, *more):
        trained.append(set(task.batches.index.flatten().tolist()) - {-1})
        return real(self, task, *more)

    monkeypatch.setattr(SequentialTrainer, "train_one", counted)
    list(simulate(stack, first_state(modules, train), 3))
    assert trained.count(set(root.tolist())) == 3


@pytest.mark.parametrize("trainer", [SequentialTrainer, StackedTrainer, VmapTrainer])
@pytest.mark.parametrize("name", ["mlp", "small-cnn"])
def test_a_run_alone_and_among_others_agree(name: str, trainer):
    runs = make_runs([("gas(median, num_groups=5)", "lie"), ("mean", "ipm"), ("rfa", "min-max")])
    train, test = samples(120, torch.float32), samples(40, torch.float32)
    modules = networks(runs, name, torch.float32)
    stack = make_run_stack(modules[0], train, test, runs, training=TRAINING, num_classes=4)
    stack = replace(stack, trainer=trainer(modules[0], train))
    together = list(simulate(stack, first_state(modules, train), 3))[-1].state
    for k in range(len(runs)):
        alone = list(simulate(stack.only([k]), first_state([modules[k]], train), 3))[-1].state
        torch.testing.assert_close(together.weights[k], alone.weights[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("num_sampled", [1, 6])
def test_on_a_cpu_a_run_alone_and_among_others_is_the_same_to_the_last_bit(num_sampled: int):
    rules = ["gas(median, num_groups=5)", "multi-krum", "rfa", "bulyan", "centered-clipping"]
    pairs = [(rule, attack) for rule in rules for attack in ("lie", "min-max", "ipm", "lie")]
    runs = [replace(run, num_sampled=num_sampled) for run in make_runs(pairs)]
    train, test = samples(120, torch.float32), samples(40, torch.float32)
    modules = networks(runs, "small-cnn", torch.float32)
    stack = make_run_stack(modules[0], train, test, runs, training=TRAINING, num_classes=4)
    together = list(simulate(stack, first_state(modules, train), 2))
    for k in range(len(runs)):
        alone = list(simulate(stack.only([k]), first_state([modules[k]], train), 2))
        assert torch.equal(together[-1].state.weights[k], alone[-1].state.weights[0])
        for step, own in zip(together, alone, strict=True):
            assert step.records[k] == own.records[0]


def test_batch_normalisation_is_the_same_in_both_trainers():
    module = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4)
    ).double()
    runs = make_runs([("gas(median, num_groups=5)", "lie"), ("median", "bit-flip")])
    train, test = samples(120), samples(40)
    stack = make_run_stack(module, train, test, runs, training=TRAINING, num_classes=4)
    start = first_state([module, module], train)
    one = list(simulate(stack, start, 3))[-1].state
    stack = replace(stack, trainer=StackedTrainer(module, train))
    other = list(simulate(stack, start, 3))[-1].state
    torch.testing.assert_close(one.weights, other.weights, rtol=0, atol=1e-9)
    torch.testing.assert_close(one.buffers, other.buffers, rtol=0, atol=1e-9)
    assert bool(one.buffers[:, -1].gt(0).all()), "the counter of batches"


@pytest.mark.parametrize("attack", ["none", "lie", "bit-flip"])
def test_rules_can_aggregate_the_whole_state(attack: str):
    module = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4)
    ).double()
    runs = make_runs([("mean", attack)])
    train, test = samples(120), samples(40)
    named = {"training": TRAINING, "num_classes": 4}
    stack = make_run_stack(module, train, test, runs, **named, aggregate="state")
    start = first_state([module], train)
    (step,) = simulate(stack, start, 1)
    state = step.state
    assert bool((state.buffers[0, 4:8] >= 0).all()), "variances"
    assert bool(state.buffers[0, 8] == state.buffers[0, 8].round()), "the counter"
    if attack == "none":
        (other,) = simulate(make_run_stack(module, train, test, runs, **named), start, 1)
        torch.testing.assert_close(state.weights, other.state.weights)
        torch.testing.assert_close(state.buffers[:, :8], other.state.buffers[:, :8])


def test_augmentation_is_the_same_in_both_trainers():
    training = replace(TRAINING, augment=True)
    runs = make_runs([("mean", "none")])
    train, test = samples(120), samples(40)
    modules = networks(runs)
    plain = make_run_stack(modules[0], train, test, runs, training=TRAINING, num_classes=4)
    stack = make_run_stack(modules[0], train, test, runs, training=training, num_classes=4)
    start = first_state(modules, train)
    without = list(simulate(plain, start, 1))[-1].state
    one = list(simulate(stack, start, 1))[-1].state
    stack = replace(stack, trainer=StackedTrainer(modules[0], train))
    other = list(simulate(stack, start, 1))[-1].state
    torch.testing.assert_close(one.weights, other.weights, rtol=0, atol=1e-9)
    assert not torch.allclose(one.weights, without.weights)


@pytest.mark.parametrize("attack", ["lie", "ipm"])
@pytest.mark.parametrize("rule", ["centered-clipping", "foolsgold", "fltrust", "signguard"])
def test_rules_with_a_state_or_a_reference_run(rule: str, attack: str):
    runs = [replace(run, root=torch.arange(20)) for run in make_runs([(rule, attack)] * 2)]
    train, test = samples(120), samples(40)
    modules = networks(runs)
    stack = make_run_stack(modules[0], train, test, runs, training=TRAINING, num_classes=4)
    state = list(simulate(stack, first_state(modules, train), 3))[-1].state
    assert bool(state.weights.isfinite().all())
    if ov.make_rule(rule).traits.has_state:
        assert all(each is not None for each in state.rule_states)


def test_byzantine_clients_train_only_if_their_attack_uses_their_own_gradients():
    runs = make_runs([("median", "lie"), ("median", "bit-flip")])
    train, test = samples(120), samples(40)
    modules = networks(runs)
    stack = make_run_stack(modules[0], train, test, runs, training=TRAINING, num_classes=4)
    state = first_state(modules, train)
    rounds = (sample_participants(stack, replace(state, round=k)) for k in range(98))
    participants = next(some for some in rounds if _is_mixed(some.is_byzantine))
    found = local_updates(stack, state, participants).gradients.view(2, 6, -1)
    is_idle = found.abs().sum(dim=-1) == 0
    assert torch.equal(is_idle[0], participants.is_byzantine[0])
    assert not bool(is_idle[1].any())


def _is_mixed(is_byzantine) -> bool:
    return bool((is_byzantine.any(dim=1) & ~is_byzantine.all(dim=1)).all())


def test_a_rule_without_scores_is_scored_by_the_distance_to_its_update():
    runs = make_runs([("mean", "none"), ("median", "nan"), ("gas(median, num_groups=5)", "lie")])
    train, test = samples(120), samples(40)
    modules = networks(runs)
    stack = make_run_stack(modules[0], train, test, runs, training=TRAINING, num_classes=4)
    step = next(iter(simulate(stack, first_state(modules, train), 1)))
    for record in step.records:
        for client, score in zip(record.clients, record.scores, strict=True):
            assert np.isfinite(score) == (client not in record.rejected)
            assert score > 0


def test_a_run_that_diverges_ends_and_the_others_go_on():
    runs = make_runs([("mean", "none"), ("median", "lie")])
    train, test = samples(120, torch.float32), samples(40, torch.float32)
    modules = networks(runs, dtype=torch.float32)
    with torch.no_grad():
        next(modules[0].parameters()).fill_(torch.inf)
    stack = make_run_stack(modules[0], train, test, runs, training=TRAINING, num_classes=4)
    steps = list(simulate(stack, first_state(modules, train), 3))
    assert steps[0].over == [0]
    assert [step.numbers for step in steps] == [[0, 1], [1], [1]]


def test_the_number_assumed_is_the_true_one_a_number_or_a_fraction_of_the_sampled():
    (run,) = make_runs([("mean", "lie")])
    assert (run.federation.num_clients, run.num_sampled) == (8, 6)
    found = [replace(run, assumed_byzantine=each) for each in (None, 1, 0.3, 0.5)]
    assert [each.num_byzantine_assumed(2) for each in found] == [2, 1, 2, 3]


def test_the_loss_of_a_round_is_that_of_the_honest_clients_who_trained():
    nan, inf = float("nan"), float("inf")
    losses = torch.tensor(
        [[1.0, 2.0, 9.0], [1.0, inf, 9.0], [1.0, 3.0, 8.0], [1.0, 0.0, 9.0], [nan, nan, 9.0]]
    )
    is_byzantine = torch.tensor(
        [[False, False, True]] * 2 + [[True] * 3] + [[False, False, True]] * 2
    )
    has_trained = torch.ones_like(is_byzantine)
    has_trained[3, 1] = False
    found = honest_losses(losses, is_byzantine, has_trained)
    assert found[:4] == [1.5, 1.0, 4.0, 1.0]
    assert np.isnan(found[4])
    assert honest_losses(losses[:1], is_byzantine[:1], ~has_trained[:1]) == [None]


def test_when_a_run_ends_the_others_keep_their_own_states():
    rows = torch.arange(3.0).unsqueeze(1)
    state = State(
        round=5,
        weights=rows,
        buffers=rows.double() + 10,
        server_state={"first_moment": rows + 20, "second_moment": rows + 30},
        attack_states=("attack 0", "attack 1", "attack 2"),
        rule_states=("rule 0", "rule 1", "rule 2"),
        client_states=({0: "client"}, {1: "client"}, {2: "client"}),
        selection_states=({0: 0.5}, {}, {2: 0.25}),
    )
    assert State.joined([state.only([0, 1]), state.only([2])]).selection_states == (
        {0: 0.5},
        {},
        {2: 0.25},
    )
    left = state.only([1, 2])
    assert left.round == 5
    assert left.weights.tolist() == [[1.0], [2.0]]
    assert left.buffers.tolist() == [[11.0], [12.0]]
    assert left.server_state["first_moment"].tolist() == [[21.0], [22.0]]
    assert left.server_state["second_moment"].tolist() == [[31.0], [32.0]]
    assert left.attack_states == ("attack 1", "attack 2")
    assert left.rule_states == ("rule 1", "rule 2")
    assert left.client_states == ({1: "client"}, {2: "client"})
    assert left.selection_states == ({}, {2: 0.25})


def test_the_learning_rate_follows_its_schedule():
    training = LocalSGD(learning_rate=0.1, schedule=((5, 0.01), (9, 0.001)))
    assert [training.learning_rate_at(k) for k in (1, 4, 5, 8, 9, 99)] == [
        0.1,
        0.1,
        0.01,
        0.01,
        0.001,
        0.001,
    ]


def test_the_byzantine_clients_are_a_fraction_rounded_up_and_drawn_once():
    federation = make_federation([[k] for k in range(11)], fraction=0.2, seed=3)
    assert federation.num_byzantine == 3
    again = make_federation([[k] for k in range(11)], fraction=0.2, seed=3)
    assert federation.is_byzantine == again.is_byzantine
    assert count_sampled(3597, ratio=0.005, number=None) == 18


def test_a_federation_that_cannot_run_is_refused_in_one_line():
    with pytest.raises(ValueError, match="client 1 of 2 owns none"):
        make_federation([[0], []])
    with pytest.raises(ValueError, match="from 0 to the 2 clients"):
        make_federation([[0], [1]], num_byzantine=3)
    with pytest.raises(ValueError, match="from 1 to 5 clients can be sampled"):
        count_sampled(5, ratio=None, number=0)
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        LocalSGD(batch_size=0)
    with pytest.raises(ValueError, match="learning_rate must be finite"):
        LocalSGD(learning_rate=float("nan"))
    with pytest.raises(ValueError, match="each of the 1 clients"):
        Federation(parts=(torch.tensor([0]),), is_byzantine=())


@pytest.mark.parametrize(
    ("assumed", "num_sampled", "expected"), [(0.4999, 5, 2), (0.1, 5, 1), (0.3, 5, 2), (0.8, 5, 4)]
)
def test_a_fraction_below_one_half_never_assumes_a_majority(assumed, num_sampled, expected):
    run = SimpleNamespace(assumed_byzantine=assumed, num_sampled=num_sampled)
    assert Run.num_byzantine_assumed(run, 0) == expected
