"""Selection by score: suspicious clients are sampled less often, and nobody is excluded."""

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import permutations

import pytest
import torch

import outvote as ov
from federations import TRAINING, make_runs, networks, samples
from outvote.engine.federation import sample_clients
from outvote.engine.simulation import FittingRounds, first_state, make_run_stack, simulate
from outvote.experiment.run_spec import checked, to_toml
from outvote.results.checkpoint import read_checkpoint
from outvote.seeding import RandomStream
from outvote.server.selection import ByScore, Uniform, evidence, make_selection
from simulations import results, tiny

INF = float("inf")


def chance_of(weights, number):
    """The chance of each row to be among the first `number`, drawn one after the other."""
    chances = [0.0] * len(weights)
    for order in permutations(range(len(weights)), number):
        left, share = sum(weights), 1.0
        for row in order:
            share *= weights[row] / left
            left -= weights[row]
        for row in order:
            chances[row] += share
    return chances


def sampled(weights, number, num_rounds, seed=0):
    """How often each client is sampled, as the engine samples."""
    stream = RandomStream((seed,))
    counts = Counter()
    for k in range(num_rounds):
        counts.update(sample_clients(len(weights), number, stream, k, weights))
    return [counts[client] / num_rounds for client in range(len(weights))]


@pytest.mark.parametrize("number", [1, 3, 5])
def test_clients_are_drawn_by_their_weights_without_replacement(number):
    weights = [1.0, 0.2, 0.9, 0.5, 0.2, 1.0]
    found, num_rounds = sampled(weights, number, 4000), 4000
    for share, expected in zip(found, chance_of(weights, number), strict=True):
        assert abs(share - expected) < 4.5 * (expected * (1 - expected) / num_rounds) ** 0.5
    assert sum(found) == pytest.approx(number)


@pytest.mark.parametrize("floor", [0.05, 0.2, 0.7])
@pytest.mark.parametrize("number", [1, 2, 4])
def test_no_client_has_less_than_its_share_of_the_uniform_chance(floor, number):
    by_score, clients = ByScore(floor=floor, memory=0.0), range(6)
    # The worst case is one suspicious client among others that are not.
    for suspicions in ({0: 1.0}, {0: 1.0, 3: 0.4}, {k: k / 5 for k in clients}, {}):
        chances = chance_of(by_score.weights(suspicions, clients), number)
        assert min(chances) >= floor * number / 6 - 1e-12
    worst = chance_of(by_score.weights({0: 1.0}, clients), number)[0]
    assert worst < number / 6


def test_equal_weights_give_the_clients_of_a_uniform_choice():
    stream = RandomStream((3,))
    for k in range(50):
        uniform = sample_clients(20, 7, stream, k)
        assert sample_clients(20, 7, stream, k, [0.5] * 20) == uniform


def test_only_scores_far_above_the_median_of_their_round_count():
    scores = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 16.0, 20.0, 90.0)
    found = evidence(scores)
    assert found[:7] == [0.0] * 7
    assert 0 < found[7] < found[8] < found[9] == 1.0
    # The scale is that of the round, and no score below the median counts.
    assert evidence([1e9 * each for each in scores]) == pytest.approx(found)
    assert not any(evidence([-each for each in scores]))
    assert evidence([1.0, 2.0, 3.0, INF, float("nan")])[3:] == [1.0, 1.0]


def test_without_a_scale_there_is_no_evidence_and_suspicions_stay():
    assert evidence([1.0, 9.0]) == [None, None]
    assert evidence([2.0, 2.0, 2.0, 2.0, 9.0]) == [None] * 5
    assert evidence([INF, 1.0]) == [1.0, None]
    before = {4: 0.5, 7: 0.25}
    assert ByScore().updated(before, {4: 1.0, 5: 9.0}) == before


def test_who_was_not_sampled_keeps_its_suspicion_and_others_forget():
    by_score = ByScore(memory=0.5)
    scores = {0: 1.0, 1: 2.0, 2: 3.0, 3: 99.0}
    first = by_score.updated({9: 0.75}, scores)
    assert first == {9: 0.75, 0: 0.0, 1: 0.0, 2: 0.0, 3: 0.5}
    second = by_score.updated(first, {0: 99.0, 3: 1.0, 5: 2.0, 6: 3.0})
    assert (second[9], second[0], second[3]) == (0.75, 0.5, 0.25)
    assert Uniform().updated({}, scores) == {}


@pytest.mark.parametrize("text", ["uniform", "by-score", "by-score(floor=0.5, memory=0.9)"])
def test_text_and_object_are_the_same(text):
    selection = make_selection(text)
    assert str(selection) == text
    assert make_selection(selection) is selection


