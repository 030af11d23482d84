"""The convergence analysis, measured: its constants, its bounds on real rounds, and its limits."""

from dataclasses import asdict, replace
from itertools import pairwise
from math import sqrt

import msgspec
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import outvote as ov
from federations import networks, samples
from outvote.engine.federation import make_federation
from outvote.engine.local_updates import batches_of
from outvote.engine.run_stack import Run
from outvote.engine.simulation import first_state, make_run_stack, simulate
from outvote.experiment.builder import RunBuilder
from outvote.experiment.plan import make_plan
from outvote.metrics.passes import ClientPass, LocalPass, measure_theory
from outvote.metrics.theory import (
    GASBound,
    descent_bound,
    lemma1_factor,
    squared_pair_distance,
    squared_rule_bound,
)
from outvote.results.collect import collect
from outvote.results.export import read_export, to_export
from outvote.results.round import Theory
from outvote.results.series import THEORY
from outvote.seeding import RandomStream
from outvote.training.local_sgd import LocalSGD
from simulations import execute, tiny

SETS = (samples(132), samples(40))
PLAIN = LocalSGD(
    num_steps=1, batch_size=4, learning_rate=0.1, momentum=0.0, weight_decay=0.0, max_norm=None
)
RULES = ["gas(multi-krum, num_groups=9)", "gas(bulyan, num_groups=40)", "gas(median)"]
ATTACKS = ["lie", "ipm", "label-flip", "min-max", "bit-flip"]


def theory_runs(pairs, num_clients=11):
    """Runs of clients that differ: the samples are sorted by label, then mixed a little."""
    runs = []
    for k, (rule, attack) in enumerate(pairs):
        random = np.random.default_rng(k)
        order = np.argsort(SETS[0].labels.numpy() + random.uniform(0, 2, 132))
        runs.append(
            Run(
                federation=make_federation(
                    np.array_split(order, num_clients), num_byzantine=2, seed=k
                ),
                attack=ov.make_attack(attack),
                rule=ov.make_rule(rule),
                seed=k,
                num_sampled=num_clients,
            )
        )
    return runs


def rounds_of(runs, num_rounds, **how):
    modules = networks(runs)
    stack = make_run_stack(modules[0], *SETS, runs, training=PLAIN, num_classes=4, **how)
    return list(simulate(stack, first_state(modules, SETS[0]), num_rounds))


def loss_and_gradient(module, weights, parts):
    """The mean over clients of the loss on all their samples, and its gradient."""
    nn.utils.vector_to_parameters(weights, module.parameters())
    module.zero_grad()
    losses = [
        F.cross_entropy(module(SETS[0].batch(part).movedim(-1, 1)), SETS[0].labels[part])
        for part in parts
    ]
    loss = sum(losses) / len(losses)
    loss.backward()
    gradient = torch.cat([each.grad.flatten() for each in module.parameters()])
    return loss.item(), gradient.clone()


def test_a_round_is_measured_as_plain_loops_do():
    (run,) = runs = theory_runs([("gas(median, num_groups=30)", "lie")])
    module = networks(runs)[0]
    honest = [
        part
        for part, bad in zip(run.federation.parts, run.federation.is_byzantine, strict=True)
        if not bad
    ]
    steps = rounds_of(runs, 3, has_theory=True)
    for before, after in pairwise(steps):
        found = after.records[0].theory
        first, second = before.state.weights[0], after.state.weights[0]
        loss, gradient = loss_and_gradient(module, first, honest)
        later, changed = loss_and_gradient(module, second, honest)
        away = float(((first - second) / 0.1 - gradient).norm())
        secant = float((gradient - changed).norm() / (first - second).norm())
        assert found.full_loss == pytest.approx(loss)
        assert found.gradient_norm == pytest.approx(float(gradient.norm()))
        assert found.gradient_deviation == pytest.approx(away)
        assert found.lipschitz == pytest.approx(secant)
        assert found.descent == pytest.approx(loss - later)
        right = (0.05 - secant * 0.0025) * float(gradient.norm()) ** 2
        right -= (0.2 - secant * 0.005) * away**2
        assert found.descent_bound == pytest.approx(right)


