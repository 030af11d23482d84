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


def test_a_rule_of_0_1_that_draws_and_asks():
    with pytest.warns(ov.OutvoteWarning, match="is a rule for outvote 0.1") as caught:

        class Old(ov.Rule):
            hides_shares = True

            def max_byzantine(self, num_clients):
                return 0

            def must_be_told(self):
                return False

            def is_selecting(self):
                return False

            def needs_values(self):
                return False

            def answer(self, points, facts):
                drawn = facts.draws.under("mine").generators(points.device)
                weights = torch.rand(1, points.num_clients, generator=drawn[0]).double()
                assert facts.wants_shares
                return ov.Aggregation(weights=weights / weights.sum())

    assert len(caught) == 1
    traits = Old().traits
    found = (traits.uses_num_byzantine, traits.selects_clients, traits.needs_values)
    assert found == (False, False, False)
    with pytest.warns(ov.OutvoteWarning) as caught:
        assert Old().inspect(X, seed=0).kept == list(range(7))
    texts = " ".join(str(one.message) for one in caught)
    for new in ("RoundInfo.stream", "stream.fold_in", "RoundInfo.wants_weights"):
        assert f"is now {new}; the old name goes with 0.3." in texts


def test_an_attack_of_0_1_that_draws_and_asks():
    with pytest.warns(ov.OutvoteWarning, match="Old.has_memory is now has_state"):

        class Old(ov.Attack):
            has_memory = True

            def needs_rule(self):
                return True

            def craft(self, scene):
                assert not scene.own_places.any()
                generator = scene.draws.under("mine").generators(scene.device)[0]
                rows = torch.randn(1, 1, scene.dim, generator=generator).double()
                found = scene.judge(rows, "ask")
                assert found.is_kept is None
                return ov.AttackOutput(rows=found.updates.unsqueeze(1), is_fresh=True, state=1)

    with pytest.warns(ov.OutvoteWarning) as caught:
        assert Old()(X, num_byzantine=2, rule=ov.Mean(), seed=0).shape == (2, 5)
    texts = " ".join(str(one.message) for one in caught)
    for new in ("stream", "own_positions", "ask"):
        assert f"is now AttackContext.{new}; the old name goes with 0.3." in texts
    assert "is_fresh" in texts


def test_the_names_of_0_1_are_found_on_classes_and_attacks():
    with pytest.warns(ov.OutvoteWarning, match="Krum.uses_num_byzantine is now traits"):
        assert ov.Krum.uses_num_byzantine
    with pytest.warns(ov.OutvoteWarning, match="Krum.must_be_told is now traits"):
        assert ov.Krum().must_be_told()
    with pytest.warns(ov.OutvoteWarning, match="LIE.has_memory is now has_state"):
        assert not ov.LIE().has_memory
    with pytest.warns(ov.OutvoteWarning, match="LabelFlip.is_data_attack is now poisons_data"):
        assert ov.LabelFlip.is_data_attack
    with pytest.raises(AttributeError):
        _ = ov.GAS.uses_num_byzantine


def test_a_required_field_called_as_an_attribute_of_0_1_stays_required():
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class Own(ov.Mean):
        reference: str

    with pytest.raises(TypeError, match="reference"):
        Own()
