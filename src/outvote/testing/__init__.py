"""Checks that any rule or attack can be held to, ours or yours."""

from outvote.testing.conformance import (
    ATTACK_CHECKS,
    CHECKS,
    ConformanceError,
    Failure,
    check_attack,
    check_rule,
)
from outvote.testing.worst_case import WorstCase, worst_case

__all__ = [
    "ATTACK_CHECKS",
    "CHECKS",
    "ConformanceError",
    "Failure",
    "WorstCase",
    "check_attack",
    "check_rule",
    "worst_case",
]
