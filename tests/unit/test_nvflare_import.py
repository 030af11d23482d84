"""Without NVIDIA FLARE everything else works, and outvote.nvflare names what to install."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import outvote

FOLDER = Path(outvote.__file__).parent / "nvflare"
CODE = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "nvflare":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Block())
import outvote as ov
print(ov.make_rule("gas(median)")([[1.0], [2.0], [3.0]], num_byzantine=1))
import outvote.nvflare
"""


@pytest.fixture(scope="module")
def done():
    """The output of a program without NVIDIA FLARE, and how it ends."""
    return subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)


def test_without_nvflare_the_rest_works(done):
    assert done.stdout.startswith("[")


def test_without_nvflare_the_error_has_the_exact_line_to_install_it(done):
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1] == (
        "ImportError: outvote.nvflare needs NVIDIA FLARE 2.9 or newer; "
        "run: pip install 'outvote[nvflare]'"
    )


def test_the_package_names_every_module():
    named = re.findall(r"(?<!`)`([a-z_]+)`(?!`)", (FOLDER / "__init__.py").read_text())
    assert set(named) == {path.stem for path in FOLDER.glob("[a-z]*.py")}
