"""The site is built without a warning, loads nothing from elsewhere, and is searched from disk."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from browser import Browser, find_browser
from outvote.attacks.attack_spec import ATTACKS
from outvote.rules.rule_spec import RULES

ROOT = Path(__file__).parents[2]
LOADS = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|embed|object)\b[^>]*?\b(?:src|data|srcset)\s*=\s*["']?"""
    r"""(https?:|//)|<link\b(?![^>]*rel=["']?canonical)[^>]*href\s*=\s*["']?(https?:|//)""",
    flags=re.IGNORECASE,
)
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("material", reason="pip install 'outvote[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


def test_every_rule_and_attack_has_a_page_with_a_formula(site):
    for folder, names in (("rules", RULES), ("attacks", ATTACKS)):
        for name in names:
            html = (site / folder / f"{name}.html").read_text(encoding="utf-8")
            assert "<math " in html, name
            assert "arithmatex" not in html


def test_pages_of_the_reference_have_the_text_of_docstrings(site):
    html = (site / "reference" / "python-simulation.html").read_text(encoding="utf-8")
    assert "assumed_byzantine" in html
    assert "How many take part in a round, or their fraction" in html
    html = (site / "reference" / "python-rules.html").read_text(encoding="utf-8")
    assert "See <code>sample_counts</code>; infinity: no cap." in html


def test_no_page_loads_from_elsewhere(site):
    pages = sorted(site.glob("**/*.html"))
    assert len(pages) > 100
    for page in pages:
        assert not LOADS.search(page.read_text(encoding="utf-8")), page
    for style in site.glob("**/*.css"):
        text = style.read_text(encoding="utf-8")
        assert not re.search(r"url\(\s*[\"']?(?:https?:|//)|@import", text), style


def test_a_page_that_loads_from_elsewhere_would_be_found():
    assert LOADS.search('<script src="https://a.example/x.js">')
    assert LOADS.search('<link rel="stylesheet" href="//a.example/x.css">')
    assert not LOADS.search('<a href="https://a.example/">')


@pytest.mark.skipif(find_browser() is None, reason="needs Chromium")
@pytest.mark.parametrize(
    "page", ["index.html", "rules/gas.html", "notebooks/reading-an-audit.html"]
)
@pytest.mark.parametrize("width", [1280, 390])
def test_a_page_opens_from_disk_fits_and_asks_for_files_alone(site, tmp_path, page, width):
    with Browser(tmp_path, width=width) as browser:
        browser.call("Page.navigate", url=(site / page).as_uri())
        browser.wait("document.readyState === 'complete'")
        browser.wait("document.querySelector('iframe') !== null")
        assert browser.faults() == []
        assert {each.partition(":")[0] for each in browser.requests()} <= {"file", "data", "about"}
        assert browser.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


@pytest.mark.skipif(find_browser() is None, reason="needs Chromium")
@pytest.mark.parametrize("width", [1280, 390])
def test_keys_and_values_in_tables_are_not_broken(site, tmp_path, width):
    with Browser(tmp_path, width=width) as browser:
        browser.call("Page.navigate", url=(site / "reference" / "settings.html").as_uri())
        browser.wait("document.readyState === 'complete'")
        words = "[...document.querySelectorAll('td code')].map(each => [each.innerText, "
        words += "each.getClientRects().length]).filter(each => !/[\\s-]/.test(each[0]))"
        found = browser.evaluate(words)
        assert len(found) > 100
        assert [word for word, num_lines in found if num_lines > 1] == []


@pytest.mark.skipif(find_browser() is None, reason="needs Chromium")
def test_the_search_finds_a_rule_from_disk(site, tmp_path):
    with Browser(tmp_path) as browser:
        browser.call("Page.navigate", url=(site / "index.html").as_uri() + "?q=bucketing")
        browser.wait("document.readyState === 'complete'")
        browser.wait("document.querySelectorAll('.md-search-result__item').length > 3")
        found = browser.evaluate(
            "[...document.querySelectorAll('.md-search-result__link')].map(each => each.href)"
        )
        assert any("rules/bucketing.html" in link for link in found)
