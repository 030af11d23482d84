"""The engine: all runs at once come out as each would in plain loops."""

import copy
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import outvote as ov
from federations import TRAINING, make_runs, networks, pictures
from outvote.clients.federation import Federation, count_sampled, make_federation
from outvote.clients.sequential import SequentialTrainer
from outvote.clients.stacked import StackedTrainer
from outvote.clients.training import Training
from outvote.engine.reference import Plain
from outvote.engine.sampling import sample_participants
from outvote.engine.simulation import first_state, make_run_stack, simulate
from outvote.engine.training import train as train_clients

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
# Every rule under every attack in one world, and twice under one that asks the rule for both.
PAIRS = [(rule, attack) for rule in RULES for attack in (*ATTACKS, "ipm")]
SETS = (pictures(120), pictures(40))
# What is remembered is written in the first round, read in the second and read again in the third.
NUM_ROUNDS = 3


@pytest.fixture(scope="module")
def in_plain_loops() -> list[tuple[list[dict], torch.Tensor]]:
    """What is told of three rounds of every pair, and its last weights."""
    runs, train, test = make_runs(PAIRS), *SETS
    found = []
    for run, module in zip(runs, networks(runs), strict=True):
        plain = Plain(run, module, train, test, TRAINING, 4)
        told = [plain.play(number) for number in range(1, NUM_ROUNDS + 1)]
        found.append((told, nn.utils.parameters_to_vector(plain.model.parameters()).detach()))
    return found


@pytest.mark.parametrize("is_batched", [False, True])
@pytest.mark.parametrize("way", [SequentialTrainer, StackedTrainer])
def test_runs_played_together_come_out_as_in_plain_loops(way, is_batched: bool, in_plain_loops):
    runs, train, test = make_runs(PAIRS), *SETS
    modules = networks(runs)
    world = make_run_stack(modules[0], train, test, runs, training=TRAINING, num_classes=4)
    world = replace(world, trainer=way(modules[0], train), is_batched=is_batched)
    steps = list(simulate(world, first_state(modules, train), NUM_ROUNDS))
    for k, (told, weights) in enumerate(in_plain_loops):
        for step, expected in zip(steps, told, strict=True):
            assert list(step.records[k].clients) == expected["clients"], PAIRS[k]
            assert step.records[k].accuracy == pytest.approx(expected["accuracy"]), PAIRS[k]
        far = (steps[-1].state.weights[k] - weights).abs().max()
        assert far <= 1e-9, PAIRS[k]


def test_clients_with_momentum_come_out_as_in_plain_loops():
    training = replace(TRAINING, client_momentum=0.6)
    runs = make_runs([("median", "lie"), ("mean", "bit-flip"), ("multi-krum", "label-flip")])
    train, test = pictures(120), pictures(40)
    modules = networks(runs)
    world = make_run_stack(modules[0], train, test, runs, training=training, num_classes=4)
    *_, last = simulate(world, first_state(modules, train), 5)
    for k, run in enumerate(runs):
        plain = Plain(run, copy.deepcopy(modules[k]), train, test, training, 4)
        for number in range(1, 6):
            plain.play(number)
        expected = nn.utils.parameters_to_vector(plain.model.parameters()).detach()
        torch.testing.assert_close(last.state.weights[k], expected, rtol=0, atol=1e-9)
        assert set(last.state.client_memory[k]) == set(plain.sent)