@pytest.fixture(scope="module")
def fifty():
    """Fifty small runs, of rules in GAS and alone."""
    rules = [*RULES, "multi-krum", "bulyan"]
    pairs = [(rule, attack) for rule in rules for attack in ATTACKS] * 2
    steps = rounds_of(theory_runs(pairs), 3, has_theory=True)
    return pairs, [[step.records[k] for step in steps] for k in range(len(pairs))]


def of_any_attack(rule, record):
    """The bound that needs nothing of groups and attacks, of a round; without GAS the only one."""
    if not rule.startswith("gas"):
        return record.theory.deviation_bound
    module = networks(theory_runs([(rule, "none")]))[0]
    dim = sum(each.numel() for each in module.parameters())
    found = GASBound(
        num_clients=len(record.clients),
        num_byzantine=len(record.byzantine),
        num_groups=min(ov.make_rule(rule).num_groups, dim),
        resilience=record.diagnostics.resilience,
        kappa=record.diagnostics.kappa,
        sigma=record.diagnostics.sigma,
    )
    return sqrt(found.squared_deviation_of_any_attack)


def test_the_assumptions_hold_for_the_batches_of_a_client():
    """Over all seeds a batch's gradient is that of the client, and as noisy as measured."""
    (run,) = runs = theory_runs([("median", "none")])
    module = networks(runs)[0]
    weights = nn.utils.parameters_to_vector(module.parameters()).detach().clone()
    part = next(iter(run.federation.parts))
    _, whole = loss_and_gradient(module, weights, [part])
    stack = make_run_stack(module, *SETS, runs, training=PLAIN, num_classes=4)
    index = [batches_of(stack, part, RandomStream((seed,)), PLAIN).index[0] for seed in range(300)]
    drawn = torch.stack([loss_and_gradient(module, weights, [some])[1] for some in index])
    sums = LocalPass(whole)
    random = np.random.default_rng(0)
    for _ in range(60):  # A round has one such pass.
        for some in part[torch.from_numpy(random.permutation(len(part)))].split(4):
            sums.add(loss_and_gradient(module, weights, [some])[1], len(some))
    noise = float((drawn - whole).square().sum(dim=1).mean().sqrt())
    assert float((drawn.mean(dim=0) - whole).norm()) < 4 * noise / sqrt(300)
    assert noise == pytest.approx(sums.noise, rel=0.1)


def test_the_deviation_of_fifty_runs_stays_below_the_bound_with_all_constants(
    fifty, record_testsuite_property
):
    ratios = {}
    for (rule, _), records in zip(*fifty, strict=True):
        found = [record.theory for record in records]
        for record, each in zip(records, found, strict=True):
            # All take part, the server assumes the true number, no gradient is rejected.
            counts = (len(record.clients), len(record.byzantine), record.num_byzantine_used)
            assert (*counts, record.rejected) == (11, 2, 2, ())
            assert each.gradient_deviation <= each.deviation_bound
            assert each.gradient_deviation <= of_any_attack(rule, record)
        # The bounds are of the mean square.
        squares = np.mean([each.gradient_deviation**2 for each in found])
        bound = np.mean([each.deviation_bound**2 for each in found])
        ratios.setdefault(rule, []).append(sqrt(bound / squares))
    assert sum(map(len, ratios.values())) == 50
    for rule, found in ratios.items():
        record_testsuite_property(rule, f"bound / deviation: {min(found):.0f} to {max(found):.0f}")
        # How loose it is: docs/concepts/theory.md has the ratios of longer runs.
        assert 20 < min(found) < max(found) < 5000, f"{rule}: {min(found)} to {max(found)}"


