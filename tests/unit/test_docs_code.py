"""Code and commands on pages: the code runs, and commands print what is shown."""

import json
import re
import runpy
import shlex
import tomllib

import click
import numpy as np
import pytest
from safetensors.numpy import save_file

import outvote as ov
from command_line import run
from doc_pages import (
    IN_ORDER,
    PAGES,
    ROOT,
    blocks,
    every_command,
    expected_output,
    python_blocks,
    shown_commands,
    squeezed,
)
from made_results import made_results, write_store
from outvote.attacks.attack_spec import make_attack
from outvote.experiment.plan import plan_suite, read_plan
from outvote.results.export import to_export
from outvote.rules.rule_spec import make_rule
from outvote.suites.suite import make_suite
from simulations import execute, tiny

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


@pytest.mark.parametrize("kind", ["rule", "attack"])
def test_the_example_checks_itself(capsys, kind):
    runpy.run_path(str(ROOT / "examples" / f"my_{kind}.py"), run_name="__main__")
    assert f"My{kind.title()} passes all checks" in capsys.readouterr().out


OTHERS = ("compare", "nvflare", "read-results", "simulate-from-python")
"""Pages whose code is executed by a test file of their own."""
ALONE = ("bench", "extend", "results", "simulate")
"""Pages whose code needs what the tests below make."""
RUNNABLE = [
    page
    for page in PAGES
    if page.name != "CHANGELOG.md"
    and page.stem not in (*OTHERS, *ALONE)
    and page.relative_to(ROOT).as_posix() not in IN_ORDER
]


@pytest.mark.parametrize("page", RUNNABLE, ids=lambda page: page.stem)
def test_code_on_the_other_pages_runs_block_by_block(page):
    for text in python_blocks(page):
        exec(compile(text, str(page), "exec"), {})


def only_block(page, kind):
    """The first block of a kind."""
    return next(t for _, t in blocks((ROOT / page).read_text(encoding="utf-8"), kind))


def test_the_suite_of_a_page_has_a_run_for_each_rule_beta_and_seed():
    suite = make_suite("mine", tomllib.loads(only_block("docs/how-to/bench.md", "toml")))
    assert len(plan_suite(suite).specs) == 2 * 3 * 3


def test_the_code_that_makes_a_suite_prints_what_is_shown(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = only_block("docs/how-to/bench.md", "python")
    exec(compile(text, "bench.md", "exec"), {"__name__": "page"})
    assert capsys.readouterr().out.strip() == text.rpartition("# ")[2].strip()


def test_the_file_of_the_page_is_the_example_and_its_code_reads_a_run(
    tmp_path, monkeypatch, capsys
):
    page = "docs/how-to/simulate.md"
    assert (ROOT / "examples" / "small.toml").read_text() == only_block(page, "toml")
    monkeypatch.chdir(tmp_path)
    execute(tiny("rounds=1"), tmp_path / "runs")
    folder = next((tmp_path / "runs").glob("*/*"))
    exec(compile(only_block(page, "python"), page, "exec"), {})
    assert capsys.readouterr().out.startswith(folder.name)


def test_the_code_that_reads_results_reads_folders_and_exports(tmp_path, monkeypatch, capsys):
    write_store(tmp_path / "runs", {"rule": "mean", "attack": "lie"}, seeds=1, rounds=2)
    other = made_results({"rule": "median", "attack": "lie"}, seeds=1, rounds=2)
    (tmp_path / "other.csv.gz").write_bytes(to_export(other))
    monkeypatch.chdir(tmp_path)
    exec(compile(only_block("docs/how-to/results.md", "python"), "results.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:4] for line in lines] == [
        ["own", "mean", "lie", "0"],
        ["own", "median", "lie", "0"],
    ]


EXTEND = python_blocks("docs/how-to/extend.md")
SMALL = ["--set", "rounds=2", "--set", "federation.num_clients=8", "--set", "federation.sampled=6"]


def write_classes(folder):
    """The two files that the page asks for; the checks and asserts at their ends are left out."""
    classes = [block.split("\n\nov.check_")[0] for block in EXTEND]
    rules = [block for block in classes if "class " in block and "ov.Attack" not in block]
    attacks = [block for block in classes if "class " in block and "ov.Attack" in block]
    (folder / "my_rules.py").write_text("\n".join(rules))
    (folder / "my_attacks.py").write_text("\n".join(attacks))
    (folder / "mine.toml").write_text(
        blocks((ROOT / "docs/how-to/extend.md").read_text(), "toml")[-1][1]
    )


def test_the_rule_with_state_does_not_trust_the_past_alone():
    (block,) = [block for block in EXTEND if "class Reputation" in block]
    scope = {}
    exec(compile(block.split("\n\nov.check_")[0], "extend.md", "exec"), scope)
    random, state = np.random.default_rng(0), None
    for number in range(1, 31):
        rows = random.normal(size=(10, 20))
        rows[:2] = rows[2:].mean(axis=0) if number < 30 else 1e30
        verdict = scope["Reputation"]().inspect(rows, num_byzantine=2, state=state, round=number)
        state = verdict.state
    assert verdict.dropped == [0, 1]
    with pytest.raises(ValueError, match="decay must be at least 0 and below 1"):
        scope["Reputation"](decay=2.0)


def test_own_rules_and_attacks_on_the_page_pass_their_own_checks():
    for block in EXTEND:
        if "class " in block:
            exec(compile(block, "extend.md", "exec"), {"__name__": "extend"})


def test_own_rules_and_attacks_on_the_page_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_classes(tmp_path)
    result = run(capsys, "run", "mine.toml", *SMALL, "--set", 'attack="my_attacks.py:Backdoor"')
    assert result.code == 0, result.err
    (block,) = [block for block in EXTEND if "load_file" in block]
    exec(compile(block, "extend.md", "exec"), {})
    found = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert len(found) == 3
    for name, accuracy in found.items():
        lines = (tmp_path / "runs" / "mine" / name / "metrics.jsonl").read_text().splitlines()
        assert float(accuracy) == pytest.approx(json.loads(lines[-1])["accuracy"])
    rule = ov.make_rule("my_rules.py:Capped(my_rules.py:WithNearest(median), max_norm=0.5)")
    assert str(rule) == "my_rules.py:Capped(my_rules.py:WithNearest(median), max_norm=0.5)"


@pytest.mark.slow
def test_all_rules_and_attacks_of_the_page_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_classes(tmp_path)
    result = run(capsys, "run", "mine.toml", "--set", "rounds=4")
    assert result.code == 0, result.err
