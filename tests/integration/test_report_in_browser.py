"""Pages in a real browser, opened from disk: they work, are quiet, and load nothing."""

import csv
import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from audit_logs import line, write_log
from browser import Browser, find_browser
from made_results import write_store
from outvote.report.audit import audit_log
from outvote.report.html_report import write_log_audit, write_report
from outvote.report.rendered_table import number
from outvote.results.audit_log import ClientRecord
from outvote.results.collect import collect
from outvote.results.export import read_export, to_export
from outvote.results.schema import VERSION
from outvote.results.series import Clients

pytestmark = pytest.mark.skipif(
    find_browser() is None, reason="no Chromium found; install it (apt-get install chromium)"
)

SETTINGS = {
    "rule": ["median", "gas(median)", "krum", "gas(krum)"],
    "attack": ["none", "lie", "bit-flip"],
    "rounds": 20,
}
FIRST = "krum"
ATTACKS = ("bit-flip", "lie", "none")
NUMBERS = "[...document.querySelectorAll('#grid-0 tbody td a')].map(each => each.innerText)"
HOSTILE = (
    "</script><script>window.owned = 1</script>"
    "<img src=http://127.0.0.1:9/x onerror='window.owned = 1'>"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module")
def results(folder):
    return write_store(folder / "runs", SETTINGS, seeds=2)


@pytest.fixture(scope="module")
def report(folder, results) -> Path:
    path = folder / "report.html"
    write_report(results, path, command="outvote report runs -o report.html")
    return path


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture
def browser(running):
    """A wide window with light colours; a page that complains or loads something fails the test."""
    running.resize(1280, 900)
    running.prefer(is_dark=False)
    yield running
    assert running.faults() == []
    assert [each for each in running.requests() if not each.startswith(("file:", "data:"))] == []


def column(browser, number):
    return [
        float(row.split()[0]) for row in browser.texts(f"#grid-0 tbody td:nth-child({number + 1})")
    ]


def test_the_only_file_that_a_page_asks_for_is_itself(browser, report):
    browser.open(report)
    assert browser.requests()[0] == report.resolve().as_uri()
    assert [each for each in browser.requests()[1:] if not each.startswith("data:")] == []


def test_a_table_sorts_by_click_and_by_keyboard(browser, report):
    browser.open(report)
    assert browser.texts("#grid-0 tbody th") == ["krum", "gas(krum)", "median", "gas(median)"]
    assert column(browser, 2) != sorted(column(browser, 2))
    browser.click("#grid-0 thead th:nth-child(3) button")
    assert column(browser, 2) == sorted(column(browser, 2), reverse=True)
    assert browser.evaluate("document.querySelector('#grid-0 thead th:nth-child(3)').ariaSort") == (
        "descending"
    )
    browser.press("Enter", "\r")
    assert column(browser, 2) == sorted(column(browser, 2))
    browser.press("Tab")
    browser.press("Enter", "\r")
    assert column(browser, 3) == sorted(column(browser, 3), reverse=True)


def test_the_switch_changes_the_numbers(browser, report, results):
    browser.open(report)

    def mean(metric, rule, attack):
        chosen = [each for each in results if (each.rule, each.attack) == (rule, attack)]
        found = 100 * sum(getattr(each, metric) for each in chosen) / len(chosen)
        return "–" if np.isnan(found) else f"{found:.2f}"

    for metric in ("final", "last_ten", "kept_byzantine", "best"):
        browser.click(f"#metric input[value={metric}] + span")
        shown = browser.evaluate(NUMBERS)[:3]
        assert shown == [mean(metric, FIRST, attack) for attack in ATTACKS]
    browser.click("#metric input[value=deviation] + span")
    for attack, text in zip(ATTACKS, browser.evaluate(NUMBERS)[:3], strict=True):
        chosen = [each for each in results if (each.rule, each.attack) == (FIRST, attack)]
        wanted = sum(each.deviation for each in chosen) / len(chosen)
        assert text == number(wanted, "deviation")
    assert "Less is better" in browser.texts("#metric-note")[0]
    browser.click("#metric input[value=worst] + span")
    worst = min(float(mean("best", FIRST, attack)) for attack in ATTACKS)
    assert float(browser.evaluate(NUMBERS)[0]) == worst
    browser.press("ArrowRight")
    assert browser.evaluate("document.querySelector('#metric input:checked').value") != "worst"


def test_curves_can_be_hidden_and_read_as_a_table(browser, report):
    browser.open(report)
    lines = "document.querySelectorAll('#panels .line').length"
    assert browser.evaluate(lines) == 12
    browser.click("#legend .key")
    assert browser.evaluate(lines) == 9
    browser.click("#curve-values summary")
    browser.wait("document.querySelectorAll('#curve-values tbody tr').length === 12")


def test_the_audit_of_a_run_shows_its_verdicts(browser, report, results):
    place = next(
        k for k, each in enumerate(results) if each.name.startswith("gas-median-lie-seed1")
    )
    browser.open(report)
    browser.evaluate(f"location.hash = '#run={place}'")
    browser.wait("document.querySelector('#run h3').innerText.includes('seed 1')")
    assert "gas(median) against" in browser.texts("#run h3")[0]
    assert len(browser.texts("#run .tiles dd")) == 9
    assert len(browser.texts("#run .ranking tbody tr")) == 20
    painted = browser.evaluate(
        "(() => { const canvas = document.querySelector('.cells'); const found = new Set();"
        "const pen = canvas.getContext('2d');"
        "const bytes = pen.getImageData(0, 0, canvas.width, canvas.height).data;"
        "for (let k = 0; k < bytes.length; k += 4) found.add(bytes.slice(k, k + 3).join());"
        "return found.size; })()"
    )
    assert painted > 10
    browser.evaluate("document.querySelector('.cells').focus()")
    browser.press("ArrowRight")
    assert "round 1:" in browser.texts(".read")[0]


def test_a_number_of_a_table_leads_to_its_run(browser, report):
    browser.open(report)
    browser.click("#grid-0 tbody tr:nth-child(2) td:nth-child(3) a")
    browser.wait("document.querySelector('#run h3').innerText.includes('gas(krum) against lie')")
    browser.wait("Math.abs(document.querySelector('#runs').getBoundingClientRect().top) < 200")


def test_numbers_of_a_table_are_reached_by_keyboard(browser, report):
    browser.open(report)
    browser.evaluate("document.querySelector('#grid-0 tbody a[tabindex=\\'0\\']').focus()")
    for key in ("ArrowRight", "ArrowDown", "ArrowDown", "ArrowLeft", "ArrowLeft"):
        browser.press(key)
    assert browser.evaluate("document.querySelectorAll('#grid-0 a[tabindex=\\'0\\']').length") == 1
    place = browser.evaluate("document.activeElement.getAttribute('href')")
    browser.press("Enter", "\r")
    browser.wait("document.activeElement.id === 'runs-title'")
    assert browser.evaluate("location.hash") == place
    assert "median against bit-flip" in browser.texts("#run h3")[0]


def test_runs_that_have_only_begun_are_shown_as_far_as_they_are(browser, folder):
    write_store(folder / "begun", {"rule": ["mean", "krum"], "rounds": 3}, seeds=1)
    for path in (folder / "begun").glob("*/*"):
        is_first = path.name.startswith("mean")
        lines = (path / "metrics.jsonl").read_bytes().splitlines(keepends=True)
        (path / "metrics.jsonl").write_bytes(b"" if is_first else lines[0] + lines[1][:40])
        status = {"version": VERSION, "outcome": "running", "round": 0, "num_rounds": 3}
        (path / "status.json").write_text(json.dumps(status))
        (path / "audit.npz").unlink()
        (path / "env.json").unlink()
    results = collect([folder / "begun"])
    write_report(results, folder / "begun.html")
    browser.open(folder / "begun.html")
    assert browser.texts("#grid-0 tbody td") == ["unfinished", "unfinished"]
    # No process works on them.
    assert "interrupted" in browser.texts("#run h3")[0]
    browser.click("#after")
    assert "ended after round 0" in browser.texts("#run")[0]
    browser.click("#before")
    assert "22.05" in browser.texts("#run")[0]


def log_with_faults(folder):
    """A log of 12 rounds in which clients fail in every way."""

    def client(name, **what):
        return ClientRecord(client=name, **{"standing": "aggregated", "score": 1.0, **what})

    rounds = []
    for k in range(1, 13):
        clients = [client(f"hospital-{n}", kept=True) for n in range(5)]
        clients.append(client("factory", kept=k % 2 == 0, score=9.0))
        clients.append(client("broken", kept=False, score=None, reason="sent NaN"))
        bad = ("malformed", "wrong shape") if k < 9 else ("excluded", "malformed 8 times")
        clients.append(client("ragged", standing=bad[0], score=None, reason=bad[1]))
        if k == 3:
            clients.append(client("slow", standing="late", score=None, reason="after 60 s"))
        rounds.append(structs.replace(line(1, *clients), round=k))
    write_log(folder, rounds)
    return folder


def test_a_log_has_an_overview_of_outcomes_by_round_and_reason(browser, folder):
    path = folder / "faults.html"
    write_log_audit(audit_log(log_with_faults(folder / "faults")), path)
    browser.open(path)
    tiles = dict(zip(browser.texts("#run .tiles dt"), browser.texts("#run .tiles dd"), strict=True))
    counts = {name: text.split()[0] for name, text in tiles.items()}
    assert counts == {
        "rounds": "12",
        "clients": "9",
        "kept": "66",
        "dropped": "6",
        "rejected: not finite": "12",
        "malformed reply": "8",
        "too late": "1",
        "excluded": "4",
    }
    label = browser.evaluate("document.querySelector('.overview svg[role=img]').ariaLabel")
    assert "malformed reply 8" in label
    assert browser.evaluate("document.querySelectorAll('.overview path.line').length") == 6
    assert browser.texts(".reasons tbody th") == [
        "sent NaN",
        "wrong shape",
        "malformed 8 times",
        "after 60 s",
    ]
    assert browser.texts(".reasons tbody td") == ["12", "8", "4", "1"]


def test_what_honest_clients_get_is_a_choice_where_runs_have_it(browser, report, results, folder):
    browser.open(report)
    assert browser.evaluate("document.querySelector('#metric input[value=worst_decile]')") is None
    some = [
        replace(
            each,
            series=replace(each.series, worst_decile=np.full(len(each.series), 0.25)),
            clients=Clients(
                accuracy=np.array([0.5]), kept=np.array([0.75]), sampled=np.array([1.0])
            ),
        )
        for each in results
    ]
    write_report(some, folder / "clients.html")
    browser.open(folder / "clients.html")
    for metric, shown in (("worst_decile", "25.00"), ("least_kept", "75.00")):
        browser.click(f"#metric input[value={metric}] + span")
        assert browser.evaluate(NUMBERS)[:3] == [shown] * 3
    assert (
        browser.evaluate("document.querySelector('#metric input[value=client_accuracy]')") is None
    )
    browser.click("#metric input[value=worst] + span")
    assert browser.texts("#grid-0 thead th")[-2:] == ["worst decile", "least kept"]


def test_numbers_can_be_downloaded(browser, report, tmp_path):
    browser.open(report)
    browser.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    browser.click("#download-table")
    path, end = tmp_path / "table.csv", time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert len(rows) == 12
    for metric in ("best", "byzantine_weight", "deviation"):
        browser.click(f"#metric input[value={metric}] + span")
        assert float(rows[0][metric]) == float(browser.evaluate(NUMBERS)[0])
    assert rows[0]["runs"] == "2"


@pytest.mark.parametrize("width", [320, 375, 768])
def test_a_page_is_no_wider_than_a_phone(browser, report, width):
    browser.resize(width, 700)
    browser.open(report)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width


def test_every_control_has_a_name_and_every_figure_a_text(browser, report):
    browser.open(report)
    nameless = browser.evaluate(
        "[...document.querySelectorAll('button, select, input')].filter(each => !each.innerText &&"
        "!each.ariaLabel && !each.labels?.length).map(each => each.outerHTML)"
    )
    assert nameless == []
    assert browser.evaluate(
        "[...document.querySelectorAll('[role=img], canvas:not([aria-hidden])')]"
        ".every(each => each.ariaLabel.length > 10)"
    )


def test_runs_of_an_export_explain_why_they_have_no_audit(browser, results, folder):
    path = folder / "all.csv.gz"
    path.write_bytes(to_export(results))
    write_report(read_export(path), folder / "export.html")
    browser.open(folder / "export.html")
    assert "Clients are not in an export" in browser.texts("#run")[0]
    assert browser.evaluate("document.querySelectorAll('#panels .line').length") == 12


def test_a_hostile_log_is_shown_as_text(browser, folder):
    clients = [ClientRecord(client=name, score=1.0, kept=True) for name in ("ann", "bob")]
    hostile = ClientRecord(client=HOSTILE, standing="malformed", reason=HOSTILE)
    write_log(
        folder / "log", [line(k, *clients, hostile) for k in (1, 2, 3)], settings={"<b>": "<i>"}
    )
    write_log_audit(audit_log(folder / "log"), folder / "audit.html", command=HOSTILE)
    browser.open(folder / "audit.html")
    assert HOSTILE in browser.texts(".ranking tbody tr")[0]
    assert browser.evaluate("window.owned") is None
    assert browser.evaluate("document.querySelectorAll('img, b b, i').length") == 0
    assert "Which clients are Byzantine is not known" in browser.texts("#run")[0]
