"""The README is correct: its code runs, its commands print what is shown, its tree is complete."""

import re
import runpy
import shlex
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from command_line import run
from outvote.rules.rule import Wrapper
from outvote.rules.rule_spec import RULES

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
PYTHON = [text for kind, text in BLOCKS if kind == "python"]
PROMPT = "$ outvote "


def commands():
    """Every command shown, with the lines of output shown below it."""
    for text in (text for kind, text in BLOCKS if kind == "console"):
        for shown in text.split(PROMPT)[1:]:
            command, _, output = shown.partition("\n")
            yield command, [squeezed(line) for line in output.splitlines()]


def squeezed(line):
    return " ".join(line.split())


COMMANDS = dict(commands())


def tree():
    """The paths of the tree, folders included."""
    text = next(text for _, text in BLOCKS if text.startswith("src/outvote/"))
    folders: dict[int, str] = {}
    for line in text.splitlines():
        name = line.split()[0]
        indent = len(line) - len(line.lstrip())
        parent = "" if indent == 0 else folders[indent - 2]
        folders[indent] = parent + name
        yield parent + name


@pytest.fixture
def updates(tmp_path, monkeypatch):
    """The folder that the README aggregates: four honest clients, a Byzantine one, a broken one."""
    random = np.random.default_rng(0)
    honest = 1 + 0.1 * random.standard_normal((4, 1000), dtype=np.float32)
    rows = [*honest, -2 * honest.mean(0), np.full(1000, np.nan, np.float32)]
    (tmp_path / "updates").mkdir()
    for name, row in zip(["ann", "bob", "cyd", "dan", "eve", "fay"], rows, strict=True):
        save_file({"weight": row}, tmp_path / "updates" / f"{name}.safetensors")
    monkeypatch.chdir(tmp_path)


def assert_prints_as_shown(capsys, command):
    result = run(capsys, *shlex.split(command))
    assert result.code == 0, result.err
    printed = [squeezed(line) for line in result.out.splitlines()]
    for line in COMMANDS[command]:
        assert line in printed


def test_every_python_block_runs_and_prints_its_comments(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    names: dict[str, object] = {}
    for text in PYTHON:
        exec(compile(text, "README.md", "exec"), names)
        shown = re.findall(r"^ *print\(.*\)  # (.*)$", text, flags=re.MULTILINE)
        assert capsys.readouterr().out.splitlines() == shown


def test_the_first_example_has_ten_statements_or_fewer():
    lines = [line for line in PYTHON[0].splitlines() if line.strip()]
    assert len([line for line in lines if not line.startswith("import ")]) <= 10


@pytest.mark.parametrize(
    "command", [c for c in COMMANDS if c.split()[0] in ("list", "show", "plan", "doctor", "stress")]
)
def test_every_command_without_side_effects_prints_what_is_shown(capsys, monkeypatch, command):
    monkeypatch.chdir(ROOT)
    assert_prints_as_shown(capsys, command)


@pytest.mark.usefixtures("updates")
@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("aggregate")])
def test_aggregate_prints_what_is_shown(capsys, command):
    assert_prints_as_shown(capsys, command)


@pytest.mark.slow
def test_demo_prints_what_is_shown(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(capsys, "demo")
    assert result.code == 0, result.err
    printed = {
        line.split()[0]: line.split()[1:] for line in result.out.splitlines() if line.strip()
    }
    for line in COMMANDS["demo"][2:]:
        rule, *numbers = line.split()
        # Other processors round differently, and training amplifies it.
        found = [float(number) for number in printed[rule]]
        assert found == pytest.approx([float(number) for number in numbers], abs=15)


@pytest.mark.slow
def test_the_example_of_a_simulation_runs(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    result = run(capsys, "run", "examples/small.toml", "--output", tmp_path)
    assert result.code == 0, result.err


def test_every_verb_is_shown():
    from outvote.cli.app import VERBS

    assert {command.split()[0] for command in COMMANDS} == set(VERBS)


def test_the_rule_shown_is_the_rule_in_the_examples():
    shown = next(text for text in PYTHON if "class MyRule" in text)
    source = (ROOT / "examples" / "my_rule.py").read_text()
    body = shown[shown.index("        scores =") :]
    assert body in source


def test_the_attack_shown_is_the_attack_in_the_examples():
    shown = next(text for text in PYTHON if "class MyAttack" in text)
    source = (ROOT / "examples" / "my_attack.py").read_text()
    first, last = "        largest =", "        return ov.AttackOutput(rows=rows.unsqueeze(1))"
    assert shown[shown.index(first) : shown.index(last)] in source


def test_the_number_of_attacks_is_correct():
    from outvote.attacks.attack_spec import ATTACKS

    shown = re.search(r"\[(\d+) attacks\]", README)
    assert shown is not None
    assert int(shown[1]) == len(ATTACKS)


def test_the_number_of_rules_is_correct():
    wrappers = [kind for kind in RULES.values() if issubclass(kind, Wrapper)]
    shown = re.search(r"(\d+) rules and (\d+) wrappers", README)
    assert shown is not None
    assert [int(shown[1]), int(shown[2])] == [len(RULES) - len(wrappers), len(wrappers)]


def test_everything_in_the_tree_exists():
    assert [path for path in tree() if not (ROOT / path).exists()] == []


def test_every_package_is_in_the_tree():
    packages = {f"src/outvote/{path.parent.name}/" for path in ROOT.glob("src/outvote/*/*.py")}
    assert sorted(packages - set(tree())) == []


def test_the_page_of_all_files_agrees_with_the_files():
    made = runpy.run_path(str(ROOT / "tools" / "make_tree.py"))["page"]()
    page = (ROOT / "docs" / "tree.md").read_text(encoding="utf-8")
    assert page == made, "run python tools/make_tree.py"
    packages = {path.parent.name for path in ROOT.glob("src/outvote/*/*.py")}
    assert all(f"## src/outvote/{name}" in page for name in packages)


@pytest.mark.parametrize("kind", ["rule", "attack"])
def test_the_example_checks_itself(capsys, kind):
    runpy.run_path(str(ROOT / "examples" / f"my_{kind}.py"), run_name="__main__")
    assert f"My{kind.title()} passes all checks" in capsys.readouterr().out
