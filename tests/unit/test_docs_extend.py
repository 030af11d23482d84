"""docs/how-to/extend.md is correct: its tables name what exists, its classes run and resume."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

import outvote as ov
from command_line import run
from outvote.testing import CHECKS

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "extend.md").read_text()
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
    rules = [block for block in classes if "ov.Attack" not in block]
    attacks = [block for block in classes if "ov.Attack" in block]
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
    sentence = re.search(r"is exempt from (.*?)\.", PAGE, flags=re.DOTALL)[1]
    assert set(re.findall(r"`([\w-]+)`", sentence)) <= set(CHECKS)


def test_the_classes_run_as_the_page_states(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_classes(tmp_path)
    result = run(capsys, "run", "mine.toml", *SMALL, "--set", 'attack="my_attacks.py:Backdoor"')
    assert result.code == 0, result.err
    rule = ov.make_rule("my_rules.py:Capped(my_rules.py:WithNearest(median), max_norm=0.5)")
    assert str(rule) == "my_rules.py:Capped(my_rules.py:WithNearest(median), max_norm=0.5)"


@pytest.mark.slow
def test_all_rules_and_attacks_of_the_page_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_classes(tmp_path)
    result = run(capsys, "run", "mine.toml", "--set", "rounds=4")
    assert result.code == 0, result.err
