"""Take the images of the site in a real Chromium: python docs/make_site_images.py site.

The argument is what `make docs` built. Needs Chromium: apt-get install chromium.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from browser import Browser  # noqa: E402  (a module of the tests)

FOLDER = ROOT / "docs" / "images"
SETTLED = 1.0
"""Seconds until everything is drawn."""
IMAGES = {
    "site-light": ("rules/gas.html", 1280, 860, False),
    "site-dark": ("concepts/gas-in-figures.html", 1280, 860, True),
    "site-phone": ("tutorial/1-aggregate.html", 390, 760, False),
}


def main() -> None:
    """Look at three pages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("site", type=Path)
    site = parser.parse_args().site.resolve()
    for name, (page, width, height, is_dark) in IMAGES.items():
        with (
            tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
            Browser(Path(profile), width=width, height=height, is_dark=is_dark) as browser,
        ):
            browser.hide_scrollbars()
            browser.call("Page.navigate", url=(site / page).as_uri())
            browser.wait("document.readyState === 'complete'")
            time.sleep(SETTLED)
            browser.screenshot(FOLDER / f"{name}.png")


if __name__ == "__main__":
    main()
