"""docs/results/coverage.md names all of the paper, and every link and command of it exists."""

import importlib
import re
import shlex
from pathlib import Path

import click
import pytest

from claims import claims
from outvote.cli import list as listing
from outvote.cli.app import program
from outvote.cli.plot import KINDS
from outvote.experiment.choosing import Choice, choose
from outvote.experiment.plan import plan_parts
from outvote.suites.presets import PRESETS
from outvote.suites.suite import read_suite, suite_names

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docs" / "results" / "coverage.md"
PAGE = FILE.read_text(encoding="utf-8")
STATES = ("yes", "in part", "no")
NUMBERED = [
    *(f"Table {number}" for number in range(1, 8)),
    *("Table 8", "Tables 9, 10", "Figure 1", "Figure 2", "Definition 1", "Proposition 1"),
    *(f"Assumption {number}" for number in range(1, 5)),
    *(f"Lemma {number}" for number in range(1, 4)),
    *("appendix A", "appendix B", "C.2", "discussion"),
]
"""What the paper numbers."""
NAMED = [
    *("Multi-Krum", "Bulyan", "Median", "RFA", "DnC", "RBTM", "Bucketing"),
    *("BitFlip", "LabelFlip", "LIE", "Min-Max", "Min-Sum", "IPM"),
    *("CIFAR-10,", "CIFAR-100", "FEMNIST", "ImageNet-12", "by layer", "adaptive client selection"),
]


def rows(heading):
    """The cells of the table under a heading."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def sections():
    return re.findall(r"^## (.+)$", PAGE, re.MULTILINE)


def commands(start):
    found = re.findall(rf"`({start} [^`]+)`", PAGE)
    return sorted(set(found))


@pytest.mark.parametrize("what", [*NUMBERED, *NAMED])
def test_all_of_the_paper_has_a_row(what):
    first = [row[0] for heading in sections() for row in rows(heading)]
    assert any(what in cell for cell in first)


def test_every_row_has_a_state_and_a_place_or_a_reason():
    for heading in sections():
        for row in rows(heading):
            assert row[1].split(":")[0] in STATES, row
            assert len(row) >= 3, row
            assert row[2], row


def test_every_suite_of_the_paper_has_a_row():
    wanted = {name for name in suite_names() if name.startswith(("table", "figure"))}
    assert {name for name in wanted if f"outvote bench {name} " in PAGE} == wanted


@pytest.mark.parametrize("text", commands("outvote"))
def test_commands_can_be_typed(text):
    words = shlex.split(text)[1:]
    command, names = program, []
    while isinstance(command, click.Group):
        names.append(words.pop(0))
        command = command.get_command(click.Context(command), names[-1])
        assert command is not None, names
    parser = command.make_parser(click.Context(command))
    options, arguments, _ = parser.parse_args(list(words))
    if names == ["bench"]:
        plan_parts(_chosen(options))
    if names == ["list"]:
        assert options["kind"] in listing.KINDS
    if names == ["plot"]:
        assert options["kind"] in KINDS
    if names == ["run"]:
        assert (ROOT / words[0]).is_file()
    del arguments


def _chosen(options):
    name = options["suite"]
    path = ROOT / name
    suite = read_suite(str(path) if name.endswith(".toml") else name)
    parts, seeds = tuple(options.get("parts") or ()), options.get("seeds")
    return choose(suite, Choice(parts=parts, num_seeds=seeds and int(seeds)))


@pytest.mark.parametrize("text", commands("python"))
def test_scripts_exist_and_can_be_imported(text, monkeypatch):
    path = ROOT / text.split()[1]
    assert path.is_file()
    monkeypatch.syspath_prepend(str(path.parent))
    assert callable(getattr(importlib.import_module(path.stem), "main", claims))


def test_presets_exist():
    found = re.findall(r"preset `([^`]+)`", PAGE)
    assert len(found) == 4
    assert set(found) <= set(PRESETS)


def test_anchors_exist():
    for file, anchor in re.findall(r"\]\(([^)#\s]+)#([^)]+)\)", PAGE):
        target = (FILE.parent / file).read_text(encoding="utf-8")
        heads = re.findall(r"^#+ (.+)$", target, re.MULTILINE)
        assert anchor in [head.lower().replace(" ", "-") for head in heads]


def test_each_claim_is_on_the_page_of_the_claims():
    text = (FILE.parent / "claims.md").read_text(encoding="utf-8")
    heads = re.findall(r"^## \d+\. (.+)$", text, re.MULTILINE)
    for row in rows("Claims"):
        start = row[2].strip('"')
        assert any(head.startswith(start) for head in heads), start


def test_every_claim_of_the_paper_on_that_page_is_in_the_table():
    """Claims of ours are on that page too; those name no table, figure or proposition."""
    text = (FILE.parent / "claims.md").read_text(encoding="utf-8")
    heads = re.findall(r"^## \d+\. (.+)$", text, re.MULTILINE)
    starts = tuple(row[2].strip('"') for row in rows("Claims"))
    own = ("GAS lowers the Byzantine", "The same reading")
    of_the_paper = [head for head in heads if re.search(r"\((Table|Figure|Prop)", head)]
    assert len(of_the_paper) > 15
    missing = [head for head in of_the_paper if not head.startswith((*starts, *own))]
    assert missing == []


def test_sections_are_those_of_the_paper():
    parts = ["Definitions and algorithm", "Theory", "Settings", "Tables", "Figures", "Claims"]
    assert sections() == [*parts, "Extensions that the paper names"]
