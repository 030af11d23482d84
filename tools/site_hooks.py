"""What MkDocs calls while it builds the site; the pages are made by site_pages.py."""

import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "src")]

import site_pages  # noqa: E402  (MkDocs does not put tools/ on the path)

SITE = site_pages.Site()


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Make the pages, and put folders of pages into the navigation."""
    global SITE  # noqa: PLW0603  (MkDocs calls functions of a module, one after the other)
    SITE = site_pages.make_site()
    named = set(_pages_of(config.nav))
    config.nav = _expand(config.nav, named)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made, and the files that pages link to."""
    for uri, text in SITE.pages.items():
        files.append(File.generated(config, uri, content=text))
    for uri, what in SITE.copies.items():
        if isinstance(what, bytes):
            files.append(File.generated(config, uri, content=what))
        else:
            files.append(File.generated(config, uri, abs_src_path=str(ROOT / what)))
    for file in files.documentation_pages():
        if file.src_uri.startswith("project/") and file.src_uri not in _pages_of(config.nav):
            file.inclusion = file.inclusion.NOT_IN_NAV
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links to files of the repository to where the site has them, and add some."""
    uri = page.file.src_uri
    return site_pages.link_names(site_pages.rewrite_links(markdown, uri, SITE), uri)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make MathML of formulas."""
    return site_pages.mathml(html)


def _pages_of(nav: Any) -> list[str]:
    """Return all addresses of a navigation."""
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav or []
    return [uri for part in parts for uri in _pages_of(part)]


def _expand(nav: Any, named: set[str]) -> Any:
    """Replace each folder by its pages that are named nowhere else."""
    if isinstance(nav, dict):
        return {title: _expand(part, named) for title, part in nav.items()}
    if isinstance(nav, list):
        return [_expand(part, named) for part in nav]
    if not nav.endswith("/"):
        return nav
    known = [*SITE.pages, *SITE.origins]
    return [uri for uri in dict.fromkeys(known) if uri.startswith(nav) and uri not in named]
