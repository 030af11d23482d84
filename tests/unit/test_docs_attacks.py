"""The page on attacks agrees with the code, and its images can be drawn again."""

import re
import runpy
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

import outvote as ov
from outvote.attacks.attack_spec import ATTACKS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "attacks.md").read_text()
IMAGES = ROOT / "docs" / "images"
SCRIPT = ROOT / "docs" / "make_attack_images.py"
WORDS = {True: "yes", False: "no"}
HONEST_MEAN_IF_ALL_AGREE = ("lie", "alie", "min-max", "min-sum", "mimic", "optimal-lie")


def table(heading):
    """The rows of the table under a heading, as dicts; `code` marks are removed."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    cells = [[cell.strip().strip("`") for cell in line] for line in lines]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]


def sections():
    """The text of each attack's section."""
    parts = re.split(r"^### (.+)$", PAGE.split("\n## The attacks\n")[1], flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def text_of(value):
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def test_every_parameter_is_listed_with_its_default():
    shown = [(row["attack"], row["parameter"], row["default"]) for row in table("Parameters")]
    true = [
        (name, field.name, text_of(field.default))
        for name, attack in ATTACKS.items()
        for field in fields(attack)
    ]
    assert shown == true
    bare = re.search(r"Without parameters: (.*)\.", PAGE)[1].split(", ")
    assert bare == [name for name, attack in ATTACKS.items() if not fields(attack)]


def test_the_kinds_are_those_of_the_code():
    true = [
        {
            "attack": name,
            "class": attack.__name__,
            "calls the rule": WORDS[attack().needs_rule()],
            "random": WORDS[attack().is_random],
            "all send one row": WORDS[attack().is_colluding],
            "state": WORDS[attack().has_state],
            "not finite": WORDS[attack().sends_nonfinite],
        }
        for name, attack in ATTACKS.items()
    ]
    assert table("Kinds") == true


def test_every_attack_has_a_section_with_everything():
    found = sections()
    assert list(found) == list(ATTACKS)
    for name, text in found.items():
        for label in ("Formula", "Needs", "Degenerate", "Reference"):
            assert re.search(rf"^- \*\*{label}\*\*: \S", text, flags=re.MULTILINE), (name, label)
        shown = re.search(r"^- \*\*Parameters\*\*: (.*)$", text, flags=re.MULTILINE)[1]
        names = [field.name for field in fields(ATTACKS[name])]
        assert re.findall(r"`(\w+)`", shown) == names


@pytest.mark.parametrize("name", HONEST_MEAN_IF_ALL_AGREE)
@pytest.mark.parametrize("num_honest", [1, 5])
def test_clients_that_agree_are_copied_where_the_page_states_it(name, num_honest):
    honest = np.repeat([[1.0, 2.0, -3.0]], num_honest, axis=0)
    rows = ov.make_attack(name)(honest, num_byzantine=2, rule=ov.Median(), seed=0)
    assert np.allclose(rows, honest[0])
    assert "zero spread" in sections()[name]


def test_every_attack_has_a_small_image_without_a_date():
    for name in ATTACKS:
        image = IMAGES / f"{name}.svg"
        assert image.stat().st_size <= 40_000
        text = image.read_text()
        assert "dc:date" not in text
        assert "attackers" in text
    assert {path.stem for path in IMAGES.glob("*.svg")} == set(ATTACKS)


def test_an_image_of_an_unknown_attack_is_an_error(monkeypatch, capsys):
    pytest.importorskip("matplotlib", reason="pip install 'outvote[plots]'")
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "lei"])
    with pytest.raises(SystemExit):
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert "there is no attack 'lei'; did you mean 'lie'?" in capsys.readouterr().err


def test_images_are_the_same_every_time(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="pip install 'outvote[plots]'")
    drawn = []
    for folder in ("one", "two"):
        words = [str(SCRIPT), "-o", str(tmp_path / folder), "lie", "nan"]
        monkeypatch.setattr(sys, "argv", words)
        runpy.run_path(str(SCRIPT), run_name="__main__")
        found = sorted((tmp_path / folder).iterdir())
        assert [path.name for path in found] == ["lie.svg", "nan.svg"]
        drawn.append([path.read_bytes() for path in found])
    assert drawn[0] == drawn[1]
