"""Checks that any rule can be held to, ours or yours."""

from outvote.testing.conformance import CHECKS, ConformanceError, Failure, check_rule

__all__ = ["CHECKS", "ConformanceError", "Failure", "check_rule"]
