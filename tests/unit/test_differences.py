"""Inputs on which a rewritten core was found to differ from the one before, or from the definition.

Each is the smallest input that showed the fault.
"""

import numpy as np
import pytest

import outvote as ov
from outvote.files import StreamingAggregator

SEED = 3


def normal(num_clients: int, dim: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(0).normal(size=(num_clients, dim)).astype(dtype)


@pytest.mark.parametrize("num_groups", [2, 3, 7])
def test_groups_of_groups_of_mixed_clients_have_the_copies_of_their_own_group(
    num_groups: int,
) -> None:
    # Mixed clients are copies of one another in one outer group and not in the next.
    X = normal(5, 18_000)
    inside = f"nnm(gas(multi-krum, num_groups={num_groups}, split=contiguous))"
    rule = ov.make_rule(f"gas({inside}, num_groups=3, split=contiguous)")
    found = rule.inspect(X, num_byzantine=1, seed=SEED)
    blocks = np.split(X, 3, axis=1)
    points = [ov.make_rule(inside)(block, num_byzantine=1) for block in blocks]
    far = [
        np.linalg.norm(block - point, axis=1) for block, point in zip(blocks, points, strict=True)
    ]
    np.testing.assert_allclose(found.scores, np.sum(far, axis=0), rtol=1e-5)


@pytest.mark.parametrize(
    "text",
    ["norm-clipping", "clip(multi-krum, max_norm=honest)", "signguard"],
)
def test_rows_whose_squares_vanish_in_float32_have_their_norms(text: str) -> None:
    X = normal(9, 8) * np.float32(1e-30)
    rule = ov.make_rule(text)
    found = rule.inspect(X, num_byzantine=1, seed=SEED)
    exact = rule.inspect(X.astype(np.float64), num_byzantine=1, seed=SEED)
    np.testing.assert_allclose(found.update, exact.update, rtol=1e-5, atol=1e-36)
    np.testing.assert_allclose(found.scores, exact.scores, rtol=1e-5)
    np.testing.assert_allclose(found.weights, exact.weights, rtol=1e-5)
    streamed = StreamingAggregator(rule, list(X), num_byzantine=1, seed=SEED).verdict()
    np.testing.assert_allclose(streamed.scores, exact.scores, rtol=1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_two_clients_have_the_middle_as_their_geometric_median(seed: int) -> None:
    # Every point between them is one: rounding chose where to stop, or a client.
    X = np.random.default_rng(seed).normal(size=(2, 100)).astype(np.float32)
    assert ov.GeometricMedian().inspect(X).weights.tolist() == [0.5, 0.5]
    scores = ov.make_rule("gas(geometric-median, num_groups=7)").inspect(X, num_byzantine=0).scores
    np.testing.assert_allclose(scores[0], scores[1], rtol=1e-6)
