"""Rules written for 0.1 and the names of 0.1 work for one version, with a warning each."""

import numpy as np
import pytest
import torch

import outvote as ov

X = np.random.default_rng(0).normal(size=(7, 5))


def test_the_attributes_of_0_1_become_traits_with_one_warning():
    with pytest.warns(ov.OutvoteWarning, match="traits = outvote.Traits") as caught:

        class Old(ov.VectorRule):
            uses_num_byzantine = False
            can_be_wrapped = False
            needs = "nothing much"

            def max_byzantine(self, num_clients):
                return 0

            def aggregate(self, rows, num_byzantine):
                return rows.mean(dim=0)

    assert len(caught) == 1
    traits = Old().traits
    assert (traits.uses_num_byzantine, traits.can_be_wrapped, traits.needs) == (
        False,
        False,
        "nothing much",
    )
    assert not traits.selects_clients, "as every vector rule"
    np.testing.assert_allclose(Old()(X), X.mean(axis=0))
    with pytest.raises(TypeError, match="cannot be wrapped"):
        ov.GAS(Old())


def test_answer_and_a_memory_of_0_1_still_work():
    with pytest.warns(ov.OutvoteWarning, match=r"compute\(self, matrix, info\)") as caught:

        class Old(ov.Rule):
            has_memory = True
            uses_num_byzantine = False

            def max_byzantine(self, num_clients):
                return 0

            def answer(self, points, facts):
                mean = points.columns.double().mean(dim=-1)
                before = 0 if facts.state is None else facts.state
                return ov.Aggregation(vector=mean + before, state=mean)

    assert len(caught) == 1
    rule = Old()
    first = rule.inspect(X)
    assert torch.is_tensor(first.state)
    assert first.state.shape == (5,), "0.1 had an axis for the run"
    np.testing.assert_allclose(rule(X, state=first.state), 2 * X.mean(axis=0))


def test_a_field_called_as_an_attribute_of_0_1_is_a_field():
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class Own(ov.VectorRule):
        reference: str = "mine"

        def max_byzantine(self, num_clients):
            return 0

        def aggregate(self, rows, num_byzantine):
            return rows[0]

    assert Own().reference == "mine"
    assert Own().traits.reference == ""


def test_the_attributes_of_our_rules_have_new_names():
    with pytest.warns(ov.OutvoteWarning, match="is now traits.has_state"):
        assert ov.FoolsGold().has_memory
    with pytest.warns(ov.OutvoteWarning, match="is now compute"):
        assert ov.Mean().answer.__func__ is ov.Mean.compute
    with pytest.raises(AttributeError, match="no attribute 'guess'"):
        _ = ov.Mean().guess


@pytest.mark.parametrize(
    ("old", "new"),
    [("Facts", "RoundInfo"), ("Points", "ClientMatrix"), ("Answer", "Aggregation")],
)
def test_the_public_names_of_0_1_warn_and_name_the_new_ones(old, new):
    with pytest.warns(ov.OutvoteWarning, match=f"outvote.{old} is now outvote.{new}"):
        assert getattr(ov, old) is getattr(ov, new)
