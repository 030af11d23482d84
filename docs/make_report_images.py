"""Take the images of the report: a page of the demo's runs in a real Chromium.

    python docs/make_report_images.py runs/demo

Needs Chromium: apt-get install chromium.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from outvote.report.html_report import write_report
from outvote.results.collect import collect

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from browser import Browser  # noqa: E402  (a module of the tests)

FOLDER = ROOT / "docs" / "images"
SETTLED = 0.5
"""Seconds until everything is drawn."""


def main() -> None:
    """Make the page, and look at it in three ways."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    results = collect([parser.parse_args().runs])
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        page = Path(name) / "report.html"
        write_report(results, page, command="outvote demo")
        with Browser(Path(name) / "profile") as browser:
            browser.hide_scrollbars()
            browser.open(page)
            take(browser, "report-light", "body", width=1180, height=1320)
            take(browser, "report-audit", "#runs", width=1180, height=1120)
            take(browser, "report-dark", "#runs", width=1180, height=1120, is_dark=True)
            take(browser, "report-phone", "#results", width=360, height=760, scale=2.0)


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
