"""The pages of the site that are not in docs/: rules, attacks, notebooks, results, linked sources.

Everything here is text in, text out; site_hooks.py gives it to MkDocs.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from posixpath import dirname, normpath, relpath
from typing import Any

import tree

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PROJECT = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "CITATION.cff", "LICENSE")
"""Files of the root that have a page."""
RESULTS = ROOT / "study" / "results"
CODE = {".py": "python", ".toml": "toml", ".cff": "yaml", "": "text"}
"""The kinds of linked files that become a page; others are copied as they are."""
SIZES = (5, 10, 20, 50)

_LINK = re.compile(r"(\]\()(?!https?:|#|<)([^)#\s]+)((?:#[^)\s]*)?\))")
_FENCE = re.compile(r"^( *)(```+).*?^\1\2 *$", flags=re.MULTILINE | re.DOTALL)
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_LABEL = re.compile(r"(Needs|Tolerates|Differs from [^:]+?|Reference): ")


@dataclass(frozen=True)
class Description:
    """The parts of the docstring of a rule or an attack."""

    summary: str
    formulas: list[str]
    more: str
    facts: dict[str, str]
    example: str


@dataclass
class Site:
    """What the site has: pages made here by address, and the address of every linked file."""

    pages: dict[str, str] = field(default_factory=dict)
    copies: dict[str, str | bytes] = field(default_factory=dict)
    """Other files by address: the path in the repository, or the content."""
    where: dict[str, str] = field(default_factory=dict)
    """The address of a path in the repository."""
    origins: dict[str, str] = field(default_factory=dict)
    """The path in the repository that a page comes from, whose links are relative to it."""


def make_site() -> Site:
    """Make all pages, and one for each file outside of docs/ that a page links to."""
    site = Site()
    waiting = [(path, (ROOT / path).read_text("utf-8")) for path in PROJECT]
    for path in sorted(DOCS.glob("**/*.md")):
        name = path.relative_to(ROOT).as_posix()
        site.where[name] = site_uri = path.relative_to(DOCS).as_posix()
        site.origins[site_uri] = name
        waiting.append((name, path.read_text("utf-8")))
    for path in sorted(DOCS.glob("notebooks/*.ipynb")):
        _add_notebook(site, path)
    for path in sorted(DOCS.glob("**/*.*")):
        if path.suffix not in (".md", ".py", ".ipynb"):
            site.where[path.relative_to(ROOT).as_posix()] = path.relative_to(DOCS).as_posix()
    for path in sorted(RESULTS.glob("*.*")):
        name, uri = path.relative_to(ROOT).as_posix(), f"results/{path.name}"
        site.where[name] = uri
        if path.suffix == ".md":
            site.pages[uri], site.origins[uri] = path.read_text("utf-8"), name
            waiting.append((name, site.pages[uri]))
        else:
            site.copies[uri] = name
    _add_decisions(site)
    site.pages["tree.md"] = tree.page()
    while waiting:
        name, text = waiting.pop()
        if name not in site.where:
            _add_file(site, name, text)
        if name.endswith(".md"):
            waiting += _linked(site, name, text)
    _add_names(site)
    return site


def rewrite_links(text: str, uri: str, site: Site) -> str:
    """Return the text of a page with its links to files of the repository as links of the site."""
    origin = site.origins.get(uri)
    if origin is None:
        return text

    def replaced(match: re.Match[str]) -> str:
        target = normpath(f"{dirname(origin) or '.'}/{match[2]}")
        there = site.where.get(target)
        if there is None:
            return match[0]
        return f"{match[1]}{relpath(there, dirname(uri) or '.')}{match[3]}"

    return _outside_code(text, lambda part: _LINK.sub(replaced, part))


def link_names(text: str, uri: str) -> str:
    """Return a page on which the names in the table of kinds lead to their own pages."""
    folder = {"reference/rules.md": "rules", "reference/attacks.md": "attacks"}.get(uri)
    head, mark, rest = text.partition("\n## Kinds\n")
    if folder is None or not mark:
        return text
    section, mark_after, after = rest.partition("\n## ")
    row = re.compile(r"^\| ([a-z-]+) \| `", flags=re.MULTILINE)
    section = row.sub(rf"| [\1](../{folder}/\1.md) | `", section)
    return f"{head}{mark}{section}{mark_after}{after}"


def describe(docstring: str) -> Description:
    """Take the docstring of a rule or an attack apart."""
    text = "\n".join(line.removeprefix("    ") for line in docstring.strip().splitlines())
    text, _, example = text.partition(">>>")
    summary, _, rest = text.partition("\n\n")
    formulas = [" ".join(each.split()) for each in re.findall(r"\$\$(.*?)\$\$", rest, re.DOTALL)]
    words = " ".join(re.sub(r"\$\$.*?\$\$", "", rest, flags=re.DOTALL).split())
    more, *facts = _LABEL.split(words)
    return Description(
        summary=" ".join(summary.split()),
        formulas=formulas,
        more=more.strip(),
        facts={key: value.strip() for key, value in zip(facts[::2], facts[1::2], strict=True)},
        example=f">>>{example}".strip() if example else "",
    )


def table_rows(page: Path, heading: str) -> list[dict[str, str]]:
    """Return the rows of the first table under a heading."""
    section = page.read_text("utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]


def rule_page(name: str) -> str:
    """Return the page of a rule or wrapper: formula, image, parameters, limits, references."""
    from outvote.rules.rule import Wrapper
    from outvote.rules.rule_spec import RULES, make_rule

    kind = RULES[name]
    about = describe(kind.__doc__ or "")
    is_wrapper = issubclass(kind, Wrapper)
    rule = make_rule(f"{name}(median)" if is_wrapper else name)
    reference = DOCS / "reference" / "rules.md"
    (facts,) = (row for row in table_rows(reference, "Kinds") if row["rule"] == name)
    (not_from,) = (
        row
        for row in table_rows(DOCS / "concepts" / "limits.md", "Rule by rule")
        if row["rule"].strip("`") == name
    )
    limits = [str(rule.max_byzantine(size)) for size in SIZES]
    shown = f"{name}(median)" if is_wrapper else name
    alt = f"{name}: gradients of a toy round, how much each counts, and the update"
    kinds = (
        f"Kind: {facts['kind']}. Needs f: {facts['needs f']}. Can be wrapped: "
        f"{facts['can be wrapped']}. Random: {facts['random']}. State: {facts['state']}. The words "
        "are explained on the [page of all rules](../reference/rules.md#kinds)."
    )
    gaps = (
        f"**Does not protect from** {not_from['does not protect from']}. "
        "More in [what rules do not protect from](../concepts/limits.md)."
    )
    parts = [
        f"# {name}",
        about.summary,
        f"![{alt}](../images/rules/{name}.svg)",
        *_formula(about),
        *_facts(about),
        "## Parameters",
        _parameters(reference, "rule", name),
        "## Limits",
        _table(["", *(f"n = {size}" for size in SIZES)], [[f"largest f of `{shown}`", *limits]]),
        kinds,
        gaps,
        *_example(about),
        "## Class",
        _class_of(kind),
    ]
    return "\n\n".join(parts) + "\n"


def attack_page(name: str) -> str:
    """Return the page of an attack: formula, image, parameters, limits, references."""
    from outvote.attacks.attack_spec import ATTACKS

    kind = ATTACKS[name]
    about = describe(kind.__doc__ or "")
    reference = DOCS / "reference" / "attacks.md"
    (facts,) = (row for row in table_rows(reference, "Kinds") if row["attack"] == name)
    section = _attack_section(reference, name)
    degenerate = re.search(r"^- \*\*Degenerate\*\*: (.*)$", section, flags=re.MULTILINE)
    words = section.split("![")[0].strip()
    kinds = (
        f"Calls the rule: {facts['calls the rule']}. Random: {facts['random']}. All attackers send "
        f"one row: {facts['all send one row']}. State: {facts['state']}. Sends NaN or infinity: "
        f"{facts['not finite']}. The words are explained on the "
        "[page of all attacks](../reference/attacks.md#kinds)."
    )
    parts = [
        f"# {name}",
        about.summary,
        words,
        f"![{name}: positions of attackers and outputs of rules](../images/{name}.svg)",
        *_formula(about),
        *_facts(about),
        "## Parameters",
        _parameters(reference, "attack", name),
        "## Limits",
        f"Degenerate cases: {degenerate[1] if degenerate else 'none'}.",
        kinds,
        *_example(about),
        "## Class",
        _class_of(kind),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def notebook_page(notebook: Mapping[str, Any], name: str) -> tuple[str, dict[str, bytes]]:
    """Return a notebook as Markdown, and its images by file name."""
    from base64 import b64decode

    parts, images = [], {}
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(text)
            continue
        parts.append(f"```python\n{text}\n```")
        for output in _joined(cell["outputs"]):
            data = output.get("data", {})
            if "image/png" in data:
                file = f"{name}-{len(images) + 1}.png"
                images[file] = b64decode("".join(data["image/png"]))
                parts.append(f"![Output of the cell above]({file})")
            elif "text/html" in data:
                html = re.sub(r"\n\s*\n", "\n", "".join(data["text/html"]))
                parts.append(f'<div class="notebook-output">\n{html}\n</div>')
            else:
                plain = _ANSI.sub("", "".join(output.get("text") or data.get("text/plain", "")))
                parts.append(f"```text\n{plain.rstrip()}\n```")
    head, *rest = parts
    link = f"This page is a notebook: [{name}.ipynb]({name}.ipynb)."
    return "\n\n".join([head, link, *rest]) + "\n", images


def _joined(outputs: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the outputs of a cell, with all that it printed in a row as one."""
    printed: list[str] = []
    for output in outputs:
        if output["output_type"] == "stream":
            printed += output["text"]
            continue
        if printed:
            yield {"text": printed}
            printed = []
        yield output
    if printed:
        yield {"text": printed}


