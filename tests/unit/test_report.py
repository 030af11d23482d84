"""Pages: their numbers are those of the runs, and no text from a file can act in them."""

import base64
import hashlib
import html
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import msgspec
import numpy as np
import pytest

from audit_logs import line, write_log
from command_line import run
from made_results import ENVIRONMENT, made_results, without_kept, write_store
from outvote.report.audit import Mark, audit_log, audit_run, client_summaries, detection
from outvote.report.cells import Cell
from outvote.report.html_data import (
    log_entries,
    packed_counts,
    packed_measured,
    packed_shares,
    packed_whole,
    run_entries,
)
from outvote.report.html_report import (
    facts_of,
    title_and_lead,
    write_log_audit,
    write_report,
)
from outvote.report.layout import grids_of
from outvote.report.rendered_table import render_table, seeds_of
from outvote.report.theory import theory_rows
from outvote.results.audit_log import ClientRecord
from outvote.results.export import to_export
from outvote.results.labels import label
from outvote.results.schema import Status
from outvote.suites.suite import read_suite

TWO_RULES = {"rule": ["median", "gas(median)"], "attack": ["none", "lie"], "rounds": 6}


def data_of(path):
    text = path.read_text(encoding="utf-8")
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    return json.loads(found[1])


def unpacked(packed):
    """What the page's script does, in Python."""
    codes = np.frombuffer(base64.b64decode(packed["data"]), dtype=f"<u{packed['bytes']}")
    if "kind" not in packed:
        return codes
    if packed["kind"] == "count":
        return np.where(codes == 0, np.nan, codes.astype(float) - 1)
    if packed["kind"] == "share":
        return np.where(codes == 65535, np.nan, codes / 10000)
    scaled = packed["low"] + (codes.astype(float) - 1) / 65532 * (packed["high"] - packed["low"])
    values = np.exp(scaled) if packed["kind"] == "log" else scaled
    if packed["kind"] == "log":
        values = np.where(codes == 0, 0.0, values)
    return np.where(codes == 65535, np.inf, np.where(codes == 65534, np.nan, values))


