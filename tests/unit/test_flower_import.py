"""Without Flower everything else works, and outvote.flower names what to install."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import outvote.flower

BLOCK = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "flwr":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Block())
"""


# First the rest, then Flower's part, in one process: torch takes seconds to load.
CODE = """
import outvote as ov
print(ov.make_rule("gas(median)")([[1.0], [2.0], [3.0]], num_byzantine=1))
import outvote.cli, outvote.experiment.runner, outvote.results.audit_log
print(any(name.startswith("flwr") for name in sys.modules))
import outvote.flower
"""


@pytest.fixture(scope="module")
def done():
    """The output of a program without Flower, and how it ends."""
    return subprocess.run(
        [sys.executable, "-c", BLOCK + CODE], capture_output=True, text=True, check=False
    )


def test_without_flower_the_rest_works(done):
    update, has_flower = done.stdout.splitlines()
    assert update.startswith("[")
    assert has_flower == "False"


def test_without_flower_the_error_has_the_exact_line_to_install_it(done):
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1] == (
        "ImportError: outvote.flower needs Flower 1.41 or newer; run: pip install 'outvote[flower]'"
    )


def test_the_way_of_a_round_names_every_module():
    named = set(re.findall(r"(?<!`)`([a-z_]+)`(?!`)", outvote.flower.__doc__))
    modules = {path.stem for path in Path(outvote.flower.__file__).parent.glob("[a-z]*.py")}
    assert named == modules
