"""The cases of `test_ops` for the operations that rules use."""

from ops_case import Case

CASES: dict[str, Case] = {}