@pytest.mark.parametrize("largest", [0, 255, 256, 65535, 65536, 2**32 - 1])
def test_whole_numbers_come_back_exactly(largest):
    values = np.array([0, largest, largest // 2])
    np.testing.assert_array_equal(unpacked(packed_whole(values)), values)


def test_counts_come_back_exactly_and_unknown_ones_as_nan():
    for values in ([0, 255, -1], [0.0, 255.0, np.nan]):
        found = unpacked(packed_counts(np.array(values)))
        np.testing.assert_array_equal(found, [0, 255, np.nan])


def test_shares_come_back_to_four_digits():
    values = np.array([0.0, 1.0, 0.12344, np.nan])
    np.testing.assert_allclose(unpacked(packed_shares(values)), [0, 1, 0.1234, np.nan])


@pytest.mark.parametrize(
    ("values", "tolerance"),
    [
        ([1e-38, 1.0, 1e38, 0.0, np.inf, np.nan], 2e-3),
        ([0.5, 0.501, 2.0], 1e-4),
        ([7.0], 0),
        ([], 0),
        ([0.0, 0.0], 0),
    ],
)
def test_measured_numbers_come_back_to_three_digits(values, tolerance):
    found = unpacked(packed_measured(np.array(values, dtype=float)))
    np.testing.assert_allclose(found, values, rtol=tolerance or 1e-12)


def test_numbers_below_zero_are_packed_evenly():
    values = np.array([-1.0, 0.0, 0.25, np.nan])
    np.testing.assert_allclose(unpacked(packed_measured(values)), values, atol=1e-4)


def test_a_page_holds_the_numbers_of_its_runs(tmp_path):
    results = write_store(tmp_path / "runs", TWO_RULES, seeds=2)
    write_report(results, tmp_path / "report.html")
    page = data_of(tmp_path / "report.html")
    for result, entry in zip(results, page["runs"], strict=True):
        assert (entry["rule"], entry["seed"]) == (result.rule, result.seed)
        assert entry["numbers"]["best"] == result.best
        assert entry["numbers"]["deviation"] == result.deviation
        np.testing.assert_allclose(
            unpacked(entry["series"]["accuracy"]), result.series.accuracy, atol=6e-5
        )
        audit = audit_run(result)
        matrix = {name: unpacked(packed) for name, packed in entry["audit"]["matrix"].items()}
        rows = np.repeat(np.arange(len(audit.rounds)), matrix["counts"])
        np.testing.assert_array_equal(audit.marks[rows, matrix["clients"]], matrix["marks"])
        np.testing.assert_allclose(
            audit.scores[rows, matrix["clients"]], matrix["scores"], rtol=1e-3
        )
        assert len(rows) == (audit.marks > 0).sum()


def test_a_page_has_the_theory_of_the_runs_that_measured_it(tmp_path):
    plain, other = made_results(TWO_RULES, seeds=1, rounds=4)[:2]
    away = np.array([4.0, 2.0, 1.0, 0.5])
    columns = {"gradient_norm": away, "gradient_deviation": away, "deviation_bound": 50 * away}
    with_ = replace(other, series=replace(other.series, **columns))
    write_report([plain, with_], tmp_path / "report.html")
    first, second = (each["series"] for each in data_of(tmp_path / "report.html")["runs"])
    assert not set(columns) & set(first)
    for name, values in columns.items():
        np.testing.assert_allclose(unpacked(second[name]), values, rtol=1e-3)
    page = (tmp_path / "report.html").read_text()
    section = page.split('<section id="theory"')[1].split("</section>")[0]
    tagged = re.findall(r"<td.*?>.*?</td>|<th scope=.row.>.*?</th>", section)
    found = [re.sub("<.*?>", "", each) for each in tagged]
    root = f"{np.sqrt(np.mean(away**2)):.3g}"
    names = [label(other.config[key]) for key in ("rule", "attack")]
    assert found == [*names, "1", root, root, "50", "–", "4 of 4", "–"]
    write_report([plain], tmp_path / "plain.html")
    assert "theory-title" not in (tmp_path / "plain.html").read_text()


def test_the_theory_counts_the_rounds_that_its_bounds_are_for():
    run = made_results(TWO_RULES, seeds=1, rounds=4)[0]
    columns = {
        "gradient_deviation": [3.0, 4.0, 3.0, 4.0],
        "deviation_bound": [2.0, 8.0, 8.0, 8.0],
        "lipschitz": np.array([0.1, 0.1, 0.1, 2.0]) / run.setting("training.learning_rate"),
        "descent": [1.0, 1.0, 1.0, 1.0],
        "descent_bound": [0.5, 2.0, np.nan, 9.0],
    }
    series = replace(run.series, **{key: np.array(value) for key, value in columns.items()})
    (row,) = theory_rows([replace(run, series=series)])
    assert row[-2:] == ["3 of 4", "1 of 2"]


def test_the_cells_of_a_page_lead_to_their_runs(tmp_path):
    results = write_store(tmp_path / "runs", TWO_RULES, seeds=2)
    write_report(results, tmp_path / "report.html")
    page = data_of(tmp_path / "report.html")
    (grid,) = page["grids"]
    for row, cells in zip(grid["rows"], grid["cells"], strict=True):
        for column, cell in zip(grid["columns"], cells, strict=True):
            found = [page["runs"][place] for place in cell["runs"]]
            assert [(each["rule"], each["attack"]) for each in found] == [(row, column)] * 2
            mean = 100 * np.mean([each["numbers"]["best"] for each in found])
            assert cell["best"][0] == pytest.approx(mean, abs=0.006)


def test_labels_and_settings_that_runs_share_are_kept_once(tmp_path):
    results = write_store(tmp_path, TWO_RULES, seeds=1)
    page = run_entries(results)
    assert len(page["environments"]) == 1
    assert set(page["runs"][0]["settings"]) == {"rule", "attack"}
    assert page["settings"]["rounds"] == 6
    counts = np.load(results[0].folder.path / "audit.npz")["label_counts"]
    packed = page["labels"][page["runs"][0]["labels"]]
    np.testing.assert_array_equal(
        unpacked(packed["counts"]).reshape(-1, packed["num_classes"]), counts
    )


@pytest.mark.parametrize("content", [b"", b"no zip", b"PK\x03\x04 cut off"])
def test_a_damaged_audit_file_does_not_stop_the_report(content, tmp_path):
    results = write_store(tmp_path, TWO_RULES, seeds=1)
    (results[0].folder.path / "audit.npz").write_bytes(content)
    first, second, *_ = run_entries(results)["runs"]
    assert (first["labels"], second["labels"]) == (None, 0)
    assert first["audit"] is not None


def test_runs_from_an_export_have_tables_and_curves_but_no_audit(tmp_path, capsys):
    results = made_results(TWO_RULES, seeds=1)
    (tmp_path / "all.csv.gz").write_bytes(to_export(results))
    page = tmp_path / "report.html"
    assert run(capsys, "report", tmp_path / "all.csv.gz", "-o", page).code == 0
    assert all(entry["audit"] is None for entry in data_of(page)["runs"])
    assert data_of(page)["grids"][0]["cells"][0][0]["best"]


def with_cells(grid, *cells):
    return replace(grid, cells=(cells,), columns=tuple(range(len(cells))))


def test_cells_note_what_is_missing_or_went_wrong():
    good, bad = made_results({"rule": "median", "attack": ["lie", "none"]}, diverged=("median-n",))[
        ::2
    ]
    (grid,) = grids_of([good, bad])

    def note(cell, *others):
        return render_table(with_cells(grid, cell, *others), "best").rows[0].cells[0].note

    unfinished = replace(good, status=Status(outcome="failed", round=1, num_rounds=3))
    assert note(Cell()) == "not run"
    assert note(Cell(unfinished=(unfinished,))) == "failed"
    assert note(Cell(results=(good,))) == ""
    cell = Cell(results=(good, bad), num_wanted=5)
    assert note(cell) == "1 diverged"
    second = replace(good, config={**good.config, "seed": 1})
    others = [Cell(results=(good, second), num_wanted=5)] * 2
    assert note(cell, *others) == "1 of 5 seeds, 1 diverged"


def test_seeds_are_given_once_where_all_cells_have_as_many():
    first, second = made_results({"rule": "mean", "rounds": 1}, seeds=2)
    one, both = Cell(results=(first,), num_wanted=2), Cell(results=(first, second), num_wanted=2)
    (grid,) = grids_of([first, second])

    def note(*cells):
        return seeds_of(with_cells(grid, *cells))

    assert note(both, both) == "2 seeds"
    assert note(one, one, Cell()) == "1 of 2 seeds"
    assert note(replace(one, num_wanted=0)) == "1 seed"
    assert note(one, both) == "2 seeds unless a cell notes otherwise"


def test_a_page_has_precision_and_recall_of_the_audit(tmp_path):
    settings = {"rule": "gas(median)", "attack": "lie", "rounds": 3}
    audit = audit_run(write_store(tmp_path, settings, seeds=1)[0])
    # One honest client more is dropped: else the two are the same.
    marks = audit.marks.copy()
    row, column = np.argwhere((marks == Mark.KEPT) & ~audit.is_byzantine)[0]
    marks[row, column] = Mark.DROPPED
    audit = replace(audit, marks=marks)
    found = detection(audit, client_summaries(audit))
    assert found.drop_precision != found.drop_recall
    (entry,) = log_entries(audit)["runs"]
    assert entry["audit"]["detection"] == {
        "num_byzantine": found.num_byzantine,
        "drop_precision": found.drop_precision,
        "drop_recall": found.drop_recall,
        "honest_kept": found.honest_kept,
        "top_precision": found.top_precision,
    }


def test_long_audits_keep_some_rounds_and_all_counts(tmp_path, monkeypatch):
    results = write_store(tmp_path, {"rule": "gas(median)", "attack": "lie", "rounds": 9}, seeds=1)
    monkeypatch.setattr("outvote.report.html_data.MAX_VERDICTS", 3 * 5 + 1)
    (entry,) = run_entries(results)["runs"]
    audit = entry["audit"]
    num_all = int(results[0].series.num_sampled.sum())
    assert audit["every"] == -(-num_all // 16) > 1
    assert len(unpacked(audit["matrix"]["rounds"])) == -(-9 // audit["every"])
    assert unpacked(audit["records"]["num_received"]).sum() == num_all


def test_every_client_keeps_its_last_reason_and_long_texts_are_cut(tmp_path, monkeypatch):
    """A thinned matrix, or one with too many reasons, must not change the ranking."""
    monkeypatch.setattr("outvote.report.html_data.MAX_VERDICTS", 2)
    monkeypatch.setattr("outvote.report.html_data.MAX_REASONS", 1)
    long = "y" * 10_000
    lines = [
        line(1, ClientRecord(client=long, standing="error", reason="old")),
        line(2, ClientRecord(client=long, standing="error", reason=long)),
        line(3, ClientRecord(client="\u202ebob", standing="late", reason="slow")),
        line(4, ClientRecord(client="\u202ebob", standing="late", reason="slow")),
    ]
    write_log(tmp_path / "log", lines, settings={"note": long})
    write_log_audit(audit_log(tmp_path / "log"), tmp_path / "audit.html")
    (entry,) = data_of(tmp_path / "audit.html")["runs"]
    audit = entry["audit"]
    assert audit["clients"] == ["y" * 299 + "…", "\\u202ebob"]
    reasons = [audit["texts"][place] for place in unpacked(audit["records"]["reason"])]
    clients = unpacked(audit["records"]["index"]).tolist()
    assert dict(zip(clients, reasons, strict=True)) == {0: "y" * 299 + "…", 1: "slow"}
    assert [audit["texts"][place] for _, _, place in audit["reasons"]] == ["slow"]
    assert (tmp_path / "audit.html").read_text(encoding="utf-8").count("y" * 300) == 0


def test_the_ranking_of_a_page_has_norms_and_cosines_where_a_log_has_them(tmp_path):
    measured = ClientRecord(client="ann", score=1.0, kept=True, norm=2.5, cosine=-0.5)
    for name, each in (("with", measured), ("without", ClientRecord(client="ann", score=1.0))):
        write_log(tmp_path / name, [line(1, each, ClientRecord(client="bob", score=2.0))])
        write_log_audit(audit_log(tmp_path / name), tmp_path / f"{name}.html")
    (entry,) = data_of(tmp_path / "with.html")["runs"]
    records = entry["audit"]["records"]
    place = unpacked(records["index"]).tolist().index(0)
    assert unpacked(records["norm"])[place] == pytest.approx(2.5)
    assert unpacked(records["cosine"])[place] == pytest.approx(-0.5)
    assert np.isnan(unpacked(records["norm"])[1 - place])
    (entry,) = data_of(tmp_path / "without.html")["runs"]
    assert "norm" not in entry["audit"]["records"]


def test_what_a_rule_does_not_report_is_unknown_in_a_page(tmp_path):
    results = [without_kept(each) for each in write_store(tmp_path, TWO_RULES, seeds=1)]
    for entry in run_entries(results)["runs"]:
        assert np.isnan(unpacked(entry["series"]["num_kept"])).all()
        assert np.isnan(unpacked(entry["series"]["num_kept_byzantine"])).all()
        records = entry["audit"]["records"]
        was_seen = unpacked(records["num_received"]) > 0
        assert np.isnan(unpacked(records["num_dropped"])[was_seen]).all()
        assert np.isnan(unpacked(records["drop_rate"])).all()


def test_tables_without_a_run_are_only_named(tmp_path):
    grids = grids_of(made_results("smoke", seeds=1, rounds=1))
    part = next(grid for grid in grids if grid.part == "table5")
    write_report(part.results, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert [grid["title"] for grid in data_of(tmp_path / "report.html")["grids"]] == [part.title]
    named = re.search(r'id="not-run">(.*?)</p>', text)[1]
    others = [grid.title for grid in grids_of(part.results) if not grid.results]
    assert len(others) > 3
    assert all(html.escape(title) in named for title in others)


def test_the_worst_case_is_compared_with_the_worst_of_the_paper(tmp_path):
    results = made_results("table1-cifar10", seeds=1, rounds=2, parts=("main",))
    write_report(results, tmp_path / "report.html")
    grid = next(each for each in data_of(tmp_path / "report.html")["grids"] if each["has_worst"])
    for cells, worst in zip(grid["cells"], grid["worst"]["best"], strict=True):
        printed = min(cell["paper"][0] for cell in cells)
        ours = min(cell["best"][0] for cell in cells)
        assert worst[3:] == [printed, pytest.approx(ours - printed, abs=0.006)]


HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\u2028&quot;'\"<!--"


class Elements(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.attributes = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs


def elements(path):
    parser = Elements()
    parser.feed(path.read_text(encoding="utf-8"))
    return parser


def test_markup_in_names_reasons_and_settings_stays_text(tmp_path):
    write_log(
        tmp_path / "log",
        [line(1, ClientRecord(client=HOSTILE, standing="error", reason=HOSTILE))],
        settings={HOSTILE: HOSTILE},
    )
    audit = replace(audit_log(tmp_path / "log"), title=HOSTILE)
    write_log_audit(audit, tmp_path / "audit.html", command=HOSTILE)
    found = elements(tmp_path / "audit.html")
    assert found.tags.count("script") == 2
    assert "img" not in found.tags
    assert not [name for name, _ in found.attributes if name.startswith("on")]
    page = data_of(tmp_path / "audit.html")
    shown = HOSTILE.replace("\u2028", "\\u2028")
    assert page["runs"][0]["audit"]["clients"] == [shown]
    assert page["runs"][0]["audit"]["texts"] == ["", shown]


def test_a_page_may_run_its_own_script_and_load_nothing(tmp_path):
    write_report(made_results(TWO_RULES, seeds=1), tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    policy = html.unescape(re.search(r'Content-Security-Policy" content="(.*?)"', text)[1])
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'"
    for tag, kind in (("style", "style-src"), ("script", "script-src")):
        content = re.search(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)[1]
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert rules[kind] == f"'sha256-{digest}'"
    found = elements(tmp_path / "report.html")
    assert "style" not in [name for name, _ in found.attributes]
    addresses = [value for name, value in found.attributes if name in ("src", "href")]
    assert all(value.startswith(("#", "data:")) for value in addresses)


def test_without_a_script_a_page_still_has_its_table(tmp_path):
    results = made_results(TWO_RULES, seeds=1)
    write_report(results, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    body = text[text.index("<tbody>") : text.index("</tbody>")]
    for result in results:
        assert f"{100 * result.best:.2f}" in body


def test_the_head_has_where_runs_come_from(tmp_path):
    results = write_store(tmp_path, "demo", seeds=1, rounds=2)
    facts = dict(facts_of(results))
    assert facts["Runs"] == "15"
    assert facts["Hardware"] == "cpu, 2 threads, Linux x86_64"
    assert facts["Commit"] == ENVIRONMENT.commit[:12]
    assert "torch 2.13.0" in facts["Versions"]
    assert facts["Date"] == "unknown", "made up"
    title, lead = title_and_lead(results)
    assert title == read_suite("demo").title
    assert lead.startswith("6,000 real")


def test_days_are_those_of_the_runs():
    def run_on(day):
        environment = msgspec.structs.replace(ENVIRONMENT, date=day)
        return made_results({"rule": "mean", "rounds": 1}, seeds=1, environment=environment)

    assert dict(facts_of(run_on("2026-01-02")))["Date"] == "2026-01-02"
    assert (
        dict(facts_of([*run_on("2026-01-03"), *run_on("2026-01-02")]))["Date"]
        == "2026-01-02 to 2026-01-03"
    )
    assert dict(facts_of(run_on(None)))["Date"] == "unknown"


def test_report_refuses_what_is_no_folder_of_runs(tmp_path, capsys):
    result = run(capsys, "report", tmp_path, "-o", tmp_path / "report.html")
    result.assert_fails(2, "no runs")
    assert not (tmp_path / "report.html").exists()
    run(capsys, "report", tmp_path / "nowhere").assert_fails(2, "nowhere")


def test_report_prints_what_it_wrote(tmp_path, capsys):
    write_store(tmp_path / "runs", TWO_RULES, seeds=1)
    page = tmp_path / "report.html"
    printed = run(capsys, "report", tmp_path / "runs", "-o", page, "--json").json
    assert printed == {"path": str(page), "runs": 4, "bytes": page.stat().st_size}
    run(capsys, "report", tmp_path / "runs", "-o", tmp_path / "no" / "x.html").assert_fails(
        2, "could not be written"
    )
