"""The table of `outvote stress`: what it measures, and that the attack on GAS deserves its name."""

import numpy as np
import pytest
import torch

import outvote as ov
from outvote.attacks.attack_spec import ATTACKS
from outvote.cli.stress import LEFT_OUT, default_attacks, default_rules
from outvote.rules.rule_spec import RULES
from outvote.testing.stress import (
    Cell,
    Stress,
    SyntheticGradients,
    draw_round,
    stress,
)

SMALL = SyntheticGradients(num_clients=20, num_byzantine=4, dim=400)
GAS_FORMS = [text for text in default_rules(20) if text.startswith("gas(")]
SLOW_INSIDE = ("mda", "bulyan", "dnc", "geometric-median")


def is_slow(text):
    return any(name in text for name in SLOW_INSIDE)


class Failing(ov.Attack):
    def craft(self, context):
        raise RuntimeError("no\nidea")


class FailingRule(ov.VectorRule):
    def max_byzantine(self, num_clients):
        return num_clients

    def aggregate(self, rows, num_byzantine):
        raise RuntimeError("out of order")


def test_gradients_have_the_documented_norms_and_depend_on_the_seed_alone():
    recipe = SyntheticGradients(
        num_clients=200, num_byzantine=50, dim=10_000, heterogeneity=3, noise=0.5
    )
    honest, own = draw_round(recipe)
    assert (honest.shape, own.shape) == ((150, 10_000), (50, 10_000))
    assert torch.equal(honest, draw_round(recipe)[0])
    common = torch.cat([honest, own]).mean(dim=0)
    lengths = (honest - common).norm(dim=1)
    # A shift of 3 * uniform(0.5, 1.5), and noise of 0.5.
    assert lengths.min() > 1.4
    assert lengths.max() < 4.8
    assert abs(float(lengths.square().mean()) - (9 * 13 / 12 + 0.25)) < 0.5


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_clients", 0),
        ("num_byzantine", -1),
        ("num_byzantine", 50),
        ("dim", 0),
        ("seed", -1),
        ("heterogeneity", float("nan")),
        ("noise", -1.0),
    ],
)
def test_parameters_out_of_range_are_refused(field, value):
    with pytest.raises(ValueError, match=field):
        SyntheticGradients(**{field: value})


def test_a_cell_is_the_relative_distance_of_the_update_to_the_honest_mean():
    honest, own = (rows.double().numpy() for rows in draw_round(SMALL))
    table = stress([ov.Mean(), ov.Median()], [ov.LIE(), ov.BitFlip()], SMALL)
    mean = honest.mean(0)
    sent = {
        "lie": np.repeat([mean - 1.5 * honest.std(0)], 4, axis=0),
        "bit-flip": -own,
    }
    for rule, answer in {"mean": np.mean, "median": np.median}.items():
        for attack, rows in sent.items():
            update = answer(np.concatenate([honest, rows]), axis=0)
            error = np.linalg.norm(update - mean) / np.linalg.norm(mean)
            assert table.cell(attack, rule).error == pytest.approx(error, rel=1e-4)


def test_the_worst_attack_and_the_safest_rule_are_found():
    def cell(attack, rule, error):
        return Cell(attack=attack, rule=rule, error=error)

    cells = (
        cell("a", "r", 1.0),
        cell("b", "r", 3.0),
        cell("a", "s", 2.0),
        cell("b", "s", 0.0),
        cell("a", "t", 0.1),
        Cell(attack="b", rule="t", failure="no"),
        cell("a", "u", 0.0),
        cell("b", "u", float("nan")),
    )
    table = Stress(gradients=SMALL, attacks=("a", "b"), rules=("r", "s", "t", "u"), cells=cells)
    assert [table.worst(rule).attack for rule in "rstu"] == ["b", "a", "a", "b"]
    assert table.safest() == cells[2]


def test_a_failure_is_one_line_and_the_other_cells_go_on():
    table = stress([ov.Median(), FailingRule()], [Failing(), ov.LIE()], SMALL)
    assert table.cell("Failing", "median").failure == "RuntimeError: no idea"
    assert table.cell("lie", "FailingRule").failure == "RuntimeError: out of order"
    assert table.cell("lie", "median").error > 0


def test_the_same_seed_gives_the_same_table_and_order_does_not_matter():
    rules = [ov.make_rule("gas(median, num_groups=9)"), ov.Krum()]
    attacks = [ov.make_attack(text) for text in ("gaussian", "ipm", "gas-aware(draws=2)")]
    one = stress(rules, attacks, SMALL)
    other = stress(rules[::-1], attacks[::-1], SMALL)
    for cell in one.cells:
        assert other.cell(cell.attack, cell.rule) == cell


def test_by_default_every_rule_takes_part_and_every_attack_that_can():
    words = " ".join(default_rules(20)).replace("(", " ").replace(",", " ").replace(")", " ")
    assert set(RULES) <= set(words.split())
    assert {text.split("(")[0] for text in default_attacks()} | set(LEFT_OUT) == set(ATTACKS)


def assert_gas_aware_is_strongest(rule, gradients):
    names = ("lie", "ipm", "min-max", "gas-aware(draws=4, steps=5)")
    attacks = [ov.make_attack(name) for name in names]
    table = stress([ov.make_rule(rule)], attacks, gradients, num_servers=4)
    *plain, aware = [cell.error for cell in table.cells]
    assert aware >= max(plain), table.cells


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param(text, marks=[pytest.mark.slow] * (k % 3 > 0))
        for k, text in enumerate(text for text in GAS_FORMS if not is_slow(text))
    ],
)
def test_gas_aware_is_at_least_as_strong_as_the_others_against_gas(rule):
    assert_gas_aware_is_strongest(rule, SMALL)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rule", default_rules(50)[-len(GAS_FORMS) :])
def test_gas_aware_is_at_least_as_strong_at_full_size(rule, seed):
    assert_gas_aware_is_strongest(rule, SyntheticGradients(seed=seed))
