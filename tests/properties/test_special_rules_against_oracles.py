"""Rules with state, root data or a window of their own, against the plain-loop oracles."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import oracles as slow
import outvote as ov
from calling import inspect, update_of
from inputs import FAMILIES, make_rows, tolerance

FEW = max(20, settings().max_examples // 4)
ROUND = {
    "family": st.sampled_from(sorted(FAMILIES)),
    "n": st.integers(2, 10),
    "d": st.integers(1, 12),
    "seed": st.integers(0, 2**32 - 1),
}
# Sign features are few small fractions: they are often exactly at the bandwidth.
AROUND_ONE = (1 - 1e-6, 1.0, 1 + 1e-6)


def is_clear_cluster(X, seed):
    """Whether the largest cluster is the same one when features and bandwidth move a little."""
    rng = np.random.default_rng(seed)
    features = np.array(slow.sign_features(X, 0, X.shape[1]))
    bandwidth = slow.estimated_bandwidth(features.tolist())
    clusters = {
        tuple(slow.largest_cluster((features + noise).tolist(), bandwidth * widen))
        for noise in 1e-9 * rng.uniform(-1, 1, size=(8, *features.shape))
        for widen in AROUND_ONE
    }
    return bandwidth > 1e-6 and len(clusters) == 1


def assert_agrees(verdict, expected, X):
    atol = tolerance(X, expected)
    np.testing.assert_allclose(update_of(verdict), expected, rtol=0, atol=atol)


@given(**ROUND)
@settings(max_examples=FEW)
def test_centered_clipping_starts_at_its_state_and_returns_its_update_as_state(
    family, n, d, seed, device
):
    X = make_rows(family, n, d, seed)
    before = np.random.default_rng(seed).normal(size=d)
    rule = ov.CenteredClipping(radius=1.5, num_iterations=2)
    verdict = inspect(rule, X, device, num_byzantine=0, state=before)
    assert_agrees(verdict, slow.centered_clipping(X, 0, 1.5, 2, before), X)
    state = torch.as_tensor(verdict.state).cpu().double().numpy()
    np.testing.assert_array_equal(state, update_of(verdict))


@given(**ROUND)
@settings(max_examples=FEW)
def test_fltrust_agrees_with_its_oracle(family, n, d, seed, device):
    X = make_rows(family, n, d, seed)
    reference = np.random.default_rng(seed + 1).normal(size=d)
    verdict = inspect(ov.FLTrust(), X, device, num_byzantine=0, reference=reference)
    assert_agrees(verdict, slow.fltrust(X, reference=reference), X)


@pytest.mark.parametrize("normalise", [False, True])
@given(**ROUND | {"family": st.sampled_from(["normal", "heterogeneous", "duplicated"])})
@settings(max_examples=FEW)
def test_foolsgold_remembers_the_sum_of_the_rounds(family, n, d, seed, normalise, device):
    rule = ov.FoolsGold(normalise=normalise)
    state, history = None, np.zeros((n, d))
    for number in range(3):
        X = make_rows(family, n, d, seed + number)
        assume(len(np.unique(X, axis=0)) > 1)
        weights = slow.foolsgold_weights(history + X)
        # The logit is steep at both ends: a similarity of one up to rounding decides nothing here.
        assume(all(w in {0.0, 1.0} or 1e-3 < w < 1 - 1e-3 for w in weights) and max(weights) > 0)
        verdict = inspect(rule, X, device, num_byzantine=0, state=state)
        expected = slow.foolsgold(X, history=history, normalise=normalise)
        atol = 1e-7 * (1 + np.abs(expected).max())
        np.testing.assert_allclose(update_of(verdict), expected, rtol=0, atol=atol)
        state, history = verdict.state, history + X


@pytest.mark.parametrize("normalise", [False, True])
def test_foolsgold_gives_nothing_to_clients_that_are_all_alike(normalise, device):
    X = np.tile(np.random.default_rng(0).normal(size=7), (4, 1))
    update = update_of(inspect(ov.FoolsGold(normalise=normalise), X, device, num_byzantine=0))
    np.testing.assert_array_equal(update, np.zeros(7))


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_foolsgold_takes_no_step_where_every_client_has_a_copy(seed, dtype, device):
    rows = np.random.default_rng(seed).normal(size=(5, 50)).astype(dtype)
    X = np.concatenate([rows, 3 * rows[::-1]])
    verdict = inspect(ov.FoolsGold(), X, device, num_byzantine=0)
    np.testing.assert_array_equal(update_of(verdict), np.zeros(50))
    assert verdict.kept == []


def test_fltrust_trusts_nobody_against_the_reference_and_takes_no_step(device):
    X = -np.abs(np.random.default_rng(0).normal(size=(4, 3)))
    X[1] = 0
    verdict = inspect(ov.FLTrust(), X, device, num_byzantine=0, reference=np.ones(3))
    np.testing.assert_array_equal(update_of(verdict), np.zeros(3))
    assert verdict.kept == []


@given(
    family=st.sampled_from(["normal", "heterogeneous", "duplicated", "one_huge_row"]),
    n=st.integers(4, 12),
    d=st.integers(30, 120),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=2 * FEW)
def test_signguard_with_the_whole_window_agrees_with_its_oracle(family, n, d, seed, device):
    X = make_rows(family, n, d, seed) + 0.3
    X[: n // 4] *= -2
    expected, kept = slow.signguard(X, 0, d)
    assume(is_clear_cluster(X, seed))
    verdict = inspect(ov.SignGuard(window=1.0), X, device, num_byzantine=0, seed=seed)
    assert verdict.kept == kept
    assert_agrees(verdict, expected, X)


def test_signguard_keeps_the_clients_that_send_zeros_where_most_do(device):
    X = np.zeros((7, 20))
    X[0], X[1] = 1, -2
    verdict = inspect(ov.SignGuard(), X, device, num_byzantine=2, seed=0)
    assert verdict.kept == [2, 3, 4, 5, 6]
    np.testing.assert_array_equal(update_of(verdict), np.zeros(20))


@pytest.mark.parametrize("seed", range(6))
def test_signguard_looks_at_a_window_of_a_tenth_of_the_coordinates(seed, device):
    X = make_rows("normal", 6, 200, seed) + 0.3
    X[5] *= -2
    update = update_of(inspect(ov.SignGuard(), X, device, num_byzantine=1, seed=seed))
    candidates = [
        slow.signguard(X, start, 20, widen=w)[0] for start in range(181) for w in AROUND_ONE
    ]
    assert min(np.abs(update - one).max() for one in candidates) < 1e-9
