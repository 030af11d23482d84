"""README and first pages are correct: code runs, commands print what is shown, trees are whole."""

import re
import runpy
import shlex

import click
import numpy as np
import pytest
from safetensors.numpy import save_file

from command_line import run
from doc_pages import (
    IN_ORDER,
    ROOT,
    blocks,
    every_command,
    expected_output,
    paths_of_tree,
    python_blocks,
    shown_commands,
    squeezed,
)
from outvote.attacks.attack_spec import make_attack
from outvote.experiment.plan import read_plan
from outvote.rules.rule_spec import make_rule

README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = {page: shown_commands(page) for page in IN_ORDER}
EVERY_COMMAND = [(page, command) for page, shown in COMMANDS.items() for command in shown]
NEEDS = {"docs/tutorial/4-flower.md": "flwr", "docs/how-to/clusters.md": "submitit"}
# The first is printed on another page too.
SLOW_COMMANDS = [
    (page, command)
    for page, command in EVERY_COMMAND
    if (page, command) == ("docs/how-to/reproduce.md", "list suites")
    or (command.startswith("stress") and "gas-aware" in command)
]
SLOW = ("docs/how-to/clusters.md", "docs/tutorial/2-simulate.md")
TREE = "docs/reference/tree.md"


def tree():
    """The paths of the tree, folders included."""
    text = (ROOT / TREE).read_text(encoding="utf-8")
    return paths_of_tree(next(t for _, t in blocks(text) if t.startswith("src/outvote/")))


def with_verbs(*verbs):
    return [each for each in EVERY_COMMAND if each[1].split()[0] in verbs]


@pytest.fixture
def updates(tmp_path, monkeypatch):
    """The folder that is aggregated: four honest clients, a Byzantine one, a broken one."""
    random = np.random.default_rng(0)
    honest = 1 + 0.1 * random.standard_normal((4, 1000), dtype=np.float32)
    rows = [*honest, -2 * honest.mean(0), np.full(1000, np.nan, np.float32)]
    (tmp_path / "updates").mkdir()
    for name, row in zip(["ann", "bob", "cyd", "dan", "eve", "fay"], rows, strict=True):
        save_file({"weight": row}, tmp_path / "updates" / f"{name}.safetensors")
    monkeypatch.chdir(tmp_path)


def assert_prints_as_shown(capsys, page, command):
    result = run(capsys, *shlex.split(command))
    assert result.code == 0, result.err
    printed = [squeezed(line) for line in result.out.splitlines()]
    for line in COMMANDS[page][command]:
        assert line in printed


def run_page(page, folder, monkeypatch, capsys):
    """Execute the code of a page as one program, in a folder that has the examples."""
    pytest.importorskip(NEEDS.get(page, "numpy"))
    monkeypatch.chdir(folder)
    (folder / "examples").symlink_to(ROOT / "examples")
    names: dict[str, object] = {"__name__": "page"}
    for text in python_blocks(page):
        exec(compile(text, page, "exec"), names)
    assert capsys.readouterr().out.splitlines() == expected_output(page)


