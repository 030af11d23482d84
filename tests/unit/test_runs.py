"""Runs in a notebook: read, select, summarise, and the same tables and figures as the verbs."""

import builtins
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure

import outvote as ov
from command_line import run
from made_results import made_results, without_kept, write_store
from outvote.report.cells import METRICS
from outvote.report.figures import figure_file
from outvote.report.runs import Runs
from outvote.results.export import to_export
from outvote.results.run import Result

TWO = {
    "rule": ["mean", "gas(median, num_groups=20)"],
    "attack": ["lie", "none"],
    "rounds": 6,
    "data": {"beta": [0.1, 0.5]},
}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    root = tmp_path_factory.mktemp("store")
    write_store(root / "runs", TWO, seeds=2)
    return root / "runs"


@pytest.fixture
def runs(store):
    return ov.read_runs(store)


def test_runs_are_read_from_stores_and_exports_given_as_text_or_path(store, tmp_path):
    runs = ov.read_runs(store)
    assert isinstance(runs, ov.Runs)
    half, file = runs[:8], tmp_path / "half.csv.gz"
    file.write_bytes(to_export(list(half)))
    assert [each.name for each in ov.read_runs(str(file))] == [each.name for each in half]
    both = ov.read_runs(str(file), store)
    assert [each.name for each in both] == [each.name for each in runs]


def test_a_damaged_run_is_left_out_with_a_warning(tmp_path):
    results = write_store(tmp_path, TWO, seeds=1)
    (results[1].folder.path / "status.json").write_text("{")
    with pytest.warns(ov.OutvoteWarning, match="is left out") as caught:
        runs = ov.read_runs(tmp_path)
    assert len(runs) == len(results) - 1
    assert [each.filename for each in caught] == [__file__]


def test_runs_are_a_sequence(runs):
    assert len(runs) == 16
    assert isinstance(runs[0], Result)
    assert isinstance(runs[-3:], Runs)
    assert list(runs[2:4]) == [runs[2], runs[3]]
    assert [each.name for each in runs] == sorted(each.name for each in runs)
    with pytest.raises(IndexError):
        runs[16]


@pytest.mark.parametrize(
    ("how", "number"),
    [
        ({"rule": "mean"}, 8),
        ({"rule": "gas(median)"}, 8),
        ({"rule": "gas(median, num_groups=20)"}, 8),
        ({"rule": "gas(median, num_groups=30)"}, 0),
        ({"rule": ["mean", "gas(median)"], "attack": "none"}, 8),
        ({"attack": "lie(z=1.5)"}, 8),
        ({"seed": 1}, 8),
        ({"seed": [0, 1], "attack": "lie"}, 8),
        ({"suite": "own"}, 16),
        ({"suite": "other"}, 0),
        ({"outcome": "diverged"}, 0),
        ({"settings": {"data.beta": 0.1}}, 8),
        ({"settings": {"data.beta": (0.1, 0.3)}, "rule": "mean", "seed": 0}, 2),
        ({"settings": {"rule.num_groups": 20}}, 8),
        ({"settings": {"data.balance": 1}}, 0),
        ({"settings": {"data.balance": True}}, 16),
        ({"settings": {"loss": "auto"}}, 16),
        ({"settings": {"training.num_steps": None}}, 16),
        ({"settings": {"training.num_steps": [4, None]}, "seed": 0}, 8),
        ({"settings": {"training.num_steps": 4}}, 0),
        ({"settings": {"settings.loss": "auto"}}, 16),
        ({}, 16),
    ],
)
def test_runs_are_selected_by_what_they_are_and_by_settings(runs, how, number):
    assert len(runs.select(**how)) == number


def test_an_unknown_setting_names_the_closest(runs):
    with pytest.raises(ValueError, match=r"no run has a setting 'data.bta'; did you mean 'data.b"):
        runs.select({"data.bta": 0.1})


def test_a_frame_has_all_rounds_and_a_summary_frame_all_runs(runs):
    pytest.importorskip("pandas")
    frame = runs.to_frame()
    assert len(frame) == 6 * 16
    summary = runs.summary().to_frame()
    assert len(summary) == len(runs.summary()) == 16
    assert list(summary.columns)[-len(METRICS) :] == list(METRICS)
    for row, each in zip(summary.to_dict("records"), runs, strict=True):
        assert row["data.beta"] == each.config["data"]["beta"]
        for name in METRICS:
            assert row[name] == getattr(each, name) or np.isnan(row[name] + getattr(each, name))
    best = frame.groupby("name")["accuracy"].max()
    assert best.to_dict() == summary.set_index("name")["best"].to_dict()