def test_the_convergence_inequality_holds_in_fifty_runs(fifty):
    for _, records in zip(*fifty, strict=True):
        found = [record.theory for record in records]
        assert all(0.1 * each.lipschitz < 4 / 3 for each in found), "the step is too long"
        assert all(each.descent >= each.descent_bound for each in found)
        assert found[0].full_loss >= sum(each.descent_bound for each in found)


def test_rounds_are_the_same_to_the_last_bit_with_and_without():
    runs = theory_runs([(RULES[0], "lie"), ("median", "bit-flip")])
    with_, without = rounds_of(runs, 2, has_theory=True), rounds_of(runs, 2)
    for one, other in zip(with_, without, strict=True):
        assert torch.equal(one.state.weights, other.state.weights)
        for ours, theirs in zip(one.records, other.records, strict=True):
            assert (theirs.theory, theirs.diagnostics) == (None, None)
            assert replace(ours, theory=None, diagnostics=None) == theirs


def test_the_unit_is_that_of_a_gradient():
    """Half the learning rate halves the update, not what is measured."""
    runs = theory_runs([(RULES[0], "none")])
    modules = networks(runs)
    found = []
    for rate in (0.1, 0.05):
        training = replace(PLAIN, learning_rate=rate)
        stack = make_run_stack(
            modules[0], *SETS, runs, training=training, num_classes=4, has_theory=True
        )
        (step,) = simulate(stack, first_state(modules, SETS[0]), 1)
        found.append(step.records[0])
    whole, half = found
    assert half.deviation == pytest.approx(whole.deviation / 2)
    for name in ("gradient_norm", "gradient_deviation", "deviation_bound", "printed_bound"):
        assert getattr(half.theory, name) == pytest.approx(getattr(whole.theory, name))


@pytest.mark.parametrize("text", ["gas(rfa)", "mean"])
def test_without_a_constant_there_is_no_bound_but_everything_else(text):
    (step,) = rounds_of(theory_runs([(text, "lie")]), 1, has_theory=True)
    found = asdict(step.records[0].theory)
    unknown = [name for name, value in found.items() if value is None]
    assert unknown == ["deviation_bound", "printed_bound"]


def test_a_round_without_honest_clients_or_movement_has_nothing_to_measure():
    assert measure_theory([], [], torch.zeros(3), 0.1) == Theory()
    still = [ClientPass(torch.ones(3, dtype=torch.float64), 0.0, 1.5)]
    found = measure_theory(still, still, torch.zeros(3, dtype=torch.float64), 0.1)
    assert found.lipschitz is None
    assert found.descent_bound is None
    assert found.gradient_deviation == pytest.approx(sqrt(3))


BOUND = GASBound(
    num_clients=10, num_byzantine=2, num_groups=16, resilience=0.5, kappa=2.0, sigma=3.0
)


def test_the_constants_are_those_of_the_lemmas():
    c2 = lemma1_factor(8, 0.5)
    assert c2 == pytest.approx(4 * 0.25 * 49 / 8)
    rho2 = squared_pair_distance(2.0, 3.0)
    assert rho2 == 2 * 9 + 4 * 4
    c, rho = sqrt(c2), sqrt(rho2)
    assert BOUND.honest_mean == pytest.approx(16 * ((1 + 1 / sqrt(8)) * 3 + 2 + c * rho))
    assert BOUND.honest_variance == pytest.approx(
        16 * ((4 + 8 * c2 + 4 / 8) * 9 + (4 + 16 * c2) * 4)
    )
    assert BOUND.byzantine_loss == pytest.approx(16 * (c * rho + 3 / sqrt(8)))
    assert BOUND.byzantine_variance == pytest.approx(16 * (2 * 9 + 12 * c2 * rho2 + 6 * 9 / 8))
    chance = sqrt(9 / 0.25) * (sqrt(BOUND.honest_variance) + sqrt(BOUND.byzantine_variance))
    radius = (BOUND.honest_mean + BOUND.byzantine_loss + chance) / 16
    assert BOUND.filter_radius(0.25) == pytest.approx(radius)
    assert BOUND.vector_radius(0.25) == pytest.approx(4 * radius)
    assert replace(BOUND, byzantine_sigma=3.0).filter_radius() == BOUND.filter_radius()
    assert replace(BOUND, byzantine_sigma=9.0).filter_radius() > BOUND.filter_radius()


