"""`outvote table` and `outvote plot`: from folders and exports, to the terminal and to files."""

import sys

import msgspec
import pytest

from command_line import run
from made_results import reseal, write_store
from outvote.cli import table
from outvote.results.audit_log import AuditRound, ClientRecord, Manifest

OWN = """
title = "Mine"
[[part]]
name = "main"
title = "My own table"
columns = "attack"
settings.rule = ["mean", "median"]
settings.attack = ["none", "lie"]
settings.rounds = 2
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    root = tmp_path_factory.mktemp("store") / "runs"
    write_store(root, "table5-heterogeneity", seeds=2, rounds=4, parts=("main",))
    write_store(root, "demo", seeds=2, rounds=4)
    return root


def test_a_table_is_printed_with_the_papers_numbers(store, capsys):
    done = run(capsys, "table", store / "table5-heterogeneity", "--paper")
    assert done.code == 0
    assert "## Table 5, heterogeneity" in done.out
    assert "(paper 12.19, " in done.out
    assert "48 runs with 2 seeds. Run on cpu in float32" in done.out
    assert done.err == ""


@pytest.mark.parametrize("format_", ["md", "latex", "csv", "json"])
def test_folders_and_their_export_give_the_same_bytes(format_, store, tmp_path, capsys):
    export = tmp_path / "all.csv.gz"
    assert run(capsys, "export", store, "-o", export).code == 0
    words = ("--paper", "--format", format_)
    first, second = tmp_path / "first", tmp_path / "second"
    assert run(capsys, "table", store, *words, "-o", first).out == ""
    assert run(capsys, "table", export, *words, "-o", second).code == 0
    assert first.read_bytes() == second.read_bytes()
    assert first.read_text(encoding="utf-8") == run(capsys, "table", export, *words).out


def test_metrics_and_parts_can_be_chosen(store, capsys):
    tables = {
        metric: run(capsys, "table", store, "--part", "main", "--metric", metric).out
        for metric in table.METRICS
    }
    assert len(set(tables.values())) == len(table.METRICS)
    assert "Byzantine selection rate (share of sampled" in tables["selection-rate"]


def test_a_suite_of_ones_own_is_shown_as_its_file_has_it(tmp_path, capsys):
    own = tmp_path / "mine.toml"
    own.write_text(OWN)
    write_store(tmp_path / "runs", str(own), seeds=1, rounds=2)
    words = [tmp_path / "runs", "--suite", own]
    assert "### My own table" in run(capsys, "table", *words).out
    curves = ["--kind", "curves", "--part", "main", "-o", tmp_path / "c.svg"]
    assert run(capsys, "plot", *words, *curves).code == 0
    run(capsys, "plot", words[0], *curves).assert_fails(2, "unknown part 'main'")
    assert run(capsys, "report", *words, "-o", tmp_path / "r.html").code == 0
    assert "My own table" in (tmp_path / "r.html").read_text()
    (tmp_path / "sub").mkdir()
    same = tmp_path / "sub" / "mine.toml"
    same.write_text(OWN)
    for verb in (["table"], ["plot", "--kind", "curves", "-o", tmp_path / "x.svg"], ["report"]):
        done = run(capsys, *verb, *words, "--suite", same)
        done.assert_fails(2, "are both suites called 'mine'; give one")


def test_mistakes_are_one_line(store, tmp_path, capsys):
    none = run(capsys, "table", store, "--suite", "none.toml")
    none.assert_fails(2, "there is no file none.toml")
    run(capsys, "table", store, "--part", "mian").assert_fails(2, "unknown part 'mian'", "main")
    for metric in ("selection-rate", "byzantine-weight", "deviation"):
        done = run(capsys, "table", store, "--paper", "--metric", metric)
        done.assert_fails(2, "--paper", f"--metric {metric}")
    run(capsys, "table", tmp_path / "none").assert_fails(2, "there is no file or folder")
    run(capsys, "table", tmp_path).assert_fails(2, "no runs in")
    nowhere = tmp_path / "no" / "t.md"
    run(capsys, "table", store, "-o", nowhere).assert_fails(2, "could not be written")
    run(capsys, "plot", store, "--kind", "curves", "-o", "x.gif").assert_fails(2, ".png, .svg")
    run(capsys, "plot", store, "--kind", "f-beta", "-o", tmp_path / "x.png").assert_fails(
        2, "federation.byzantine"
    )
    assert list(tmp_path.iterdir()) == []


def test_control_characters_of_a_file_are_not_obeyed(store, tmp_path, capsys):
    folder = next((store / "demo").iterdir())
    copy = tmp_path / "demo" / folder.name
    copy.mkdir(parents=True)
    for path in folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    config = (copy / "config.toml").read_text()
    lines = [
        'rule = "a\\u001b[31m.py:R"' if line.startswith("rule =") else line
        for line in config.splitlines()
    ]
    (copy / "config.toml").write_text("\n".join(lines))
    reseal(copy)
    for format_ in ("md", "latex", "csv", "json"):
        done = run(capsys, "table", tmp_path, "--format", format_)
        assert done.code == 0
        assert "\x1b" not in done.out


def test_a_figure_is_written_whole(store, tmp_path, capsys):
    path = tmp_path / "curves.svg"
    done = run(capsys, "plot", store / "demo", "--kind", "curves", "-o", path)
    assert done.out == f"{path}: {path.stat().st_size:,} bytes.\n"
    first = path.read_bytes()
    done = run(capsys, "plot", store / "demo", "--kind", "curves", "-o", path, "--json")
    assert done.json == {"path": str(path), "kind": "curves", "bytes": len(first)}
    assert path.read_bytes() == first


def test_one_run_or_a_production_log_can_be_looked_into(store, tmp_path, capsys):
    folder = next((store / "demo").iterdir())
    words = ("--kind", "identification", "-o", tmp_path / "who.png")
    assert run(capsys, "plot", folder, *words).code == 0
    assert run(capsys, "plot", store, *words, "--run", folder.name).code == 0
    run(capsys, "plot", store, *words).assert_fails(2, "shows one run", "--run")
    log = tmp_path / "log"
    log.mkdir()
    verdicts = tuple(ClientRecord(client=f"c{k}", score=1.0 + k, kept=k < 3) for k in range(4))
    lines = [
        AuditRound(round=k, time="", num_byzantine=1, is_updated=True, clients=verdicts)
        for k in range(1, 4)
    ]
    manifest = Manifest(rule="median", outvote="0", started="")
    (log / "manifest.json").write_bytes(msgspec.json.encode(manifest))
    (log / "audit.jsonl").write_bytes(b"".join(msgspec.json.encode(x) + b"\n" for x in lines))
    assert run(capsys, "plot", log, *words).code == 0
    (log / "manifest.json").write_bytes(b"{")
    run(capsys, "plot", log, *words).assert_fails(1, "manifest.json cannot be read")


def test_without_matplotlib_the_pip_line_is_printed(store, tmp_path, capsys, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("outvote.report.figures")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = run(capsys, "plot", store, "--kind", "curves", "-o", tmp_path / "x.png")
    done.assert_fails(2, "pip install 'outvote[plots]'")
