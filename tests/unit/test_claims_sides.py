"""What the probes tell, against the same numbers reckoned from the exports in plain loops."""

import csv
import shutil
from pathlib import Path
from statistics import fmean

import pytest

from claims_sides import side_claims
from outvote.results.collect import collect

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
PAPER = ROOT / "src" / "outvote" / "suites" / "paper" / "table1.csv"
ALONG = ("lie", "min-max", "min-sum")


@pytest.fixture(scope="module")
def printed():
    with PAPER.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["dataset"] == "cifar10"]
    # The paper's RBTM is a trimmed mean.
    names = {row["rule"]: row["rule"].replace("rbtm", "trimmed-mean") for row in rows}
    return {(names[row["rule"]], row["attack"]): float(row["accuracy"]) for row in rows}


@pytest.fixture(scope="module")
def along():
    """Accuracies under attacks with sign=1, the population's deviation, by rule and attack."""
    found = {}
    for run in collect([RESULTS / "probes.csv.gz"]):
        attack = run.config["attack"]
        if "sign=1" in attack and "sample" not in attack:
            found[run.rule, attack.partition("(")[0]] = 100 * run.best
    return found


@pytest.fixture(scope="module")
def against():
    """Accuracies of Table 1 with the same seed, by rule and attack."""
    runs = collect([RESULTS / "table1-cifar10.csv.gz"])
    return {
        (run.rule, run.attack): 100 * run.best
        for run in runs
        if run.seed == 0 and run.setting("rule.num_groups") != 100
    }


def test_both_sides_are_as_far_from_the_paper_as_the_notes_say(printed, along, against):
    pairs, _ = side_claims(RESULTS)
    for start, is_gas in (("Without GAS", False), ("With GAS", True)):
        far = [
            abs(along[place] - printed[place])
            for place in along
            if place in printed and place[0].startswith("gas(") == is_gas
        ]
        assert len(far) == 18
        (note,) = [each for each in pairs.notes if each.startswith(start)]
        assert f"these 18 runs are {fmean(far):.1f} points" in note
        other = [
            abs(against[place] - printed[place])
            for place in along
            if place in printed and place[0].startswith("gas(") == is_gas
        ]
        assert note.endswith(f"are {fmean(other):.1f} points from them.")


def test_krum_stands_beside_the_papers_multi_krum(printed, along, against):
    _, claim = side_claims(RESULTS)
    assert [row[0] for row in claim.table[1:]] == ["bit-flip", "label-flip", *ALONG]
    for attack, one, inside, _ in claim.table[3:]:
        assert one == f"{along['krum', attack]:.1f} ({printed['multi-krum', attack]:.1f})"
        wanted = f"{along['gas(krum)', attack]:.1f} ({printed['gas(multi-krum)', attack]:.1f})"
        assert inside == wanted
    ours = {row[0]: float(row[1].partition(" ")[0]) for row in claim.table[1:]}
    many = {each: (along if each in ALONG else against)["multi-krum", each] for each in ours}
    far = fmean(abs(ours[each] - printed["multi-krum", each]) for each in ours)
    own = fmean(abs(many[each] - printed["multi-krum", each]) for each in ours)
    assert claim.notes[0].startswith(f"Krum is {far:.1f} points")
    assert f"our Multi-Krum {own:.1f}." in claim.notes[0]
    assert claim.verdict == ("Fits" if far < own / 2 else "Does not fit")
    assert claim.notes[-1] == "Not played: ipm."


def test_without_probes_nothing_is_said(tmp_path):
    assert side_claims(tmp_path) == []
    shutil.copy(RESULTS / "probes.toml", tmp_path)
    assert side_claims(tmp_path) == []
