"""Wheel and sdist: complete, and enough to use outvote outside of the checkout."""

import os
import re
import subprocess
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import outvote

ROOT = Path(__file__).parents[2]
MODULES = {path.relative_to(ROOT / "src") for path in (ROOT / "src").rglob("*.py")}
CODE = """
import outvote as ov
from outvote.data import load
print(ov.__file__)
print(ov.make_rule("gas(median, num_groups=2)")([[1.0, 1], [2, 2], [3, 9]], num_byzantine=1))
print(load("fashion-mnist-small").train_images.shape)
"""


def test_the_sdist_names_only_what_exists():
    """A short representative of the slow tests below."""
    text = (ROOT / "pyproject.toml").read_text()
    included = re.search(r"targets\.sdist\]\ninclude = \[(.*?)\]", text, flags=re.DOTALL)[1]
    paths = re.findall(r'"/(.*?)"', included)
    assert {"src", "tests", "docs", "scripts", "Makefile", "README.md"} <= set(paths)
    assert all((ROOT / path).exists() for path in paths)


def test_the_citation_has_this_version():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {outvote.__version__}\n" in citation


def call(*words, cwd, **options):
    """Run a program without what this environment adds."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env=environment | options,
        capture_output=True,
        text=True,
        check=False,
        timeout=1500,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder of wheel and sdist, and that of the wheel made from the sdist."""
    folder = tmp_path_factory.mktemp("build")
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    pip = [python, "-m", "pip", "install", "--quiet", "hatchling>=1.27"]
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("hatchling cannot be installed: no package index is reachable")
    call(python, "-m", "hatchling", "build", "-d", folder / "dist", cwd=ROOT)
    (sdist,) = (folder / "dist").glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "source", filter="data")
    (source,) = (folder / "source").iterdir()
    call(python, "-m", "hatchling", "build", "-t", "wheel", "-d", folder / "again", cwd=source)
    return folder


def members(folder):
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


@pytest.mark.slow
def test_the_wheel_has_every_module_and_the_sdist_makes_the_same(built):
    names = members(built / "dist")
    assert {path.as_posix() for path in MODULES} <= names
    assert all(name.startswith("outvote/") for name in names)
    assert "outvote/py.typed" in names
    assert names == members(built / "again")


@pytest.mark.slow
def test_the_sdist_has_what_a_checkout_has(built):
    (source,) = (built / "source").iterdir()
    for name in ("Makefile", "constraints-dev.txt", "scripts/newcomer.sh", "tests/conftest.py"):
        assert (source / name).is_file(), name


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """The folder of an environment with the wheel and what it needs, outside of the checkout."""
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder / "venv", with_pip=True)
    (wheel,) = (built / "dist").glob("*.whl")
    pip = [folder / "venv" / "bin" / "python", "-m", "pip"]
    call(*pip, "install", "--quiet", "-c", ROOT / "constraints-dev.txt", wheel, cwd=folder)
    call(*pip, "check", cwd=folder)
    return folder


@pytest.mark.slow
def test_the_wheel_works_in_a_clean_environment(installed):
    lines = call(installed / "venv" / "bin" / "python", "-W", "error", "-c", CODE, cwd=installed)
    path, update, shape = lines.splitlines()
    assert Path(path).is_relative_to(installed / "venv")
    assert update == "[1.5 1.5]"
    assert shape == "(6000, 28, 28, 1)"


@pytest.mark.slow
def test_the_program_works_in_a_clean_environment(installed):
    program = installed / "venv" / "bin" / "outvote"
    assert "gas" in call(program, "list", "rules", cwd=installed)
    words = ["--set", "rounds=1", "--set", 'rule=["mean", "gas(krum)"]', "-o", "runs"]
    shown = call(program, "demo", *words, cwd=installed, COLUMNS="200")
    assert "gas(krum)" in shown
    assert (installed / "runs" / "demo" / "report.html").stat().st_size > 10_000
    assert "gas(krum)" in call(program, "table", "runs/demo", cwd=installed, COLUMNS="200")
    call(program, "audit", "runs/demo", cwd=installed)
    call(program, "new", "mine", cwd=installed)
    assert list((installed / "mine").rglob("*.py"))


@pytest.mark.slow
def test_development_tools_are_no_part_of_the_core(installed):
    """What `make demo` installs; it took minutes when it installed every tool."""
    listed = call(installed / "venv" / "bin" / "python", "-m", "pip", "freeze", cwd=installed)
    names = {line.split("==")[0].split(" @ ")[0].lower() for line in listed.splitlines()}
    assert {"outvote", "torch", "click"} <= names
    assert not names & {
        "pytest",
        "mypy",
        "ruff",
        "flwr",
        "nvflare",
        "pandas",
        "matplotlib",
        "scipy",
    }
    assert len(names) < 30


def test_the_demo_installs_the_core_alone():
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(r"^demo: \$\(CORE_STAMP\)", makefile, flags=re.MULTILINE)
    recipe = makefile.split("$(CORE_STAMP): ")[1].split("\n\n")[0]
    assert "$(PIP_INSTALL) -e .\n" in recipe
    assert "dev" not in recipe.split("\n", 1)[1]