def test_defaults_are_left_out_and_earlier_runs_keep_their_names():
    spec = checked(tiny("federation.selection='by-score(memory=0.8, floor=0.2)'").specs[0])
    assert spec.federation.selection == "by-score"
    assert 'selection = "by-score"' in to_toml(spec, "tiny")
    uniform = tiny().specs[0]
    assert "selection" not in to_toml(uniform, "tiny")
    assert spec.hash != uniform.hash == tiny("federation.selection=uniform").specs[0].hash
    with pytest.raises(TypeError, match="selection is given as text or as an object, got int"):
        ov.simulate("mlp", "fashion-mnist-small", selection=3)


def stack_of(selections, pairs, num_sampled=4, dtype=torch.float32):
    runs = [
        replace(run, selection=make_selection(each), num_sampled=num_sampled)
        for run, each in zip(make_runs(pairs), selections, strict=True)
    ]
    train, test = samples(120, dtype), samples(40, dtype)
    modules = networks(runs, dtype=dtype)
    stack = make_run_stack(modules[0], train, test, runs, training=TRAINING, num_classes=4)
    return stack, modules, train


PAIRS = [("multi-krum", "gaussian"), ("multi-krum", "gaussian"), ("gas(median)", "lie")]
SELECTIONS = ["by-score(memory=0.1)", "uniform", "by-score(memory=0.5)"]


def test_a_run_does_not_depend_on_how_its_neighbours_sample():
    stack, modules, train = stack_of(SELECTIONS, PAIRS)
    together = list(simulate(stack, first_state(modules, train), 6))
    for k in range(3):
        alone = list(simulate(stack.only([k]), first_state([modules[k]], train), 6))
        assert torch.equal(together[-1].state.weights[k], alone[-1].state.weights[0])
        for step, own in zip(together, alone, strict=True):
            assert step.records[k] == own.records[0]
            assert step.state.selection_states[k] == own.state.selection_states[0]
    assert [bool(each) for each in together[-1].state.selection_states] == [True, False, True]


def test_runs_that_are_split_for_memory_keep_their_own_suspicions():
    stack, modules, train = stack_of(SELECTIONS, PAIRS)
    state, rounds = first_state(modules, train), FittingRounds()
    rounds.most = 1
    for _ in range(3):
        state, _ = rounds.run(stack, state)
    whole = list(simulate(stack, first_state(modules, train), 3))[-1].state
    assert state.selection_states == whole.selection_states
    assert torch.equal(state.weights, whole.weights)


def test_attackers_that_the_rule_scores_high_are_sampled_less_and_not_excluded():
    stack, modules, train = stack_of(
        ["uniform", "by-score"], [("multi-krum", "gaussian")] * 2, num_sampled=5
    )
    first = stack.runs[0]
    runs = [replace(run, federation=first.federation, seed=first.seed) for run in stack.runs]
    stack = replace(stack, runs=tuple(runs))
    steps = list(simulate(stack, first_state([modules[0]] * 2, train), 60, evaluate_every=60))
    uniform, by_score = ([len(step.records[k].byzantine) / 5 for step in steps] for k in range(2))
    assert steps[0].records[0].clients == steps[0].records[1].clients
    assert sum(by_score) < 0.6 * sum(uniform)
    # Two of eight are Byzantine; at the floor of 0.2 each is in at least every eighth round.
    assert sum(each > 0 for each in by_score[20:]) >= 3
    suspicions = steps[-1].state.selection_states[1]
    is_byzantine = first.federation.is_byzantine
    worst_honest = max(suspicions[k] for k in range(8) if not is_byzantine[k])
    assert min(suspicions[k] for k in range(8) if is_byzantine[k]) > max(0.8, worst_honest)


RUN = """
import os
import outvote as ov
def run(output, callbacks=()):
    ov.simulate("mlp", "fashion-mnist-small", num_clients=10, num_sampled=4, rules="multi-krum",
                attacks="gaussian", rounds=9, local=ov.LocalSGD(num_steps=2), device="cpu",
                selection="by-score(memory=0.5)", output=output, checkpoint_every=0,
                callbacks=callbacks, progress=False)
"""
KILL = "run({!r}, lambda report: os._exit(9) if report.round == 5 else None)"


@pytest.mark.slow  # test_runner.py stops and resumes a run with this state, among others.
def test_a_run_that_was_killed_goes_on_to_the_last_bit(tmp_path):
    script = RUN + KILL.format(str(tmp_path / "parts"))
    killed = subprocess.run([sys.executable, "-c", script], check=False, env=os.environ)
    assert killed.returncode == 9
    (path,) = tmp_path.glob("parts/*/*/checkpoint.safetensors")
    state = read_checkpoint(path)
    assert state.round == 4
    kept = dict(state.notes["selection_state"]["pairs"])
    assert any(each["value"] > 0 for each in kept.values())
    names = {}
    exec(RUN, names)
    for folder in ("parts", "whole"):
        names["run"](tmp_path / folder)
    assert results(tmp_path / "parts") == results(tmp_path / "whole") != {}
