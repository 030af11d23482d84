"""docs/how-to/read-results.md is correct: its code, its SQL and its names."""

import json
import re
import sqlite3
from pathlib import Path

import pytest

import outvote as ov
from command_line import run
from made_results import write_store
from outvote.results.index import list_runs

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "read-results.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
OF_FILE, OF_INDEX = (text for kind, text in BLOCKS if kind == "sql")
TWO = {"rule": ["mean", "gas(median)"], "attack": "lie", "rounds": 3, "data": {"beta": [0.1, 0.5]}}


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """A store with an index, in the folder where the examples are executed."""
    monkeypatch.chdir(tmp_path)
    write_store(tmp_path / "runs", TWO, seeds=2)
    list_runs(tmp_path / "runs", pytest.fail)
    return ov.read_runs("runs")


def by_beta(runs):
    """The mean of the best accuracies for each beta."""
    betas = sorted({each.setting("data.beta") for each in runs})
    own = {beta: [each.best for each in runs.select({"data.beta": beta})] for beta in betas}
    return [(beta, pytest.approx(sum(found) / len(found))) for beta, found in own.items()]


def test_the_code_runs(runs, capsys):
    pytest.importorskip("pandas")
    scope = {}
    for text in (text for kind, text in BLOCKS if kind == "python"):
        exec(compile(text, "read-results.md", "exec"), scope)
    scope["index"].close()
    assert len(scope["gas"]) == 2
    assert len(scope["frame"]) == 8 * 3
    assert len(scope["summary"]) == 8
    assert Path("curves.svg").stat().st_size > 1000
    assert Path("report.html").stat().st_size > 1000
    assert scope["runs"].table("best").to_markdown() in capsys.readouterr().out
    assert json.dumps(scope["verdict"].to_dict())


def test_the_commands_write_files(runs, capsys):
    pytest.importorskip("pyarrow")
    commands = [line for line in PAGE.splitlines() if line.startswith("outvote export")]
    for line in commands:
        assert run(capsys, *line.split()[1:]).code == 0
    assert len(commands) == 2
    assert Path("long.csv.gz").exists()
    assert Path("runs.parquet").exists()


def test_pandas_reads_accuracy_by_beta_from_the_index_in_one_line(runs):
    pandas = pytest.importorskip("pandas")
    (line,) = (each for each in PAGE.splitlines() if each.startswith("pd.read_sql"))
    index = sqlite3.connect("runs/index.sqlite")
    found = eval(line, {"pd": pandas, "index": index})
    index.close()
    assert [tuple(row) for row in found.to_numpy().tolist()] == by_beta(runs)


def test_duckdb_reads_the_parquet_file(runs, capsys):
    duckdb = pytest.importorskip("duckdb")
    pytest.importorskip("pyarrow")
    run(capsys, "export", "runs", "--format", "parquet", "-o", "runs.parquet")
    found = duckdb.sql(OF_FILE).fetchall()
    assert found == [
        (beta, rule, max(each.best for each in runs.select({"data.beta": beta}, rule=rule)))
        for beta in (0.1, 0.5)
        for rule in ("gas(median)", "mean")
    ]