def test_the_bounds_are_the_formulas():
    honest = sqrt(8) * (1 + sqrt(2)) * 3 + 2 * 2
    expected = 2 / 64 * (honest**2 + 4 * BOUND.vector_radius() ** 2)
    assert BOUND.squared_deviation == pytest.approx(expected)
    printed = 36 / 64 * (9 / 6 + 4) + 4 / 64 * BOUND.printed_radius() ** 2
    assert BOUND.squared_printed_deviation == pytest.approx(printed)
    nobody = replace(BOUND, num_byzantine=0)
    assert nobody.squared_deviation == pytest.approx(2 * 9 / 10)
    assert nobody.squared_deviation_of_any_attack == pytest.approx(9 / 10)
    radius = 4 * (sqrt(8) * 3 + 2 + 2 * BOUND.rule_error + 2 * 3 / sqrt(8))
    assert BOUND.kept_radius == pytest.approx(radius)
    anything = BOUND.squared_deviation_of_any_attack
    assert anything == pytest.approx(((honest + 2 * radius) / 8) ** 2)
    c2, rho2 = BOUND.lemma1_factor, squared_pair_distance(2.0, 3.0)
    alone = squared_rule_bound(10, 2, 0.5, kappa=2.0, sigma=3.0)
    assert alone == pytest.approx(2 * c2 * rho2 + 2 * 9 / 8)


def test_the_printed_radius_has_the_printed_constants():
    c2, m, p = BOUND.lemma1_factor, 8, 16
    first = (4 + 16 * c2 + 4 / m) * 9 + (4 + 8 * c2) * 4
    second = 2 * 9 + (96 + 6 / m) * 9 + 96 * 4
    expected = (1 + 1 / sqrt(m)) * 3 + 2 + 2 * sqrt(c2 * 34)
    expected += sqrt((m + 1) / (p * 0.5)) * (sqrt(first) + sqrt(second))
    assert BOUND.printed_radius(0.5) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"num_clients": 0}, "num_clients must be at least 1, got 0"),
        ({"num_byzantine": -1}, "num_byzantine must be at least 0, got -1"),
        ({"num_byzantine": 5}, "num_byzantine must be below half of the 10 clients, got 5"),
        ({"num_groups": 0}, "num_groups must be at least 1, got 0"),
        ({"resilience": -0.5}, "resilience must be a finite number of at least 0"),
        ({"kappa": float("nan")}, "kappa must be a finite number of at least 0"),
        ({"byzantine_sigma": -1.0}, "byzantine_sigma must be a finite number of at least 0"),
    ],
)
def test_a_bound_of_numbers_that_make_no_sense_is_refused(given, named):
    with pytest.raises(ValueError, match=named):
        replace(BOUND, **given)


@pytest.mark.parametrize("kappa", [0.0, 0.2, 10.0])
def test_honest_clients_that_are_kept_for_their_noise_stay_below_their_term(kappa):
    """Two honest clients at -kappa and kappa, noise -1 or 1: kept are one or both, the worst."""
    rows = [(kappa + a, -kappa + b) for a in (-1, 1) for b in (-1, 1)]
    squares = [max(one**2, two**2, (one + two) ** 2) for one, two in rows]
    bound = GASBound(
        num_clients=3, num_byzantine=1, num_groups=1, resilience=0.0, kappa=kappa, sigma=1.0
    )
    of_byzantine = 2 / 4 * bound.vector_radius() ** 2
    assert bound.squared_deviation - of_byzantine >= 2 / 4 * np.mean(squares)


