"""The rule and the attack do what the simulator expects."""

import outvote as ov
import torch

from my_attack import MyAttack
from my_rule import MyRule


def test_the_rule_passes_the_checks_of_the_rules_of_outvote() -> None:
    """Also inside GAS: on each of several groups of coordinates."""
    ov.check_rule(MyRule())
    ov.check_rule(ov.GAS(MyRule(), num_groups=4))


def test_the_rule_drops_the_client_that_is_far_away() -> None:
    """Write such tests for what is special about your rule."""
    rows = torch.tensor([[1.0, 1.0], [1.1, 0.9], [0.9, 1.1], [50.0, 50.0]])
    assert MyRule().inspect(rows, num_byzantine=1).dropped == [3]


def test_the_attack_passes_the_checks_of_the_attacks_of_outvote() -> None:
    """Shapes, randomness, many runs at once, honest clients that diverged."""
    ov.check_attack(MyAttack())