@pytest.mark.parametrize("way", [SequentialTrainer, StackedTrainer])
@pytest.mark.parametrize("name", ["mlp", "small-cnn"])
def test_a_run_alone_and_among_others_agree(name: str, way):
    runs = make_runs([("gas(median, num_groups=5)", "lie"), ("mean", "ipm"), ("rfa", "min-max")])
    train, test = pictures(120, torch.float32), pictures(40, torch.float32)
    modules = networks(runs, name, torch.float32)
    world = make_run_stack(modules[0], train, test, runs, training=TRAINING, num_classes=4)
    world = replace(world, trainer=way(modules[0], train))
    together = list(simulate(world, first_state(modules, train), 3))[-1].state
    for k in range(len(runs)):
        alone = list(simulate(world.only([k]), first_state([modules[k]], train), 3))[-1].state
        torch.testing.assert_close(together.weights[k], alone.weights[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("num_sampled", [1, 6])
def test_on_a_cpu_a_run_alone_and_among_others_is_the_same_to_the_last_bit(num_sampled: int):
    rules = ["gas(median, num_groups=5)", "multi-krum", "rfa", "bulyan", "centered-clipping"]
    pairs = [(rule, attack) for rule in rules for attack in ("lie", "min-max", "ipm", "lie")]
    runs = [replace(run, num_sampled=num_sampled) for run in make_runs(pairs)]
    train, test = pictures(120, torch.float32), pictures(40, torch.float32)
    modules = networks(runs, "small-cnn", torch.float32)
    world = make_run_stack(modules[0], train, test, runs, training=TRAINING, num_classes=4)
    together = list(simulate(world, first_state(modules, train), 2))
    for k in range(len(runs)):
        alone = list(simulate(world.only([k]), first_state([modules[k]], train), 2))
        assert torch.equal(together[-1].state.weights[k], alone[-1].state.weights[0])
        for step, own in zip(together, alone, strict=True):
            assert step.records[k] == own.records[0]


def test_batch_normalisation_is_trained_the_same_both_ways():
    module = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4)
    ).double()
    runs = make_runs([("gas(median, num_groups=5)", "lie"), ("median", "bit-flip")])
    train, test = pictures(120), pictures(40)
    world = make_run_stack(module, train, test, runs, training=TRAINING, num_classes=4)
    start = first_state([module, module], train)
    one = list(simulate(world, start, 3))[-1].state
    world = replace(world, trainer=StackedTrainer(module, train))
    other = list(simulate(world, start, 3))[-1].state
    torch.testing.assert_close(one.weights, other.weights, rtol=0, atol=1e-9)
    torch.testing.assert_close(one.buffers, other.buffers, rtol=0, atol=1e-9)
    assert bool(one.buffers[:, -1].gt(0).all()), "the counter of batches counts"


@pytest.mark.parametrize("attack", ["none", "lie", "bit-flip"])
def test_rules_can_be_given_the_whole_state(attack: str):
    module = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4)
    ).double()
    runs = make_runs([("mean", attack)])
    train, test = pictures(120), pictures(40)
    named = {"training": TRAINING, "num_classes": 4}
    world = make_run_stack(module, train, test, runs, **named, aggregate="state")
    start = first_state([module], train)
    (step,) = simulate(world, start, 1)
    state = step.state
    assert bool((state.buffers[0, 4:8] >= 0).all()), "variances"
    assert bool(state.buffers[0, 8] == state.buffers[0, 8].round()), "the counter"
    if attack == "none":
        (other,) = simulate(make_run_stack(module, train, test, runs, **named), start, 1)
        torch.testing.assert_close(state.weights, other.state.weights)
        torch.testing.assert_close(state.buffers[:, :8], other.state.buffers[:, :8])


def test_pictures_can_be_moved_and_both_ways_move_them_alike():
    training = replace(TRAINING, augment=True)
    runs = make_runs([("mean", "none")])
    train, test = pictures(120), pictures(40)
    modules = networks(runs)
    plain = make_run_stack(modules[0], train, test, runs, training=TRAINING, num_classes=4)
    world = make_run_stack(modules[0], train, test, runs, training=training, num_classes=4)
    start = first_state(modules, train)
    without = list(simulate(plain, start, 1))[-1].state
    one = list(simulate(world, start, 1))[-1].state
    world = replace(world, trainer=StackedTrainer(modules[0], train))
    other = list(simulate(world, start, 1))[-1].state
    torch.testing.assert_close(one.weights, other.weights, rtol=0, atol=1e-9)
    assert not torch.allclose(one.weights, without.weights)


