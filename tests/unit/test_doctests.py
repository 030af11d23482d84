"""The examples in the docstrings hold."""

import doctest
import importlib
import pkgutil
from importlib.util import find_spec

import numpy as np
import pytest

import outvote

# What cannot be imported has no modules: each is tested where its extra is installed.
HAS_NVFLARE = find_spec("nvflare") is not None
MODULES = [
    module.name
    for module in pkgutil.walk_packages(outvote.__path__, "outvote.", onerror=lambda _: None)
    if ".ops.triton" not in module.name  # They need Triton.
    if HAS_NVFLARE or not module.name.startswith("outvote.nvflare")
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_hold(name):
    with np.printoptions(legacy=False):
        found = doctest.testmod(importlib.import_module(name))
    assert found.failed == 0


def test_every_rule_has_an_example():
    from outvote.rules.rule_spec import RULES

    assert [name for name, rule in RULES.items() if ">>>" not in (rule.__doc__ or "")] == []