def test_a_summary_shows_the_settings_that_differ_and_numbers_as_tables_do(runs):
    lines = repr(runs.summary()).splitlines()
    assert lines[0].split()[:5] == ["rule", "attack", "seed", "data.beta", "outcome"]
    assert len(lines) == 1 + 16 + 1
    for line, each in zip(lines[1:-1], runs, strict=True):
        assert line.startswith(each.config["rule"])
        assert f" {100 * each.best:.2f} " in line
        assert line.split()[-2] == ("–" if each.attack == "none" else line.split()[-2])
    assert len({len(line) for line in lines[:-1]}) == 1
    page = runs._repr_html_()
    assert page.count("<tr>") == 17
    assert "16 runs of own: 2 rules, 2 attacks, 2 seeds." in page
    assert page == runs.summary()._repr_html_()


def test_names_in_html_are_escaped():
    one = made_results(TWO, seeds=1)[0]
    odd = replace(one, suite="<script>\x1b", config={**one.config, "rule": "<b>&(median)"})
    for page in (Runs([odd])._repr_html_(), Runs([odd]).table()._repr_html_()):
        assert "<script" not in page
        assert "<b>" not in page
        assert "\x1b" not in page
        assert "&lt;b&gt;&amp;" in page


@pytest.mark.parametrize("metric", [None, "final", "deviation", "kept_byzantine"])
def test_a_table_is_the_one_of_the_command_line(runs, store, capsys, metric):
    words = {"kept_byzantine": "selection-rate"}
    options = [] if metric is None else ["--metric", words.get(metric, metric)]
    table = runs.table(metric)
    found = {
        name: run(capsys, "table", store, "--format", name, *options).out
        for name in ("md", "latex", "csv", "json")
    }
    assert table.to_markdown() == repr(table) == found["md"]
    assert table.to_latex() == found["latex"]
    assert table.to_csv() == found["csv"]
    assert table.to_dict() == json.loads(found["json"])


def test_a_table_of_a_suite_has_parts_and_the_papers_numbers():
    runs = Runs(made_results("table1-cifar10", seeds=1, rounds=2))
    table = runs.table("best", part="main", paper=True)
    text, page = table.to_markdown(), table._repr_html_()
    assert "paper" in text
    assert page.count("<table>") == 1
    cells = re.findall(r"\| (\*\*)?(\d+\.\d\d)(?:\*\*)? \(paper ([\d.]+), ([^)]+)\)", text)
    assert len(cells) > 50
    for bold, mean, paper, difference in cells:
        cell = f"{mean} (paper {paper}, {difference})"
        assert (f"<strong>{cell}</strong>" if bold else f">{cell}<") in page
    with pytest.raises(ValueError, match="unknown part 'man'; did you mean 'main'"):
        runs.table(part="man")


def test_what_is_not_known_is_a_dash(runs):
    unknown = Runs([without_kept(each) for each in runs.select(attack="lie")])
    assert "–" in repr(unknown.summary())
    assert "–" in unknown.table("kept_byzantine")._repr_html_()


def test_mistakes_are_one_line(runs, tmp_path):
    with pytest.raises(ValueError, match=r"metric must be one of 'best', .* got 'accuracy'"):
        runs.table("accuracy")
    with pytest.raises(ValueError, match=r"paper=True goes with accuracies .* got metric='dev"):
        runs.table("deviation", paper=True)
    with pytest.raises(ValueError, match=r"kind must be one of 'curves', .* got 'line'"):
        runs.plot("line")
    with pytest.raises(ValueError, match=r"path must end in .png, .svg or .pdf, got"):
        runs.plot(path=tmp_path / "a.gif")
    with pytest.raises(ValueError, match="identification shows one run, got 16; name one by run"):
        runs.plot("identification")
    empty = runs.select(seed=9)
    for show in (empty.table, empty.plot, empty.report):
        with pytest.raises(ValueError, match="there are no runs to show"):
            show()


def test_a_figure_is_the_one_of_the_command_line(runs, tmp_path):
    path = tmp_path / "curves.svg"
    figure = runs.plot("curves", path=path)
    assert isinstance(figure, Figure)
    assert path.read_bytes() == figure_file("curves", list(runs), "svg")
    assert figure._repr_png_().startswith(b"\x89PNG")
    one = runs.plot("identification", path=str(tmp_path / "one.png"), run=runs[0].hash)
    assert one.axes
    drawn = figure_file("identification", [runs[0]], "png")
    assert (tmp_path / "one.png").read_bytes() == drawn
    heat = runs.plot("heatmap", metric="final", path=tmp_path / "heat.svg")
    assert heat.axes
    final = figure_file("heatmap", list(runs), "svg", metric="final")
    assert (tmp_path / "heat.svg").read_bytes() == final


def test_without_matplotlib_a_figure_is_one_line_with_the_remedy(runs, monkeypatch):
    real = builtins.__import__

    def load(name, *rest):
        if name == "matplotlib":
            raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", load)
    with pytest.raises(ImportError, match=r"needs matplotlib.*pip install 'outvote\[plots\]'"):
        runs.plot()


def test_a_report_is_written_and_its_path_returned(runs, tmp_path):
    path = runs.report(str(tmp_path / "r.html"))
    assert path == tmp_path / "r.html"
    text = path.read_text()
    assert "gas(median, num_groups=20)" in text
    assert runs[0].name in text
