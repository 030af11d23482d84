"""Diagnostics: what they measure, what they guarantee, and that nothing else changes."""

from dataclasses import replace
from functools import partial
from math import sqrt

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import outvote as ov
from federations import TRAINING, make_runs, networks, samples
from outvote.engine.diagnostics import RuleInput, diagnose_rule, groups_of
from outvote.engine.simulation import first_state, make_run_stack, simulate
from outvote.metrics.certificate import bound_factor, certificate
from outvote.results.collect import collect
from outvote.results.round import Diagnostics
from outvote.results.series import DIAGNOSTICS
from outvote.rules.aggregate import Batch, aggregate
from outvote.training.batches import draw_batches
from outvote.training.cores import CoresTrainer
from outvote.training.local_sgd import LocalSGD
from outvote.training.sequential import SequentialTrainer
from outvote.training.stacked_trainer import StackedTrainer
from simulations import execute, tiny

SETS = (samples(120), samples(40))
KNOWN = ["mda", "trimmed-mean", "meamed", "median", "geometric-median", "krum", "multi-krum"]


def stack_of(runs, *, has_diagnostics=True, training=TRAINING, name="mlp"):
    modules = networks(runs, name)
    stack = partial(make_run_stack, modules[0], *SETS, runs, training=training, num_classes=4)
    return stack(has_diagnostics=has_diagnostics), first_state(modules, SETS[0])


def rounds_of(runs, num_rounds=3, **how):
    return list(simulate(*stack_of(runs, **how), num_rounds))


def gradient_of(module, weights, index):
    """The gradient of the mean loss over some samples, at some weights."""
    nn.utils.vector_to_parameters(weights, module.parameters())
    module.zero_grad()
    images = SETS[0].batch(index).movedim(-1, 1)
    F.cross_entropy(module(images), SETS[0].labels[index]).backward()
    return torch.cat([parameter.grad.flatten() for parameter in module.parameters()]).clone()


def in_plain_loops(run, module, weights, record, batch_size):
    means, noises = [], []
    honest = set(record.clients) - set(record.byzantine)
    once = LocalSGD(num_epochs=1, batch_size=batch_size)
    for client in honest:
        part = run.federation.parts[client]
        mean = gradient_of(module, weights, part)
        batches = draw_batches(part, once, run.stream(record.round, client, "diagnostics"))
        assert sorted(batches.index[batches.index >= 0].tolist()) == sorted(part.tolist())
        squares = [
            (gradient_of(module, weights, index[:size]) - mean).square().sum()
            for index, size in zip(batches.index, batches.sizes, strict=True)
        ]
        means.append(mean)
        noises.append(sqrt(sum(squares) / len(squares)))
    centre = sum(means) / len(means)
    return max(float((mean - centre).norm()) for mean in means), max(noises)


@pytest.mark.parametrize("trainer", [SequentialTrainer, StackedTrainer])
def test_kappa_and_sigma_are_those_of_plain_loops(trainer):
    runs = make_runs([("median", "lie"), ("gas(multi-krum, num_groups=9)", "label-flip")])
    # Batches smaller than a part, and one that is not full.
    stack, state = stack_of(runs, training=replace(TRAINING, max_norm=0.01, batch_size=4))
    stack = replace(stack, trainer=trainer(networks(runs)[0], SETS[0]))
    before = state
    for step in simulate(stack, state, 2):
        for k, (run, module) in enumerate(zip(runs, networks(runs), strict=True)):
            kappa, sigma = in_plain_loops(run, module, before.weights[k], step.records[k], 4)
            assert step.records[k].diagnostics.kappa == pytest.approx(kappa, rel=1e-9)
            assert step.records[k].diagnostics.sigma == pytest.approx(sigma, rel=1e-9)
        before = step.state


@pytest.mark.parametrize("attack", ["lie", "nan", "bit-flip"])
def test_a_run_comes_out_the_same_to_the_last_bit_with_and_without(attack):
    runs = make_runs([("gas(multi-krum, num_groups=9)", attack), ("median", attack)])
    with_, without = rounds_of(runs), rounds_of(runs, has_diagnostics=False)
    for one, other in zip(with_, without, strict=True):
        assert torch.equal(one.state.weights, other.state.weights)
        for ours, theirs in zip(one.records, other.records, strict=True):
            assert theirs.diagnostics is None
            assert isinstance(ours.diagnostics, Diagnostics)
            assert replace(ours, diagnostics=None) == theirs


