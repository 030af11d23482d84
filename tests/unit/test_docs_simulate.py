"""docs/how-to/simulate.md is correct: every preset, every file, and its code runs."""

import re
import tomllib
from pathlib import Path

import pytest

from outvote.experiment.plan import make_plan
from outvote.suites.presets import PRESETS
from simulations import execute, tiny

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "simulate.md").read_text()


def block(kind: str) -> str:
    return re.search(rf"^```{kind}\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)[1]


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_named(preset):
    assert f"`{preset}`" in PAGE


def test_the_first_example_has_the_stated_number_of_runs():
    assert "3 rules × 2 attacks = 6 runs" in PAGE
    assert len(make_plan(tomllib.loads(block("toml"))).specs) == 6
    assert (ROOT / "examples" / "small.toml").read_text() == block("toml")


def test_every_file_of_a_run_is_listed_and_the_code_reads_them(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    execute(tiny("rounds=1"), tmp_path / "runs")
    folder = next((tmp_path / "runs").glob("*/*"))
    for path in folder.iterdir():
        assert path.name.startswith(".") or f"`{path.name}`" in PAGE
    exec(compile(block("python"), "simulate.md", "exec"), {})
    assert capsys.readouterr().out.startswith(folder.name)