def test_a_client_that_knows_the_batches_stays_within_the_kept_radius():
    """It sends what is farthest out and still kept: the distance is not fixed, it is the noise's.

    Groups are copies of each other, as correlated as can be.
    """
    random = np.random.default_rng(2)
    n, num_groups = 5, 64
    rule = ov.GAS(ov.Median(), num_groups=num_groups, split="contiguous")
    kept, deviations = [], []
    for _ in range(60):
        noise = random.standard_t(3, size=n) / sqrt(3 * num_groups)
        far = np.abs(noise[1:]).max()
        for size in np.linspace(3, 0, 31):
            noise[0] = size * far
            rows = np.repeat(noise[:, None], num_groups, axis=1)
            verdict = rule.inspect(rows, num_byzantine=1)
            if 0 in verdict.kept:
                break
        kept.append(np.square(rows[0]).sum() if 0 in verdict.kept else 0.0)
        deviations.append(np.square(verdict.update).sum())
    assert np.count_nonzero(kept) > 50
    constant = ov.resilience("median", n, 1, 1).constant
    bound = GASBound(
        num_clients=n,
        num_byzantine=1,
        num_groups=num_groups,
        resilience=constant,
        kappa=0.0,
        sigma=1.0,
    )
    assert 0 < np.mean(kept) <= bound.kept_radius**2
    assert np.mean(deviations) <= bound.squared_deviation_of_any_attack


def test_the_bound_of_any_attack_is_no_looser_where_groups_are_few():
    for num_groups in (1, 16, 100):
        bound = replace(BOUND, num_groups=num_groups)
        assert bound.squared_deviation_of_any_attack < bound.squared_deviation


def test_the_factors_of_the_proposition_are_those_of_its_learning_rate():
    steep = 3.0
    found = descent_bound(1 / (2 * steep), steep, gradient_norm=2.0, deviation=0.5)
    assert found == pytest.approx(3 / (16 * steep) * 4 - 7 / (8 * steep) * 0.25)


def test_one_group_can_hide_a_deviation_beyond_the_printed_bound():
    """The printed radius is of a group, the deviation that of the vector: sqrt(p) between them."""
    dim, n, f = 4000, 10, 2
    random = np.random.default_rng(0)
    rule = ov.GAS(ov.Median(), num_groups=dim)
    constant = ov.resilience("median", n, f, 1).constant
    squares = []
    for trial in range(5):
        # Expected gradient 0, sigma = 1, kappa = 0; Byzantine clients know that, and nothing else.
        rows = random.normal(size=(n, dim)) / sqrt(dim)
        rows[:f] = 0
        rows[:f, 0] = 0.4 * sqrt(dim)
        verdict = rule.inspect(rows, num_byzantine=f, seed=trial)
        assert {0, 1} <= set(verdict.kept)
        squares.append(float(np.square(verdict.update).sum()))
    bound = GASBound(
        num_clients=n,
        num_byzantine=f,
        num_groups=dim,
        resilience=constant,
        kappa=0.0,
        sigma=1.0,
        byzantine_sigma=0.0,
    )
    deviation = sqrt(np.mean(squares))
    assert deviation > 1.5 * sqrt(bound.squared_printed_deviation)
    assert deviation < sqrt(bound.squared_deviation)


def test_lemma_1_holds_for_random_gradients_and_is_loose():
    random = np.random.default_rng(1)
    n, f, dim, spread = 10, 2, 20, 1.0
    errors = []
    for _ in range(50):
        rows = random.normal(size=(n, dim)) * spread / sqrt(dim)
        rows[:f] += 3.0
        update = ov.MultiKrum()(rows, num_byzantine=f)
        errors.append(np.square(update - rows[f:].mean(axis=0)).sum())
    constant = ov.resilience("multi-krum", n, f, dim).constant
    bound = lemma1_factor(n - f, constant) * squared_pair_distance(0.0, spread)
    assert np.mean(errors) <= bound


