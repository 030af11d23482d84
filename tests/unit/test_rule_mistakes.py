"""Mistakes of a rule's author are named: the rule, what is expected, what it returned."""

import numpy as np
import pytest
import torch

import outvote as ov

X = np.random.default_rng(0).normal(size=(7, 5))


class Free(ov.VectorRule):
    traits = ov.Traits(uses_num_byzantine=False)

    def max_byzantine(self, num_clients):
        return 0


def returning(result):
    class Own(Free):
        def aggregate(self, rows, num_byzantine):
            return result(rows.mean(dim=0))

    return Own()


@pytest.mark.parametrize("result", [lambda v: (v, None), lambda v: v.numpy()])
def test_no_weights_and_numpy_vectors_are_accepted(result):
    verdict = returning(result).inspect(X)
    np.testing.assert_allclose(verdict.update, X.mean(axis=0))
    assert verdict.kept is None


@pytest.mark.parametrize(
    ("result", "error", "match"),
    [
        (lambda v: [v, v], TypeError, r"Own.*vector must be .* \(5,\), got a list"),
        (lambda v: (v, v, v), TypeError, r"Own.*got a tuple of 3"),
        (lambda v: v[:3], ValueError, r"Own.*vector must have the shape \(5,\), got \(3,\)"),
        (lambda v: (v, v), ValueError, r"Own.*weights must have the shape \(7,\), got \(5,\)"),
        (lambda v: None, TypeError, r"Own.*got a NoneType"),
    ],
)
def test_a_wrong_result_of_a_vector_rule(result, error, match):
    with pytest.raises(error, match=match):
        returning(result)(X)
    with pytest.raises(error, match=match):
        ov.NNM(returning(result))(X, num_byzantine=0)


def computing(result, **traits):
    class Own(ov.Rule):
        def max_byzantine(self, num_clients):
            return 0

        def compute(self, matrix, info):
            return result(matrix)

    Own.traits = ov.Traits(uses_num_byzantine=False, **traits).inheriting(ov.Rule.traits)
    return Own()


def uniform(matrix, value=1.0):
    return torch.full((*matrix.batch, matrix.num_clients), value / matrix.num_clients)


@pytest.mark.parametrize(
    ("result", "error", "match"),
    [
        (lambda m: m.columns.mean(dim=-1), TypeError, "must return an ov.Aggregation, got a Ten"),
        (lambda m: ov.Aggregation(), ValueError, "neither weights nor a vector"),
        (lambda m: ov.Aggregation(weights=torch.ones(3)), ValueError, r"\(1, 7\), got \(3,\)"),
        (lambda m: ov.Aggregation(weights=uniform(m, 2)), ValueError, "must sum to 1, got 2"),
        (
            lambda m: ov.Aggregation(vector=m.columns.mean(dim=-1), weights=uniform(m, -1)),
            ValueError,
            "must be from 0 to 1",
        ),
    ],
)
def test_a_wrong_result_of_compute(result, error, match):
    with pytest.raises(error, match=match):
        computing(result)(X)


def test_what_a_rule_needs_must_be_given():
    def mean(matrix):
        return ov.Aggregation(weights=uniform(matrix))

    rule = computing(mean, needs_model=True)
    with pytest.raises(ValueError, match=r"Own needs model=, .* got None"):
        rule(X)
    rule(X, model=X[0])
    rule = computing(mean, needs_reference=True)
    with pytest.raises(ValueError, match=r"Own needs reference=, .* got None"):
        rule(X)


@pytest.mark.parametrize("trait", ["has_state", "needs_model", "needs_reference"])
def test_a_vector_rule_cannot_ask_for_what_it_does_not_get(trait):
    with pytest.raises(TypeError, match=rf"Own declares {trait}.*use ov\.Rule"):
        type("Own", (ov.VectorRule,), {"traits": ov.Traits(**{trait: True})})


def test_without_bounds_the_shares_of_a_coordinatewise_rule_are_not_known():
    class Own(ov.CoordinatewiseRule):
        traits = ov.Traits(uses_num_byzantine=False)

        def max_byzantine(self, num_clients):
            return 0

        def reduce(self, columns, num_byzantine):
            return columns.mean(dim=-1)

    verdict = Own().inspect(X)
    assert verdict.weights is None
    assert verdict.kept is None


@pytest.mark.parametrize("split", ["by-layer", "by-layer-random"])
def test_by_layer_names_layer_sizes(split):
    rule = ov.GAS(ov.Median(), split=split)
    with pytest.raises(ValueError, match=r"got none; pass .* layer_sizes="):
        rule(X, num_byzantine=1)
    with pytest.raises(ValueError, match=r"got sizes of 4 coordinates for 5; .* layer_sizes="):
        rule(X, num_byzantine=1, layer_sizes=[2, 2])


@pytest.mark.parametrize("split", ["by-layer", "by-layer-random"])
@pytest.mark.parametrize("text", ["{}", "nnm({})"])
def test_by_layer_inside_gas_is_refused_when_it_is_built(text, split):
    inside = text.format(f"gas(median, split={split})")
    with pytest.raises(ValueError, match=f"split={split}.* inside sees .*not layers"):
        ov.make_rule(f"gas({inside})")
    ov.make_rule(inside)
