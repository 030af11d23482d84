"""A plain call warns of what `inspect` notes, once."""

import warnings

import numpy as np
import pytest

import outvote as ov

X = np.random.default_rng(0).normal(size=(10, 5))
BAD = X.copy()
BAD[:2] = np.nan


@pytest.mark.parametrize(
    ("rule", "rows"),
    [(ov.MultiKrum(num_selected=9), BAD), (ov.GAS(ov.Median(), num_groups=999), X)],
)
def test_a_call_of_a_rule_warns_of_its_notes(rule, rows):
    notes = rule.inspect(rows, num_byzantine=2, seed=0).notes
    assert notes
    with pytest.warns(ov.OutvoteWarning) as caught:
        rule(rows, num_byzantine=2, seed=0)
    assert [str(one.message) for one in caught] == ["; ".join(notes)]
    assert caught[0].filename == __file__


def test_a_call_of_an_attack_warns_of_its_notes():
    with pytest.warns(ov.OutvoteWarning, match="2 honest clients sent NaN") as caught:
        ov.LIE()(BAD, num_byzantine=2)
    assert len(caught) == 1
    assert caught[0].filename == __file__


def test_an_attack_that_asks_a_rule_does_not_repeat_the_notes_of_the_rule():
    rule = ov.GAS(ov.Median(), num_groups=999)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ov.make_attack("optimal-lie")(X, num_byzantine=2, rule=rule, seed=0)
