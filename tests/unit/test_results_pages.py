"""The published results are what the exports beside them give, to the last byte."""

import re
import runpy
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from choosing import PAGE, with_worst_cases, worst_cases
from made_results import made_results
from outvote.results.collect import collect
from outvote.results.export import to_export

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "results"
MADE = runpy.run_path(str(ROOT / "tools" / "results_pages.py"))
EXPORTS = [path.name.removesuffix(".csv.gz") for path in sorted(FOLDER.glob("*.csv.gz"))]


def test_each_page_is_what_outvote_table_prints():
    pages = MADE["tables"](FOLDER)
    assert set(pages) == {f"{name}.md" for name in EXPORTS if name in MADE["page_names"](FOLDER)}
    for name, text in pages.items():
        page = (FOLDER / name).read_text(encoding="utf-8")
        assert page == text, f"{name}: run python tools/results_pages.py"


def test_the_claims_are_counted_from_the_exports():
    made = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "claims.py"), str(FOLDER)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (FOLDER / "claims.md").read_text(encoding="utf-8") == made.stdout


def test_the_table_of_the_readme_is_made_from_the_export():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert MADE["with_short_table"](readme, FOLDER) == readme


def test_the_table_of_the_page_on_choosing_is_made_from_the_exports():
    page = PAGE.read_text(encoding="utf-8")
    assert with_worst_cases(page, FOLDER) == page


def test_the_worst_case_is_the_smallest_mean_of_the_last_ten_rounds():
    rows = dict(re.findall(r"^\| (\S+) \| ([\d.]+) \|", worst_cases(FOLDER), re.MULTILINE))
    means = {}
    for each in collect([FOLDER / "table1-cifar10.csv.gz"]):
        if each.config["rule"] == "gas(dnc(removal_factor=4))":
            means.setdefault(each.attack, []).append(100 * each.series.accuracy[-10:].mean())
    assert {len(seeds) for seeds in means.values()} == {3}
    assert rows["gas(dnc)"] == f"{min(sum(seeds) / 3 for seeds in means.values()):.1f}"


@pytest.mark.parametrize("name", [name for name in EXPORTS if name in MADE["page_names"](FOLDER)])
def test_each_page_is_named_on_the_first_page(name):
    assert f"({name}.md)" in (FOLDER / "README.md").read_text(encoding="utf-8")


def test_the_exports_are_small_enough_to_keep():
    assert sum(path.stat().st_size for path in FOLDER.glob("*.csv.gz")) < 8_000_000


@pytest.mark.parametrize("name", EXPORTS)
def test_exports_have_no_path_of_a_disk(name):
    for each in collect([FOLDER / f"{name}.csv.gz"]):
        text = msgspec.json.encode([each.config, each.environment, each.status.reason]).decode()
        assert not re.search(r"[/\\~]\w", text), each.name


def test_a_suite_beside_its_export_gives_the_page_its_parts(tmp_path):
    shutil.copy(FOLDER / "probes.toml", tmp_path)
    results = made_results(str(tmp_path / "probes.toml"), seeds=1, rounds=1)
    (tmp_path / "probes.csv.gz").write_bytes(to_export(results))
    (tmp_path / "replays.csv.gz").write_bytes(to_export(results))
    pages = MADE["tables"](tmp_path)
    assert set(pages) == {"probes.md"}
    assert "### CIFAR-10, other readings of the rules" in pages["probes.md"]
    assert "have the seed of another run" not in pages["probes.md"]


@pytest.mark.parametrize("outcome", ["finished", "interrupted"])
def test_figure_1_is_drawn_once_runs_are_over(tmp_path, outcome):
    results = made_results("figure1-motivation", seeds=1, rounds=2)
    ended = [
        replace(each, status=msgspec.structs.replace(each.status, outcome=outcome))
        for each in results
    ]
    (tmp_path / "figure1-motivation.csv.gz").write_bytes(to_export(ended))
    drawn = MADE["figures"](tmp_path)
    assert [path.name for path in drawn] == ["figure1-motivation.png"] * (outcome == "finished")
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)
