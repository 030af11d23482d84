"""The names of `import outvote`: loaded when used, and public for type checkers too."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import outvote

USED = """
import outvote as ov
from outvote import GAS, LIE
from outvote.data import load
from outvote.testing import check_rule

update = GAS(ov.MultiKrum(), num_groups=10)([[1.0, 2.0], [1.0, 2.0]])
lie: ov.LIE = LIE(z=1.0)
check_rule(ov.Median())
"""


def shown_to_type_checkers():
    """The imports of the stub, by name."""
    tree = ast.parse(Path(outvote.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    found = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: (node.module, alias.asname) for node in found for alias in node.names}


def test_every_public_name_is_loaded_from_where_type_checkers_see_it():
    found = shown_to_type_checkers()
    assert sorted(found) == sorted(outvote.__all__)
    for name, (module, _) in found.items():
        assert getattr(outvote, name) is getattr(sys.modules[module], name)


def test_every_public_name_is_exported_in_so_many_words():
    # Without "as", strict type checkers refuse `ov.GAS`.
    assert {name for name, (_, shown) in shown_to_type_checkers().items() if shown != name} == set()


@pytest.mark.slow
def test_a_strict_type_checker_accepts_what_users_write(tmp_path):
    (tmp_path / "used.py").write_text(USED)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path, "used.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


def test_public_signatures_have_no_open_keywords():
    """Editors and notebooks complete every keyword."""
    found = []
    for name in dir(outvote):
        thing = getattr(outvote, name)
        calls = {name: thing} if callable(thing) and not issubclass(type(thing), type) else {}
        if isinstance(thing, type) and not issubclass(thing, Exception):
            calls |= {f"{name}()": thing} if "__dataclass_fields__" in vars(thing) else {}
            own = vars(thing) | vars(thing.__mro__[-2])
            calls |= {
                f"{name}.{key}": method
                for key, method in own.items()
                if (key == "__call__" or not key.startswith("_")) and inspect.isfunction(method)
            }
        for key, call in calls.items():
            kinds = {each.kind for each in inspect.signature(call).parameters.values()}
            if inspect.Parameter.VAR_KEYWORD in kinds:
                found.append(key)
    assert found == []