@pytest.mark.parametrize("attack", ["lie", "ipm"])
@pytest.mark.parametrize("rule", ["centered-clipping", "foolsgold", "fltrust", "signguard"])
def test_rules_with_memory_or_a_reference_can_be_played(rule: str, attack: str):
    runs = [replace(run, root=torch.arange(20)) for run in make_runs([(rule, attack)] * 2)]
    train, test = pictures(120), pictures(40)
    modules = networks(runs)
    world = make_run_stack(modules[0], train, test, runs, training=TRAINING, num_classes=4)
    state = list(simulate(world, first_state(modules, train), 3))[-1].state
    assert bool(state.weights.isfinite().all())
    if ov.make_rule(rule).traits.has_state:
        assert all(memory is not None for memory in state.rule_memory)


def test_liars_train_only_if_their_attack_asks_what_they_would_have_sent():
    runs = make_runs([("median", "lie"), ("median", "bit-flip")])
    train, test = pictures(120), pictures(40)
    modules = networks(runs)
    world = make_run_stack(modules[0], train, test, runs, training=TRAINING, num_classes=4)
    state = first_state(modules, train)
    chosen = next(c for c in map(partial(sample_participants, world), range(1, 99)) if _is_mixed(c))
    learnt = train_clients(world, state, chosen).gradients.view(2, 6, -1)
    is_idle = learnt.abs().sum(dim=-1) == 0
    assert torch.equal(is_idle[0], chosen.is_byzantine[0])
    assert not bool(is_idle[1].any())


def _is_mixed(chosen) -> bool:
    return bool((chosen.is_byzantine.any(dim=1) & ~chosen.is_byzantine.all(dim=1)).all())


def test_a_rule_without_scores_is_scored_by_the_distance_to_its_update():
    runs = make_runs([("mean", "none"), ("median", "nan"), ("gas(median, num_groups=5)", "lie")])
    train, test = pictures(120), pictures(40)
    modules = networks(runs)
    world = make_run_stack(modules[0], train, test, runs, training=TRAINING, num_classes=4)
    step = next(iter(simulate(world, first_state(modules, train), 1)))
    for record in step.records:
        for client, score in zip(record.clients, record.scores, strict=True):
            assert np.isfinite(score) == (client not in record.rejected)
            assert score > 0


def test_a_run_that_diverges_ends_and_the_others_go_on():
    runs = make_runs([("mean", "none"), ("median", "lie")])
    train, test = pictures(120, torch.float32), pictures(40, torch.float32)
    modules = networks(runs, dtype=torch.float32)
    with torch.no_grad():
        next(modules[0].parameters()).fill_(torch.inf)
    world = make_run_stack(modules[0], train, test, runs, training=TRAINING, num_classes=4)
    steps = list(simulate(world, first_state(modules, train), 3))
    assert steps[0].over == [0]
    assert [step.numbers for step in steps] == [[0, 1], [1], [1]]


def test_the_learning_rate_follows_its_schedule():
    training = Training(learning_rate=0.1, schedule=((5, 0.01), (9, 0.001)))
    assert [training.learning_rate_at(k) for k in (1, 4, 5, 8, 9, 99)] == [
        0.1,
        0.1,
        0.01,
        0.01,
        0.001,
        0.001,
    ]


def test_who_lies_is_drawn_once_and_is_a_fraction_rounded_up():
    federation = make_federation([[k] for k in range(11)], fraction=0.2, seed=3)
    assert federation.num_byzantine == 3
    again = make_federation([[k] for k in range(11)], fraction=0.2, seed=3)
    assert federation.is_byzantine == again.is_byzantine
    assert count_sampled(3597, ratio=0.005, number=None) == 18


def test_what_cannot_be_played_is_told_in_one_line():
    with pytest.raises(ValueError, match="client 1 of 2 owns none"):
        make_federation([[0], []])
    with pytest.raises(ValueError, match="from 0 to the 2 clients"):
        make_federation([[0], [1]], num_byzantine=3)
    with pytest.raises(ValueError, match="from 1 to 5 clients can be sampled"):
        count_sampled(5, ratio=None, number=0)
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        Training(batch_size=0)
    with pytest.raises(ValueError, match="learning_rate must be finite"):
        Training(learning_rate=float("nan"))
    with pytest.raises(ValueError, match="each of the 1 clients"):
        Federation(parts=(torch.tensor([0]),), is_byzantine=())
