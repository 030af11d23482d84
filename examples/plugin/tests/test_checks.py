"""The rule and the attack keep what all rules and attacks promise."""

import outvote as ov


def test_the_rule_passes_all_checks_alone_and_inside_gas() -> None:
    """By the names of the entry points: the package must be installed."""
    ov.check_rule(ov.make_rule("smallest-ball"))
    ov.check_rule(ov.make_rule("gas(smallest-ball, num_groups=4)"))


def test_the_attack_passes_all_checks() -> None:
    """With another scale than the default one, too."""
    ov.check_attack(ov.make_attack("reversed-mean"))
    ov.check_attack(ov.make_attack("reversed-mean(scale=0.5)"))
