"""The tool that compiles kernels for a GPU that is not here; Triton itself is not needed here."""

import importlib.util
from pathlib import Path

import pytest

import outvote as ov
from outvote.ops import matrix_kernels
from outvote.rules.rule_spec import RULES

TOOL = Path(__file__).parents[2] / "tools" / "compile_kernels.py"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("compile_kernels", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_rule_is_compiled(tool):
    made = [ov.make_rule(name) for name in tool.all_rules()]
    assert {rule.name for rule in made} == set(RULES)
    inside = {rule.rule.name for rule in made if rule.name == "gas"}
    assert {"krum", "multi-krum", "median", "bulyan", "dnc", "rfa"} <= inside


def test_what_the_tool_replaces_is_there(tool):
    assert callable(matrix_kernels.select_one_by_one)
    assert callable(tool.aggregation.new_check)
    assert hasattr(tool.row_facts._LAST, "were_usual")
    for module in (tool.receive, tool.row_facts, tool.distances):
        assert callable(module.listed_later)
