"""docs/how-to/results.md is correct: every column of an export, and its code reads one."""

import csv
import io
import re
from pathlib import Path

from made_results import made_results, write_store
from outvote.results.export import BY_CLIENT, to_export
from outvote.results.schema import VERSION
from outvote.results.series import DIAGNOSTICS, OF_CLIENTS, THEORY

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "results.md").read_text()


def test_every_column_of_an_export_is_listed_in_order():
    table = PAGE.split("| column | what |")[1].split("\n\n")[0]
    listed = [
        name
        for line in table.splitlines()
        for name in re.findall(r"`(.+?)`", line[: line.find(" | ")])
    ]
    text = to_export(made_results(seeds=1, rounds=1), is_packed=False).decode()
    header = next(csv.reader(io.StringIO(text)))
    later = ["test_loss", *OF_CLIENTS, *DIAGNOSTICS, *THEORY, *BY_CLIENT]
    assert listed == [*header, *later]


def test_the_code_reads_folders_and_exports(tmp_path, monkeypatch, capsys):
    write_store(tmp_path / "runs", {"rule": "mean", "attack": "lie"}, seeds=1, rounds=2)
    other = made_results({"rule": "median", "attack": "lie"}, seeds=1, rounds=2)
    (tmp_path / "other.csv.gz").write_bytes(to_export(other))
    monkeypatch.chdir(tmp_path)
    code = re.search(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)[1]
    exec(compile(code, "results.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:4] for line in lines] == [
        ["own", "mean", "lie", "0"],
        ["own", "median", "lie", "0"],
    ]


def test_the_current_layout_is_named():
    assert f"today it is {VERSION}" in PAGE