def mathml(html: str) -> str:
    """Return a page in which formulas are MathML, which browsers show without any script."""
    from html import unescape

    from latex2mathml.converter import convert

    def replaced(match: re.Match[str]) -> str:
        is_block = match[1] == "div"
        text = unescape(match[2]).strip()[2:-2].strip()
        found = convert(_tex(text), display="block" if is_block else "inline")
        if "\\" in found:
            raise ValueError(f"the formula has a command that is not known: {text}")
        return found

    return re.sub(r'<(div|span) class="arithmatex">(.*?)</\1>', replaced, html, flags=re.DOTALL)


def _tex(text: str) -> str:
    """Return a formula without the commands that latex2mathml does not know."""
    for command, instead in (
        (r"\arg\min", r"\operatorname{argmin}"),
        (r"\arg\max", r"\operatorname{argmax}"),
        (r"\big\|", r"\|"),
        (r"\iff", r"\Leftrightarrow"),
        (r"\sim", "∼"),
    ):
        text = text.replace(command, instead)
    return text


def _add_names(site: Site) -> None:
    from outvote.attacks.attack_spec import ATTACKS
    from outvote.rules.rule_spec import RULES

    site.pages |= {f"rules/{name}.md": rule_page(name) for name in RULES}
    site.pages |= {f"attacks/{name}.md": attack_page(name) for name in ATTACKS}


