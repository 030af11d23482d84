"""docs/how-to/extend.md is correct: its tables name what exists, its classes run and resume."""

import json
import re
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

import outvote as ov
from command_line import run
from outvote.results.schema import Round
from outvote.testing import ATTACK_CHECKS, CHECKS

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "how-to" / "extend.md").read_text()
RESULTS = (DOCS / "how-to" / "results.md").read_text()
REFERENCE = (DOCS / "reference" / "checks.md").read_text()
PYTHON = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
TOML = re.findall(r"^```toml\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
SMALL = ["--set", "rounds=2", "--set", "federation.num_clients=8", "--set", "federation.sampled=6"]


def names_in(heading, header):
    """The names in the first column of the table with this header."""
    section = PAGE.split(f"\n## {heading}")[1].split(f"\n| {header}")[1].split("\n\n")[0]
    first = [line.split("|")[1] for line in section.splitlines()[2:]]
    return [name for cell in first for name in re.findall(r"`(\w+)", cell)]


def write_classes(folder):
    """The two files that the page asks for; the checks and asserts at their ends are left out."""
    classes = [block.split("\n\nov.check_")[0] for block in PYTHON]
    rules = [block for block in classes if "class " in block and "ov.Attack" not in block]
    attacks = [block for block in classes if "class " in block and "ov.Attack" in block]
    (folder / "my_rules.py").write_text("\n".join(rules))
    (folder / "my_attacks.py").write_text("\n".join(attacks))
    (folder / "mine.toml").write_text(TOML[-1])


def test_every_trait_is_listed_with_its_default():
    assert names_in("Traits", "trait") == [field.name for field in fields(ov.Traits)]
    rows = re.findall(r"^\| `(\w+)` \| `(True|False)` \|", PAGE, flags=re.MULTILINE)
    by_name = {**vars(ov.Attack), **{field.name: field.default for field in fields(ov.Traits)}}
    assert rows
    assert all(str(by_name[name]) == default for name, default in rows)


def test_the_attributes_of_round_and_context_exist():
    for name in names_in("Batched rules", "attribute"):
        assert name in {field.name for field in fields(ov.RoundInfo)}
    known = {field.name for field in fields(ov.AttackContext)} | set(dir(ov.AttackContext))
    assert set(names_in("An attack", "`context` attribute")) <= known
    assert set(names_in("An attack", "attribute")) <= set(dir(ov.Attack))


def test_the_checks_that_are_named_exist():
    table = PAGE.split("\n| a rule that | is exempt from |")[1].split("\n\n")[0]
    named = {name for line in table.splitlines() for name in re.findall(r"`([a-z-]+)`", line)}
    assert named
    assert named <= set(CHECKS)


@pytest.mark.parametrize(("heading", "checks"), [("rule", CHECKS), ("attack", ATTACK_CHECKS)])
def test_every_check_is_listed_with_the_fact_that_it_states(heading, checks):
    section = REFERENCE.split(f"\n## check_{heading}\n")[1].split("\n## ")[0]
    listed = re.findall(r"^\| `(.+?)` \| (.+) \|$", section, flags=re.MULTILINE)
    assert listed == [(name, check.__doc__.splitlines()[0]) for name, check in checks.items()]


def test_every_key_of_a_round_is_listed():
    table = RESULTS.split("\n| key | what |")[1].split("\n\n")[0]
    first = [line.split("|")[1] for line in table.splitlines()[2:]]
    assert re.findall(r"`(\w+)`", " ".join(first)) == [*Round.__struct_fields__]


def test_the_rule_with_state_does_not_trust_the_past_alone():
    (block,) = [block for block in PYTHON if "class Reputation" in block]
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


def test_the_blocks_of_the_page_pass_their_own_checks():
    for block in PYTHON:
        if "class " in block:
            exec(compile(block, "extend.md", "exec"), {"__name__": "extend"})


def test_the_classes_run_as_the_page_states(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_classes(tmp_path)
    result = run(capsys, "run", "mine.toml", *SMALL, "--set", 'attack="my_attacks.py:Backdoor"')
    assert result.code == 0, result.err
    (block,) = [block for block in PYTHON if "load_file" in block]
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
