"""Take the images of the report, of `outvote watch` and of a comparison in a real Chromium.

    python docs/make_report_images.py runs/demo
    python docs/make_report_images.py runs/demo --watch  # only that of watch, while they go on

Needs Chromium: apt-get install chromium.
"""

import argparse
import sys
import tempfile
import threading
import time
from pathlib import Path

from outvote.report.compare import compare
from outvote.report.html_report import write_report
from outvote.report.runs import Runs
from outvote.report.watch import WatchedPage, WatchServer
from outvote.results.collect import collect

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from browser import Browser  # noqa: E402  (a module of the tests)

FOLDER = ROOT / "docs" / "images"
COMPARED = ROOT / "study" / "results" / "table1-cifar10-all-clients.csv.gz"
COMMAND = "outvote compare table1-cifar10-all-clients.csv.gz --a rule=median --b 'rule=gas(median)'"
SETTLED = 0.5
"""Seconds until everything is drawn."""


def main() -> None:
    """Make the pages, and look at them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--watch", action="store_true")
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name,
        Browser(Path(name) / "profile") as browser,
    ):
        browser.hide_scrollbars()
        if given.watch:
            take_watch(browser, given.runs)
        else:
            take_reports(browser, given.runs, Path(name))


def take_reports(browser: Browser, runs: Path, folder: Path) -> None:
    """Look at a report of runs that are over, and at a comparison of kept results."""
    page, compared = folder / "report.html", folder / "compared.html"
    write_report(collect([runs]), page, command="outvote demo")
    browser.open(page)
    take(browser, "report-light", "body", width=1180, height=1320)
    take(browser, "report-audit", "#runs", width=1180, height=1120)
    take(browser, "report-dark", "#runs", width=1180, height=1120, is_dark=True)
    take(browser, "report-phone", "#results", width=360, height=760, scale=2.0)
    made = Runs(collect([COMPARED]))
    alone, inside = made.select(rule="median"), made.select(rule="gas(median)")
    compare(alone, inside).report(compared, command=COMMAND)
    browser.open(compared)
    take(browser, "compare", "#comparison", width=1180, height=860)


def take_watch(browser: Browser, runs: Path) -> None:
    """Look at runs that go on."""
    with WatchServer(WatchedPage([runs], command="outvote watch runs/demo")) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser.call("Page.navigate", url=server.address)
        browser.wait("document.documentElement?.dataset.ready === 'yes'")
        take(browser, "watch", "#curves", width=1180, height=860)
        server.shutdown()


def take(
    browser: Browser,
    name: str,
    where: str,
    *,
    width: int,
    height: int,
    scale: float = 1.0,
    is_dark: bool = False,
) -> None:
    """Scroll to an element and keep what is in the window."""
    browser.resize(width, height, scale)
    browser.prefer(is_dark=is_dark)
    time.sleep(SETTLED)
    browser.evaluate(f"document.querySelector('{where}').scrollIntoView()")
    time.sleep(SETTLED)
    browser.screenshot(FOLDER / f"{name}.png")


if __name__ == "__main__":
    main()