def test_a_round_without_diagnostics_trains_once(monkeypatch):
    calls = []
    real = CoresTrainer.train

    def counted(self, *given):
        calls.append(given)
        return real(self, *given)

    monkeypatch.setattr(CoresTrainer, "train", counted)
    rounds_of(make_runs([("gas(median)", "lie")]), 3, has_diagnostics=False)
    assert len(calls) == 3


@pytest.mark.parametrize("attack", ["lie", "nan", "ipm", "label-flip", "gaussian"])
def test_rounds_stay_within_their_certificate(attack):
    runs = make_runs([("gas(multi-krum, num_groups=9)", attack)] * 3)
    found = [record for step in rounds_of(runs, 4) for record in step.records]
    limits = [record.diagnostics.certificate for record in found]
    # Krum tolerates one of six clients; some rounds have two Byzantine ones.
    assert any(limit is not None for limit in limits)
    for record, limit in zip(found, limits, strict=True):
        if limit is not None:
            assert record.deviation <= limit + 1e-9
            assert (limit == 0) == (record.num_kept_byzantine == 0)


def input_of(rule, rows, is_honest, f, seed=3):
    """Aggregate, and return what the diagnostics need of it."""
    found = aggregate(rule, Batch(gradients=rows.unsqueeze(0), num_byzantine=[f], seeds=[seed]))
    num_kept = int(((found.weights[0] > 0) & ~is_honest).sum())
    hidden = torch.where(is_honest.unsqueeze(-1), rows, 0)
    given = RuleInput(
        rule=rule,
        seed=seed,
        rows=hidden,
        is_honest=is_honest,
        num_byzantine=found.num_byzantine[0],
        num_kept_byzantine=num_kept,
    )
    return found, given


def attacked(random, least_clients):
    """Honest rows, and Byzantine ones from near to far, in any order."""
    f = int(random.integers(1, 4))
    n = least_clients(f) + int(random.integers(0, 5))
    dim = int(random.integers(1, 40))
    honest = random.normal(size=(n - f, dim)) * random.uniform(0.2, 3, size=dim)
    centre = honest.mean(0) + random.normal(size=dim) * random.choice([0.1, 1.0, 3.0, 30.0])
    byzantine = centre + random.normal(size=(f, dim)) * random.choice([0.0, 0.3, 1.0])
    order = random.permutation(n)
    rows = torch.from_numpy(np.vstack([honest, byzantine])[order])
    return rows, torch.from_numpy(order < n - f), f


@pytest.mark.parametrize(
    ("text", "num_trials"),
    [
        ("multi-krum", 200),
        pytest.param("multi-krum", 1500, marks=pytest.mark.slow),
        *((text, 40) for text in KNOWN[:-1]),
    ],
)
def test_gas_never_leaves_its_certificate(text, num_trials):
    random = np.random.default_rng(len(text))
    base = ov.make_rule(text)
    needs_more = text in ("krum", "multi-krum")
    ratios, num_exact = [], 0
    for trial in range(num_trials):
        rows, is_honest, f = attacked(random, lambda f: 2 * f + (3 if needs_more else 1))
        rule = ov.GAS(base, num_groups=int(random.integers(1, rows.shape[1] + 1)))
        found, given = input_of(rule, rows, is_honest, f, seed=trial)
        limit = diagnose_rule(given, Diagnostics()).certificate
        error = float((found.vector[0] - rows[is_honest].mean(dim=0)).norm())
        if given.num_kept_byzantine:
            assert error <= limit * (1 + 1e-12)
            ratios.append(error / limit)
        else:
            num_exact += 1
            assert limit == 0
            assert error <= 1e-12 * float(rows[is_honest].norm())
    assert num_exact > 0
    assert max(ratios) > 0.05, "the bound is never near: the test is too weak"


@pytest.mark.parametrize("split", ["balanced", "ceil", "contiguous"])
def test_the_split_of_the_certificate_is_the_one_that_was_used(split, device):
    random = np.random.default_rng(5)
    rows = torch.from_numpy(random.normal(size=(9, 31))).to(device)
    rule = ov.GAS(ov.MultiKrum(), num_groups=7, split=split)
    found, given = input_of(rule, rows, torch.arange(9, device=device) < 7, 2, seed=11)
    groups = listed(groups_of(given, rule).split)
    verdict = rule.inspect(rows, num_byzantine=2, groups=groups)
    np.testing.assert_allclose(verdict.scores, found.scores[0].cpu().numpy(), rtol=1e-9)
    other = replace(given, seed=12)
    assert (split == "contiguous") == (listed(groups_of(other, rule).split) == groups)


