"""The site is complete: navigation, links, a page for every rule, attack and public name."""

import importlib
import inspect
import json
import re
import runpy
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from posixpath import dirname, normpath

import pytest

import outvote
import site_pages
from doc_pages import DOCS, PAGES, ROOT
from outvote.attacks.attack_spec import ATTACKS
from outvote.cli.describe import field_docs
from outvote.rules.rule_spec import RULES

yaml = pytest.importorskip("yaml")
REFERENCE = DOCS / "reference"
MODULES = ("outvote", "outvote.data", "outvote.files", "outvote.flower", "outvote.testing")
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")


class _Loader(yaml.SafeLoader):
    """Reads mkdocs.yml without calling what it names."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)


@pytest.fixture(scope="module")
def site():
    return site_pages.make_site()


def pages_of(nav):
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav
    return [uri for part in parts for uri in pages_of(part)]


def navigation():
    settings = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), _Loader)
    return pages_of(settings["nav"])


def all_pages(site):
    return set(site.pages) | {uri for uri in site.origins if uri.endswith(".md")}


def test_every_name_in_the_navigation_is_a_page_or_a_folder_of_pages(site):
    known = all_pages(site)
    for uri in navigation():
        if uri.endswith("/"):
            assert any(each.startswith(uri) for each in known), uri
        else:
            assert uri in known, uri


def test_every_page_is_in_the_navigation(site):
    named = navigation()
    folders = tuple(uri for uri in named if uri.endswith("/"))
    missing = {
        uri
        for uri in all_pages(site)
        if uri not in named and not uri.startswith((*folders, "project/"))
    }
    assert missing == set()


def test_every_link_of_the_site_leads_to_a_file(site):
    """After links to files of the repository have become links of the site."""
    known = all_pages(site) | set(site.copies)
    known |= {path.relative_to(DOCS).as_posix() for path in DOCS.glob("**/*.*")}
    known -= {uri for uri in known if uri.endswith(".py")}
    for uri in sorted(all_pages(site)):
        origin = site.origins.get(uri)
        own = uri not in site.pages and (ROOT / origin).read_text(encoding="utf-8")
        text = site_pages.rewrite_links(own or site.pages[uri], uri, site)
        text = re.sub(r"^( *)(```+).*?^\1\2 *$", "", text, flags=re.MULTILINE | re.DOTALL)
        targets = {normpath(f"{dirname(uri) or '.'}/{link}") for link in LINK.findall(text)}
        assert targets - known == set(), uri


@pytest.mark.parametrize(("names", "make"), [(RULES, "rule_page"), (ATTACKS, "attack_page")])
def test_every_rule_and_attack_has_a_page_with_a_formula_an_image_and_its_class(names, make):
    for name, kind in names.items():
        page = getattr(site_pages, make)(name)
        assert "## Formula\n\n$$" in page
        assert f"::: {kind.__module__}.{kind.__name__}" in page
        (image,) = re.findall(r"\]\(\.\./(images/.*?\.svg)\)", page)
        assert (DOCS / image).exists()


def is_defined(module, name):
    if module.startswith("outvote.nvflare."):  # It cannot be imported without NVIDIA FLARE.
        source = ROOT / "src" / f"{module.replace('.', '/')}.py"
        return f"\nclass {name}(" in source.read_text(encoding="utf-8")
    return hasattr(importlib.import_module(module), name)


def public_names(module):
    """The names of a package: those of `__all__`, or what its file imports."""
    found = importlib.import_module(module)
    source = Path(found.__file__).read_text(encoding="utf-8")
    return getattr(
        found, "__all__", re.findall(r"^from .* import (\w+) as \1$", source, re.MULTILINE)
    )


def test_packages_with_public_names_are_known():
    """Others hold modules alone; kernels and cli are for outvote itself."""
    source = ROOT / "src" / "outvote"
    having = {
        f"outvote.{path.parent.name}"
        for path in source.glob("*/__init__.py")
        if re.search(r"^ *from outvote\.", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert having - {"outvote.ops", "outvote.cli"} == {*MODULES[1:], "outvote.nvflare"}


@pytest.mark.parametrize("module", MODULES)
def test_every_field_of_a_public_class_is_explained(module):
    for name in public_names(module):
        thing = getattr(importlib.import_module(module), name)
        if is_dataclass(thing):
            docs = field_docs(thing)
            named = {each.name for each in fields(thing)} - {"rule"}  # what a wrapper wraps
            assert {each for each in named if not docs.get(each)} == set(), name


def test_every_public_name_has_a_place_in_the_reference():
    pages = [page.read_text(encoding="utf-8") for page in REFERENCE.glob("python-*.md")]
    pages += [site_pages.rule_page(name) for name in RULES]
    pages += [site_pages.attack_page(name) for name in ATTACKS]
    placed = re.findall(r"^::: ([\w.]+)$", "\n".join(pages), flags=re.MULTILINE)
    for path in placed:
        module, _, name = path.rpartition(".")
        assert is_defined(module, name), path
    public = {"RobustAggregator"} | {name for module in MODULES for name in public_names(module)}
    assert public - {path.rpartition(".")[2] for path in placed} == set()
    assert len(placed) == len(set(placed))


def documented(docstring):
    """The names in the section Args of a docstring."""
    section = inspect.cleandoc(docstring).split("\nArgs:\n")[1].split("\n\n")[0]
    return re.findall(r"^    (\w+): \S", section, flags=re.MULTILINE)


def test_every_keyword_of_calls_is_in_their_docstrings():
    from outvote.flower import RobustStrategy

    calls = {outvote.simulate: outvote.simulate, outvote.Rule.inspect: outvote.Rule.inspect}
    calls[RobustStrategy] = RobustStrategy.__init__
    for thing, call in calls.items():
        keywords = [name for name in inspect.signature(call).parameters if name != "self"]
        assert documented(thing.__doc__) == keywords


def test_a_docstring_is_taken_apart():
    about = site_pages.describe(outvote.NormFilter.__doc__)
    assert about.summary.startswith("Drop gradients that are much longer")
    assert about.formulas[0].startswith("S = \\{i")
    assert about.more.startswith("At most f gradients are dropped")
    assert list(about.facts) == ["Needs", "Tolerates", "Differs from the paper", "Reference"]
    assert about.example.splitlines()[0] == ">>> from outvote import RFA"
    page = site_pages.rule_page("norm-filter")
    assert "[0016-gas-and-scales](../decisions/0016-gas-and-scales.md)" in page


def test_every_formula_becomes_mathml_without_a_rest_of_tex():
    pytest.importorskip("latex2mathml", reason="pip install 'outvote[docs]'")
    for kind in (*RULES.values(), *ATTACKS.values()):
        for formula in site_pages.describe(kind.__doc__).formulas:
            html = f'<div class="arithmatex">\\[{formula}\\]</div>'
            found = site_pages.mathml(html)
            assert found.startswith("<math")
    with pytest.raises(ValueError, match="is not known"):
        site_pages.mathml(r'<span class="arithmatex">\(\nosuchcommand x\)</span>')


@pytest.mark.parametrize(("kind", "names"), [("rules", RULES), ("attacks", ATTACKS)])
def test_the_table_of_kinds_leads_to_every_page(kind, names):
    text = (REFERENCE / f"{kind}.md").read_text(encoding="utf-8")
    linked = site_pages.link_names(text, f"reference/{kind}.md")
    assert re.findall(rf"^\| \[[a-z-]+\]\(\.\./{kind}/([a-z-]+)\.md\)", linked, re.MULTILINE) == [
        *names
    ]
    assert re.sub(r"\[([a-z-]+)\]\(\.\./(?:rules|attacks)/\1\.md\)", r"\1", linked) == text
    assert site_pages.link_names(text, "how-to/data.md") == text


def test_links_in_code_stay(site):
    text = "[a](../../README.md)\n\n```md\n[a](../../README.md)\n```\n"
    found = site_pages.rewrite_links(text, "how-to/data.md", site)
    assert found == "[a](../index.md)\n\n```md\n[a](../../README.md)\n```\n"


def test_a_notebook_becomes_a_page():
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "words"]},
        {
            "cell_type": "code",
            "source": ["1 + 1"],
            "outputs": [
                {"output_type": "stream", "text": ["\x1b[1mbold\x1b[0m\n"]},
                {"output_type": "execute_result", "data": {"text/html": ["<b>\n\n2</b>"]}},
                {"output_type": "display_data", "data": {"image/png": "aGk="}},
            ],
        },
    ]
    page, images = site_pages.notebook_page({"cells": cells}, "mine")
    assert page.startswith("# Title\nwords\n\nThis page is a notebook: [mine.ipynb](mine.ipynb).")
    assert "```python\n1 + 1\n```\n\n```text\nbold\n```" in page
    assert '<div class="notebook-output">\n<b>\n2</b>\n</div>' in page
    assert images == {"mine-1.png": b"hi"}


@pytest.mark.parametrize("path", sorted(DOCS.glob("notebooks/*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_is_kept_with_outputs_and_without_errors(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for cell in code:
        compile("".join(cell["source"]), path.name, "exec")
        assert cell["execution_count"] is not None
    outputs = [output for cell in code for output in cell["outputs"]]
    assert len(outputs) >= 4
    assert "error" not in {output["output_type"] for output in outputs}
    assert not re.search(r"/(?:tmp|home|work|root)/", path.read_text(encoding="utf-8"))
    assert path.stat().st_size < 400_000


def test_nothing_in_our_own_parts_of_the_site_loads_from_elsewhere():
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert "http" not in settings
    assert "font: false" in settings
    for path in (DOCS / "assets").iterdir():
        assert not re.search(r"https?:|url\(|@import", path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_to_a_file_of_the_repository(page):
    missing = {link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()}
    assert missing == set()


@pytest.mark.parametrize("page", sorted(DOCS.glob("decisions/*.md")), ids=lambda page: page.stem)
def test_decision_notes_are_numbered_and_fit_one_page(page):
    assert re.fullmatch(r"\d{4}-[a-z0-9-]+", page.stem)
    assert len(page.read_text().splitlines()) <= 40


@pytest.mark.parametrize(
    ("script", "names", "files"),
    [
        ("make_rule_images.py", ["krum", "1-whole"], ["1-whole.svg", "krum.svg"]),
        ("make_attack_images.py", ["lie", "nan"], ["lie.svg", "nan.svg"]),
    ],
)
def test_images_can_be_drawn_again_and_are_the_same_every_time(
    script, names, files, tmp_path, monkeypatch
):
    pytest.importorskip("matplotlib", reason="pip install 'outvote[plots]'")
    drawn = []
    for folder in ("one", "two"):
        monkeypatch.setattr(sys, "argv", [script, "-o", str(tmp_path / folder), *names])
        runpy.run_path(str(DOCS / script), run_name="__main__")
        found = sorted((tmp_path / folder).rglob("*.svg"))
        assert sorted(path.name for path in found) == files
        drawn.append([path.read_bytes() for path in found])
    assert drawn[0] == drawn[1]
