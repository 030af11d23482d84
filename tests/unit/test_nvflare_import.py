"""Without NVIDIA FLARE everything else works; the page of outvote.nvflare agrees with the code."""

import ast
import json
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


PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "nvflare.md").read_text()


def test_the_settings_on_the_page_are_those_of_the_aggregator():
    """Read from the source: the class itself needs NVIDIA FLARE."""
    tree = ast.parse((FOLDER / "aggregator.py").read_text())
    (cls,) = [each for each in tree.body if isinstance(each, ast.ClassDef)]
    (init,) = [each for each in cls.body if getattr(each, "name", "") == "__init__"]
    defaults = [ast.unparse(each) for each in init.args.defaults]
    names = [each.arg for each in init.args.args[1:]]
    rows = re.findall(r"^\| `(\w+)` \| `(.*?)` \|", PAGE, flags=re.MULTILINE)
    assert rows == list(zip(names, defaults, strict=True))


def test_the_code_of_the_page_builds_a_job(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    compile(code, "nvflare.md", "exec")
    pytest.importorskip("nvflare", reason="no NVIDIA FLARE: the code is compiled only")
    names = {}
    exec(code, names)
    names["job"].export_job(str(tmp_path))
    (path,) = tmp_path.glob("robust/*/config/config_fed_server.json")
    (workflow,) = json.loads(path.read_text())["workflows"]
    assert workflow["args"]["aggregator"] == {
        "path": "outvote.nvflare.aggregator.RobustAggregator",
        "args": {"num_byzantine": 2},
    }