def listed(split):
    """The coordinates of every group of a split."""
    order = np.argsort(split.orders[0].positions_between(0, int(split.starts[-1])))
    return [group.tolist() for group in np.split(order, split.starts[1:-1])]


def test_the_certificate_is_the_formula_on_the_honest_rows_alone():
    random = np.random.default_rng(6)
    rows = torch.from_numpy(random.normal(size=(9, 10)))
    rows[7:] = 1e3 * rows[7:]
    rule = ov.GAS(ov.MultiKrum(), num_groups=3, split="contiguous")
    _, given = input_of(rule, rows, torch.arange(9) < 7, 2)
    found = diagnose_rule(replace(given, num_kept_byzantine=1), Diagnostics(kappa=1.0, sigma=2.0))

    def diameter(some):
        return max(float((a - b).norm()) for a in some for b in some)

    honest = rows[:7]
    parts = sum(diameter(honest[:, k]) for k in (slice(0, 4), slice(4, 7), slice(7, 10)))
    constant = 2 / 7 * (2 + sqrt(5 / 4))
    assert (found.kappa, found.sigma) == (1.0, 2.0)
    assert found.honest_diameter == pytest.approx(diameter(honest))
    assert found.resilience == pytest.approx(constant)
    assert found.certificate == pytest.approx(
        1 / 7 * (diameter(honest) + (1 + 2 * constant) * parts)
    )
    assert found.bound_factor == pytest.approx(
        (1 + 8 / 3) * (1 + constant**2 + 1 / 7) * (2 / 7) ** 2
    )
    assert bound_factor(9, 0, 3, constant) == 0
    assert certificate(0, 7, 1.0, 1.0, constant) == 0


@pytest.mark.parametrize(
    ("text", "f", "has_resilience", "has_certificate"),
    [
        ("gas(multi-krum, num_groups=3)", 2, True, True),
        (
            "gas(multi-krum, num_groups=3)",
            1,
            True,
            False,
        ),  # One more than assumed.
        ("gas(multi-krum, num_groups=3)", 3, True, False),  # One less.
        ("gas(multi-krum, num_groups=3)", 5, False, False),  # More than Multi-Krum tolerates.
        ("gas(rfa, num_groups=3)", 2, False, False),
        ("gas(nnm(median), num_groups=3)", 2, False, False),
        ("median", 2, True, False),
        ("mean", 0, False, False),
    ],
)
def test_what_is_not_known_is_none(text, f, has_resilience, has_certificate):
    rows = torch.from_numpy(np.random.default_rng(7).normal(size=(9, 10)))
    _, given = input_of(ov.make_rule(text), rows, torch.arange(9) < 7, f)
    found = diagnose_rule(given, Diagnostics())
    assert (found.resilience is not None) == has_resilience
    assert (found.bound_factor is not None) == (has_resilience and text.startswith("gas"))
    assert (found.certificate is not None) == has_certificate
    nobody = replace(given, is_honest=torch.zeros(9, dtype=torch.bool))
    assert diagnose_rule(nobody, Diagnostics()) == Diagnostics()


def test_diagnostics_are_written_read_and_exported(tmp_path):
    plan = tiny("rounds=2", "diagnostics=true", 'rule=["mean", "gas(multi-krum, num_groups=20)"]')
    execute(plan, tmp_path / "with")
    execute(tiny("rounds=2", "rule=mean"), tmp_path / "without")
    gas, mean = collect([tmp_path / "with"])
    assert np.isfinite(gas.series.kappa).all()
    assert np.isfinite(gas.series.certificate).any()
    assert np.isnan(mean.series.certificate).all()
    assert gas.series.sigma[0] == mean.series.sigma[0]
    (plain,) = collect([tmp_path / "without"])
    assert all(np.isnan(getattr(plain.series, name)).all() for name in DIAGNOSTICS)
    assert plain.hash != mean.hash
    assert b"diagnostics" not in (plain.folder.path / "metrics.jsonl").read_bytes()
    others = [replace(each, diagnostics=None) for each in mean.folder.rounds()]
    assert others == plain.folder.rounds()
