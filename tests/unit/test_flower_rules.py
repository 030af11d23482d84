"""Every rule, with its documented options, does in a Flower server what it does in the library."""

import numpy as np
import pytest

import outvote as ov
from bad_replies import arrays_of, honest, record_of, run_round
from every_rule import EVERY_RULE, cases
from flower_small import MODEL, NODES, grid_of, strategy_of
from outvote.flower.node_sampling import derive_seed
from outvote.results.audit_log import read_audit
from outvote.rules.majority import tolerated

SEED = 5
BY_LAYER = [f"gas({rule}, split=by-layer)" for rule in ("median", "krum", "nnm(trimmed-mean)")]
BY_LAYER += ["gas(krum, num_groups=5, split=by-layer-random)"]


def train_on_server(_round, model):
    return record_of({name: array + 1 for name, array in arrays_of(model).items()})


def updates_from(model):
    return [
        {name: array - model[name] for name, array in honest(node, MODEL).items()} for node in NODES
    ]


@pytest.mark.parametrize("text", cases([*EVERY_RULE, *BY_LAYER]))
def test_two_rounds_in_flower_are_two_calls_of_the_rule(text, tmp_path):
    rule = ov.make_rule(text)
    num_byzantine = min(2, tolerated(rule, len(NODES)))
    is_fltrust = text == "fltrust"
    strategy = strategy_of(
        rule,
        num_byzantine,
        tmp_path,
        seed=SEED,
        reference=train_on_server if is_fltrust else None,
    )
    model, expected, state = record_of(MODEL), MODEL, None
    for number in (1, 2):
        verdict = rule.inspect(
            updates_from(expected),
            num_byzantine=num_byzantine,
            seed=derive_seed(SEED, f"rule {number}"),
            clients=[str(node) for node in NODES],
            state=state,
            reference={name: (array + 1) - array for name, array in expected.items()}
            if is_fltrust
            else None,
        )
        state = verdict.state if rule.traits.has_state else None
        expected = {name: array + verdict.update[name] for name, array in expected.items()}
        model, _ = run_round(strategy, grid_of(honest), model, number)
        for name, array in arrays_of(model).items():
            np.testing.assert_array_equal(array, expected[name])
        entry = read_audit(tmp_path)[-1]
        if verdict.kept is not None:
            assert [each.client for each in entry.clients if each.kept] == verdict.kept
        scores = [np.inf if each.score is None else each.score for each in entry.clients]
        np.testing.assert_array_equal(scores, verdict.scores)
    strategy.close()
