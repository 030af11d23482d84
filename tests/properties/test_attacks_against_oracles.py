"""Attacks on random inputs: equal to their oracles, within their own constraints."""

import functools
import math

import numpy as np
import pytest
import torch

import attack_oracles as oracles
import outvote as ov
from attacking import attack_rows, inspect
from outvote.attacks.line_search import LineSearch, line_maximize
from outvote.attacks.mimic import MimicState
from outvote.attacks.run_attack import run_attack

# The inputs are small: more threads only wait for each other.
pytestmark = pytest.mark.usefixtures("one_thread")

MANY_INPUTS = pytest.mark.parametrize(
    "num_inputs", [300, pytest.param(1000, marks=pytest.mark.slow)]
)
DIRECTIONS = ("std", "sign", "unit-mean")


def honest(seed, offset=0.0):
    """Few to many clients and coordinates, of different scale and heterogeneity."""
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(2, 12)), int(rng.integers(1, 30))
    rows = rng.normal(size=(n, d)) * 10.0 ** rng.uniform(-1, 1, size=(n, 1))
    return (rows + rng.normal(size=d) + offset) * 10.0 ** rng.uniform(-2, 2)


def tolerance(H):
    return {"rtol": 1e-9, "atol": 1e-9 * float(np.abs(H).max())}


@pytest.mark.parametrize("seed", range(20))
def test_lie_agrees_with_its_oracle(seed, device):
    H = honest(seed)
    for ddof, spread in enumerate(("population", "sample")):
        for sign in (-1, 1):
            rows = attack_rows(ov.LIE(spread=spread, sign=sign), H, device, num_byzantine=1)
            wanted = oracles.lie(H.tolist(), 1.5, ddof, sign)
            np.testing.assert_allclose(rows[0], wanted, **tolerance(H))
    rows = attack_rows(ov.LIE(spread="variance"), H, device, num_byzantine=1)
    np.testing.assert_allclose(rows[0], oracles.lie_by_variance(H.tolist()), rtol=1e-9)
    rows = attack_rows(ov.LIE(reference_set="all"), H[1:], device, num_byzantine=1, own=H[:1])
    np.testing.assert_allclose(rows[0], oracles.lie(H.tolist()), **tolerance(H))


@pytest.mark.parametrize("seed", range(20))
def test_alie_agrees_with_its_oracle(seed, device):
    H = honest(seed)
    for f in range(1, (len(H) + 1) // 2):
        z = oracles.alie_z(len(H) + f, f)
        rows = attack_rows(ov.ALIE(), H, device, num_byzantine=f)
        np.testing.assert_allclose(rows, [oracles.lie(H.tolist(), z)] * f, **tolerance(H))


def check_stealth(H, attack, device, keeps, gammas):
    """The closed form is the search's limit, and the rows as they are sent are feasible."""
    closed = inspect(attack, H, device, num_byzantine=1)
    gammas.append(closed.factor)
    row = np.asarray(
        closed.rows.double().cpu() if isinstance(closed.rows, torch.Tensor) else closed.rows
    )[0]
    assert keeps([float(x) for x in row], [[float(x) for x in h] for h in H])


@MANY_INPUTS
def test_min_max_in_closed_form_agrees_with_the_search_and_keeps_its_constraint(num_inputs, device):
    for seed in range(num_inputs):
        H, name, gammas = honest(seed), DIRECTIONS[seed % 3], []
        for method in ("closed-form", "search"):
            attack = ov.MinMax(direction=name, method=method, sign=(-1, 1)[seed % 2])
            check_stealth(H, attack, device, oracles.keeps_min_max, gammas)
        assert abs(gammas[0] - gammas[1]) <= 2e-5
        assert gammas[1] <= gammas[0] + 1e-9 or gammas[0] == 20


@MANY_INPUTS
def test_min_sum_in_closed_form_agrees_with_the_search_and_keeps_its_constraint(num_inputs, device):
    for seed in range(num_inputs):
        H, name, bound, gammas = honest(seed), DIRECTIONS[seed % 3], ("max", "min")[seed % 2], []
        keeps = functools.partial(oracles.keeps_min_sum, bound=bound)
        for method in ("closed-form", "search"):
            attack = ov.MinSum(direction=name, method=method, limit=bound)
            check_stealth(H, attack, device, keeps, gammas)
        assert abs(gammas[0] - gammas[1]) <= 2e-5


@pytest.mark.parametrize(
    "seed", [*range(20), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(20, 60))]
)
def test_stealth_agrees_with_the_plain_search(seed, device):
    H, sign = honest(seed), (-1, 1)[seed % 2]
    for name in DIRECTIONS:
        attack = ov.MinMax(direction=name, sign=sign)
        wanted = oracles.stealth_gamma(H.tolist(), name=name, sign=sign)
        check_gamma(attack, H, device, wanted, oracles.moved(H.tolist(), wanted, name, 0, sign))
        for bound in ("max", "min"):
            attack = ov.MinSum(direction=name, limit=bound, spread="sample", sign=sign)
            wanted = oracles.stealth_gamma(H.tolist(), 1, bound, name, sign)
            check_gamma(attack, H, device, wanted, oracles.moved(H.tolist(), wanted, name, 1, sign))


