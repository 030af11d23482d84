"""GAS-aware is at least as strong as the attacks whose directions it takes."""

import functools

import numpy as np
import pytest
import torch

import outvote as ov
from attacking import inspect

# The inputs are small: more threads only wait for each other.
pytestmark = pytest.mark.usefixtures("one_thread")

BASES = ("mean", "median", "trimmed-mean", "multi-krum", "rfa", "krum")
ALL_BASES = (*BASES, "meamed", "bulyan", "dnc", "geometric-median", "centered-clipping")
OTHERS = ("lie", "min-max", "ipm")
SERVER_SEEDS = range(1000, 1012)


def honest(num_clients, dim, seed=0):
    """Heterogeneous clients: a common part, one of their own, and one that few share."""
    rng = np.random.default_rng(seed)
    common, own = rng.normal(size=dim), rng.normal(size=(num_clients, dim))
    shared = rng.normal(size=(num_clients, 5)) @ rng.normal(size=(5, dim))
    return (common + own + 0.5 * shared).astype(np.float32)


def strength(attack, rule, H, f, device, seeds=SERVER_SEEDS):
    """How far the server's update is from the honest mean, on average over its own draws."""
    output = inspect(attack, H, device, num_byzantine=f, rule=rule, seed=0)
    rows = output.rows.cpu().numpy() if isinstance(output.rows, torch.Tensor) else output.rows
    X = torch.from_numpy(np.concatenate([H, rows])).to(device)
    mean = X[: len(H)].double().mean(dim=0)
    far = [rule(X, num_byzantine=f, seed=seed).double() - mean for seed in seeds]
    return float(torch.stack(far).norm(dim=1).mean())


def assert_strongest(base, num_groups, H, f, device, seeds=SERVER_SEEDS):
    rule = functools.partial(
        ov.GAS(ov.make_rule(base), num_groups=num_groups), when_too_many="lower"
    )
    ours = strength(ov.GASAware(), rule, H, f, device, seeds)
    for text in OTHERS:
        other = strength(ov.make_attack(text), rule, H, f, device, seeds)
        # The server's draws are not the attackers': one of them may differ.
        assert ours >= 0.93 * other, text
    return ours


@pytest.mark.parametrize(
    "base",
    [
        pytest.param(base, marks=[pytest.mark.slow] * (base not in ("median", "multi-krum")))
        for base in BASES
    ],
)
def test_gas_aware_is_as_strong_as_the_others_against_small_gas(base, device):
    assert_strongest(base, 8, honest(12, 60), 3, device)


@pytest.mark.slow
@pytest.mark.parametrize("num_groups", [1, 100, 1000])
@pytest.mark.parametrize("base", ALL_BASES)
def test_gas_aware_is_as_strong_as_the_others_against_gas(base, num_groups, device):
    assert_strongest(base, num_groups, honest(40, 10_000), 10, device, range(1000, 1004))


def test_it_goes_as_far_as_it_is_kept(device):
    H = honest(12, 60)
    rule = ov.GAS(ov.MultiKrum(), num_groups=8)
    output = inspect(ov.GASAware(), H, device, num_byzantine=3, rule=rule, seed=0)
    rows = np.asarray(output.rows if device.type == "cpu" else output.rows.cpu())
    X = torch.from_numpy(np.concatenate([H, rows])).to(device)
    kept = [set(rule.inspect(X, num_byzantine=3, seed=seed).kept) for seed in SERVER_SEEDS]
    assert np.mean([{12, 13, 14} <= found for found in kept]) >= 0.7
    assert any("sent" in note for note in output.notes)


def test_it_works_against_a_rule_that_selects_without_gas(device):
    H = honest(12, 60)
    rule = ov.MultiKrum()
    ours = strength(ov.GASAware(draws=1), rule, H, 3, device, [0])
    for text in OTHERS:
        assert ours >= strength(ov.make_attack(text), rule, H, 3, device, [0]) - 1e-6


def test_it_stops_asking_when_the_outcome_is_decided(device):
    """Two failures of sixteen decide."""
    asked = []

    class Never(ov.VectorRule):
        def max_byzantine(self, num_clients):
            return num_clients

        def aggregate(self, rows, num_byzantine):
            return rows[:-num_byzantine].mean(dim=0)

        def inspect(self, gradients, **info):
            asked.append(1)
            verdict = super().inspect(gradients, **info)
            return type("V", (), {"update": verdict.update, "weights": np.zeros(15)})()

    found = inspect(ov.GASAware(), honest(12, 60), device, num_byzantine=3, rule=Never(), seed=0)
    shifts = 3 * 2 * (1 + 7)  # Directions, failures, bracket and steps.
    plain = 6 * 16 + 2 + 20 + 20  # Attacks times draws, and the searches of three of them.
    assert len(asked) == found.num_evaluations == shifts + plain