def _add_decisions(site: Site) -> None:
    """Add the page that the folder of decisions is on the site."""
    lines = [
        f"- [{path.read_text('utf-8').partition(chr(10))[0].removeprefix('# ')}]({path.name})"
        for path in sorted(DOCS.glob("decisions/*.md"))
    ]
    head = "# Decisions\n\nWhy things are as they are, one page each.\n\n"
    site.pages["decisions/index.md"] = head + "\n".join(lines) + "\n"
    site.where["docs/decisions"] = "decisions/index.md"


def _add_notebook(site: Site, path: Path) -> None:
    text, images = notebook_page(json.loads(path.read_text("utf-8")), path.stem)
    name = path.relative_to(ROOT).as_posix()
    uri = f"notebooks/{path.stem}.md"
    site.pages[uri], site.where[name], site.origins[uri] = text, uri, name
    site.copies |= {f"notebooks/{file}": content for file, content in images.items()}


def _add_file(site: Site, name: str, text: str) -> None:
    path = ROOT / name
    uri = "index.md" if name == "README.md" else f"project/{name}"
    if name.endswith(".md"):
        site.pages[uri], site.origins[uri] = text, name
    elif path.is_dir():
        uri += "/index.md"
        site.pages[uri] = f"# {name}\n\n" + "\n".join(_listing(path)) + "\n"
        site.origins[uri] = f"{name}/index.md"
    elif path.suffix in CODE:
        uri += ".md"
        site.pages[uri] = f"# {name}\n\n````{CODE[path.suffix]}\n{text.rstrip()}\n````\n"
    else:
        site.copies[uri] = name
    site.where[name] = uri