def check_gamma(attack, H, device, gamma, row):
    output = inspect(attack, H, device, num_byzantine=1)
    assert abs(output.factor - gamma) <= 2e-5
    np.testing.assert_allclose(
        torch.as_tensor(output.rows).double().cpu()[0], row, atol=1e-4 * (1 + np.abs(H).max())
    )


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("offset", [0.0, 30.0])
def test_rounding_does_not_break_the_constraint(dtype, offset, device):
    for seed in range(100):
        H = honest(seed, offset)
        H = (H / np.abs(H).max()).astype(dtype)
        for attack, keeps in (
            (ov.MinMax(), oracles.keeps_min_max),
            (ov.MinSum(), oracles.keeps_min_sum),
            (ov.MinSum(limit="min"), functools.partial(oracles.keeps_min_sum, bound="min")),
        ):
            if attack == ov.MinSum(limit="min") and len(H) == 2:
                continue  # Both clients are as far from the mean: only the exact mean would do.
            check_stealth(H, attack, device, keeps, [])


@pytest.mark.parametrize("seed", range(20))
def test_fang_agrees_with_its_oracles(seed, device):
    H = honest(seed)
    for f in (1, 2, 4):
        for start in ("code", "paper"):
            attack = ov.Fang(target="krum", neighbours=start)
            output = inspect(attack, H, device, num_byzantine=f)
            wanted = oracles.fang_krum_lambda(H.tolist(), f, neighbours=start)
            assert output.factor == pytest.approx(wanted, rel=1e-9)
        rows = attack_rows(ov.Fang(), H, device, num_byzantine=f, seed=seed)
        ends = [oracles.fang_trimmed_mean(H.tolist(), 2, [u] * H.shape[1]) for u in (0, 1)]
        low, high = np.min(ends, axis=0), np.max(ends, axis=0)
        slack = 1e-12 * np.abs(H).max()
        assert ((rows >= low - slack) & (rows <= high + slack)).all()
        assert f == 1 or not np.array_equal(rows[0], rows[1])


@pytest.mark.parametrize("seed", range(20))
def test_mimic_learns_as_its_oracle(seed, device):
    rounds = [honest(seed)]
    rng = np.random.default_rng(seed)
    rounds += [rounds[0] + rng.normal(size=rounds[0].shape) for _ in range(3)]
    d = rounds[0].shape[1]
    direction, mean = rng.normal(size=d).tolist(), [0.0] * d
    state = MimicState(
        direction=torch.tensor([direction], dtype=torch.float64),
        mean=torch.zeros(1, d, dtype=torch.float64),
        num_rounds=torch.tensor([0]),
        target=torch.tensor([-1]),
    )
    for t, H in enumerate(rounds):
        output = inspect(ov.Mimic(client=None), H, device, num_byzantine=1, state=state)
        state = output.state
        target, direction, mean = oracles.mimic_step(H.tolist(), direction, mean, t)
        assert state.target.tolist() == [target]
        np.testing.assert_allclose(state.direction[0].cpu(), direction, rtol=0, atol=1e-9)
        np.testing.assert_allclose(state.mean[0].cpu(), mean, **tolerance(H))


@pytest.mark.parametrize("seed", range(40))
def test_many_line_searches_at_once_are_each_as_alone(seed):
    rng = np.random.default_rng(seed)
    tops = rng.uniform(0, 40, size=7)

    def objective(x):
        return -((x - torch.from_numpy(tops)).abs() ** 1.5)

    search = LineSearch(evals=12, delta=1, highest=20.0)
    found = line_maximize(objective, torch.zeros(7, dtype=torch.float64), search, 0.0)
    for top, best in zip(tops, found.tolist(), strict=True):
        wanted = oracles.line_maximize(lambda x, t=top: -(abs(x - t) ** 1.5), 12, highest=20.0)
        assert best == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize("text", ["lie", "min-max", "min-sum", "fang", "mimic(client=none)"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_batch_is_as_many_calls(text, dtype, device):
    """Large enough for several tiles; with clients that diverged in one of the runs."""
    rng = np.random.default_rng(0)
    rows = torch.from_numpy(rng.normal(size=(3, 9, 40_000)) + 0.3).to(device, dtype)
    rows[1, 4, 17] = math.nan
    is_byzantine = torch.zeros(3, 9, dtype=torch.bool)
    is_byzantine[0, [0, 5]] = is_byzantine[1, 3] = True
    attack = ov.make_attack(text)
    sent, _ = run_attack(attack, rows, is_byzantine, seeds=[5, 6, 7])
    assert torch.equal(sent[2], rows[2])
    for run in (0, 1):
        mask = is_byzantine[run].to(device)
        own, rest = rows[run][mask], rows[run][~mask]
        output = attack.inspect(rest, num_byzantine=len(own), own=own, seed=5 + run)
        torch.testing.assert_close(sent[run][mask], output.rows.clone())
        assert ("left out" in str(output.notes)) == (run == 1)
