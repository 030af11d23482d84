"""Checks that any rule, attack or model can be held to, ours or yours."""

from outvote.testing.conformance import (
    ATTACK_CHECKS,
    CHECKS,
    ConformanceError,
    Failure,
    check_attack,
    check_rule,
)
from outvote.testing.model_check import ModelCheck, check_model
from outvote.testing.worst_case import WorstCase, worst_case

__all__ = [
    "ATTACK_CHECKS",
    "CHECKS",
    "ConformanceError",
    "Failure",
    "ModelCheck",
    "WorstCase",
    "check_attack",
    "check_model",
    "check_rule",
    "worst_case",
]