def _listing(folder: Path) -> Iterator[str]:
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.suffix in (".py", ".toml", ".md", ".csv", ".json"):
            yield f"- [{path.name}]({path.name})"


def _linked(site: Site, name: str, text: str) -> Iterator[tuple[str, str]]:
    """Yield the files outside of docs/ that a page links to, with their texts."""
    targets = {
        normpath(f"{dirname(name) or '.'}/{match[2]}")
        for match in _LINK.finditer(_FENCE.sub("", text))
    }
    for target in sorted(targets - set(site.where)):
        path = ROOT / target
        if not path.exists():
            continue
        if path.is_dir():
            yield target, ""
            yield from ((f"{target}/{line[3:].split(']')[0]}", "") for line in _listing(path))
        else:
            yield target, path.read_text("utf-8")


def _outside_code(text: str, change: Any) -> str:
    parts, end = [], 0
    for fence in _FENCE.finditer(text):
        parts += [change(text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, change(text[end:])])


def _formula(about: Description) -> Iterator[str]:
    yield "## Formula"
    yield from (f"$$\n{formula}\n$$" for formula in about.formulas)
    if about.more:
        yield _linked_notes(about.more)


def _facts(about: Description) -> Iterator[str]:
    for key, value in about.facts.items():
        yield f"- **{key}**: {_linked_notes(value)}"


def _linked_notes(text: str) -> str:
    return re.sub(r"docs/((?:[\w-]+/)*)([\w-]+)\.md", r"[\2](../\1\2.md)", text)


def _parameters(reference: Path, column: str, name: str) -> str:
    rows = [row for row in table_rows(reference, "Parameters") if row[column] == name]
    if not rows:
        return "None."
    head = ["parameter", "letter", "default", "meaning"]
    return _table(
        head,
        [[re.sub(r"\]\((?!\.\.)", "](../reference/", row[key]) for key in head] for row in rows],
    )


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _example(about: Description) -> Iterator[str]:
    if about.example:
        yield "## Example"
        yield f"```pycon\n{about.example}\n```"


def _class_of(kind: type) -> str:
    return "\n".join(
        [
            f"::: {kind.__module__}.{kind.__qualname__}",
            "    options:",
            "      heading_level: 3",
            "      members: false",
            "      show_docstring_description: false",
            "      show_bases: true",
        ]
    )


def _attack_section(reference: Path, name: str) -> str:
    text = reference.read_text("utf-8").split("\n## The attacks\n")[1]
    return text.split(f"\n### {name}\n")[1].split("\n### ")[0]