def test_the_preset_is_one_plain_step_of_all_clients():
    (spec,) = make_plan({"preset": "theory"}).specs
    assert spec.theory
    training = spec.training
    assert (training.num_steps, training.momentum, training.weight_decay) == (1, 0.0, 0.0)
    assert training.max_norm is None
    assert spec.federation.num_sampled(10) == 10
    assert make_plan({"preset": "theory"}, ["federation.sampled=10"]).specs


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("training.num_steps=2", "training.num_steps = 1, got 2"),
        ("training.momentum=0.5", "training.momentum = 0.0, got 0.5"),
        ("training.max_norm=2.0", 'training.max_norm = "none", got 2.0'),
        ("federation.sampled=5", "federation.sampled = 1.0, got 5"),
        ("server.momentum=0.5", "server"),
        ("aggregate=state", 'aggregate = "parameters", got "state"'),
    ],
)
def test_settings_outside_the_analysis_are_refused(setting, named):
    with pytest.raises(ValueError, match="theory = true is for") as caught:
        make_plan({"preset": "theory"}, [setting])
    assert named in str(caught.value)


@pytest.mark.parametrize("name", ["squeezenet", "resnet18"])
def test_networks_with_batch_normalisation_are_refused(name):
    settings = [f"model.name={name}", "data.name=fashion-mnist-small"]
    (spec,) = make_plan({"preset": "theory"}, settings).specs
    builder = RunBuilder(torch.device("cpu"))
    with pytest.raises(
        ValueError, match=f"theory = true is for .* got {name} with batch"
    ) as caught:
        builder.check([spec])
    assert "\n" not in str(caught.value)
    builder.check([msgspec.structs.replace(spec, theory=False)])


def test_a_network_whose_loss_is_a_random_draw_is_refused():
    """With dropout, L(w) and its gradient would be measured with other masks than the update's."""
    random = np.random.default_rng(0)
    given = (random.normal(size=(40, 5)).astype(np.float32), random.integers(0, 3, 40))
    how = {"num_clients": 5, "rounds": 1, "local": PLAIN, "progress": False, "device": "cpu"}
    layers = (nn.Linear(5, 6), nn.Dropout(0.3), nn.Linear(6, 3))
    with pytest.raises(ValueError, match=r"theory = true is for .* draws random numbers"):
        ov.simulate(nn.Sequential(*layers), given, given, theory=True, **how)
    plain = nn.Sequential(layers[0], nn.Dropout(0.0), layers[2])
    assert len(ov.simulate(plain, given, given, theory=True, **how)) == 1


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("theory")
    plan = tiny(
        "rounds=3",
        "federation.sampled=1.0",
        "training.max_norm=none",
        rule=["gas(multi-krum, num_groups=20)", "mean"],
        theory=True,
        training={"num_steps": 1, "momentum": 0.0, "weight_decay": 0.0},
    )
    execute(plan, folder / "with")
    execute(tiny("rounds=1"), folder / "without")
    return folder


def test_the_theory_is_written_read_and_exported(store, tmp_path):
    with_, without = collect([store / "with"]), collect([store / "without"])
    gas = next(each for each in with_ if each.rule.startswith("gas"))
    assert all(np.isfinite(getattr(gas.series, name)).all() for name in (*THEORY, "kappa"))
    assert (gas.series.gradient_deviation < gas.series.deviation_bound).all()
    np.testing.assert_allclose(
        gas.series.full_loss[:-1] - gas.series.descent[:-1], gas.series.full_loss[1:], rtol=1e-4
    )
    assert all(np.isnan(getattr(without[0].series, name)).all() for name in THEORY)
    assert b"theory" not in (without[0].folder.path / "metrics.jsonl").read_bytes()
    assert b"full_loss" not in to_export(without, is_packed=False)
    path = tmp_path / "all.csv"
    path.write_bytes(to_export([*with_, *without], is_packed=False))
    found = {each.rule: each.series for each in read_export(path) if each.suite == gas.suite}
    assert found[gas.rule].lipschitz == pytest.approx(gas.series.lipschitz, rel=5e-5)