@pytest.mark.parametrize("page", [page for page in IN_ORDER if page not in SLOW])
def test_the_code_of_a_page_runs_and_prints_what_is_shown(page, tmp_path, monkeypatch, capsys):
    run_page(page, tmp_path, monkeypatch, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("page", SLOW)
def test_the_code_of_a_slow_page_runs(page, tmp_path, monkeypatch, capsys):
    run_page(page, tmp_path, monkeypatch, capsys)


@pytest.mark.parametrize(
    ("page", "command"),
    [
        pytest.param(*each, marks=[pytest.mark.slow] * (each in SLOW_COMMANDS))
        for each in with_verbs("list", "show", "plan", "doctor", "stress")
    ],
)
def test_commands_without_side_effects_print_what_is_shown(capsys, monkeypatch, page, command):
    monkeypatch.chdir(ROOT)
    assert_prints_as_shown(capsys, page, command)


@pytest.mark.usefixtures("updates")
@pytest.mark.parametrize(("page", "command"), with_verbs("aggregate"))
def test_aggregate_prints_what_is_shown(capsys, page, command):
    assert_prints_as_shown(capsys, page, command)


def parsed(command):
    """The options and words of a command, as the program parses them."""
    from outvote.cli.app import program

    name, *rest = shlex.split(command)
    context = click.Context(program)
    verb = program.get_command(context, name)
    assert verb is not None, name
    if isinstance(verb, click.Group):
        verb, rest = verb.get_command(context, rest[0]), rest[1:]
        assert verb is not None, command
    given, left, _ = verb.make_parser(click.Context(verb)).parse_args(rest)
    assert left == []
    return given


def test_commands_of_all_pages_are_found():
    found = every_command()
    assert len(found) > 90
    assert set(EVERY_COMMAND) - set(found) == set()


@pytest.mark.parametrize(("page", "command"), every_command())
def test_every_command_of_every_page_can_be_parsed(page, command):
    """With options, rules, attacks and settings that exist; it is not executed."""
    given = parsed(command)
    for key, texts in given.items():
        make = {"rule": make_rule, "attack": make_attack}.get(re.split("s?_|s$", key)[0])
        if make is not None:
            for text in [texts] if isinstance(texts, str) else texts:
                assert ".py:" in text or make(text)
    if command.startswith("run examples/"):
        settings = [each for each in given.get("settings") or () if ".py:" not in each]
        assert read_plan(ROOT / given["config"], settings).specs


@pytest.mark.slow
def test_demo_prints_what_is_shown(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(capsys, "demo")
    assert result.code == 0, result.err
    printed = {
        line.split()[0]: line.split()[1:] for line in result.out.splitlines() if line.strip()
    }
    shown = COMMANDS["docs/tutorial/index.md"]["demo"][2:]
    assert shown
    for line in shown:
        rule, *numbers = line.split()
        # Other processors round differently, and training amplifies it.
        found = [float(number) for number in printed[rule]]
        assert found == pytest.approx([float(number) for number in numbers], abs=15)


@pytest.mark.slow
def test_the_example_of_a_simulation_runs(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert "run examples/small.toml" in COMMANDS["README.md"]
    result = run(capsys, "run", "examples/small.toml", "--output", tmp_path)
    assert result.code == 0, result.err


def test_every_verb_is_shown_on_the_page_of_the_command_line():
    from outvote.cli.app import VERBS

    page = "docs/reference/command-line.md"
    assert {command.split()[0] for command in COMMANDS[page]} == set(VERBS)
    table = (ROOT / page).read_text(encoding="utf-8").split("\n**Exit codes**")[0]
    first = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert set(re.findall(r"`(\w+)`", " ".join(first))) == set(VERBS)


def test_the_rule_shown_is_the_rule_in_the_examples():
    shown = next(t for t in python_blocks("docs/tutorial/3-own-rule.md") if "class MyRule" in t)
    source = (ROOT / "examples" / "my_rule.py").read_text()
    body = shown[shown.index("        scores =") :]
    assert body in source


def test_the_attack_shown_is_the_attack_in_the_examples():
    shown = next(t for t in python_blocks("docs/tutorial/3-own-rule.md") if "class MyAttack" in t)
    source = (ROOT / "examples" / "my_attack.py").read_text()
    first, last = "        largest =", "        return ov.AttackOutput(rows=rows.unsqueeze(1))"
    assert shown[shown.index(first) : shown.index(last)] in source


def test_everything_in_the_tree_exists():
    assert [path for path in tree() if not (ROOT / path).exists()] == []


def test_every_package_is_in_the_tree():
    packages = {f"src/outvote/{path.parent.name}/" for path in ROOT.glob("src/outvote/*/*.py")}
    assert sorted(packages - set(tree())) == []


@pytest.mark.parametrize("kind", ["rule", "attack"])
def test_the_example_checks_itself(capsys, kind):
    runpy.run_path(str(ROOT / "examples" / f"my_{kind}.py"), run_name="__main__")
    assert f"My{kind.title()} passes all checks" in capsys.readouterr().out


def test_the_paper_and_the_version_are_cited_correctly():
    """The same names in the BibTeX of the README and in CITATION.cff, and this version."""
    from outvote import __version__

    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {__version__}\n" in citation
    title = re.search(r"^  title: (.*)$", citation, flags=re.MULTILINE)[1]
    assert f"title     = {{{title}}}" in README
    family = re.findall(r"family-names: (.*)$", citation, flags=re.MULTILINE)
    given = re.findall(r"given-names: (.*)$", citation, flags=re.MULTILINE)
    authors = " and ".join(f"{last}, {first}" for last, first in zip(family, given, strict=True))
    assert f"author    = {{{authors}}}" in README
