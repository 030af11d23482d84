"""Pages of Markdown as tests read them: blocks of code, commands with their output, a tree."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
FOLDERS = ("*.md", "docs/**/*.md", "study/results/*.md", "benchmarks/results/*.md")
PAGES = sorted(path for pattern in FOLDERS for path in ROOT.glob(pattern))
"""All pages of the repository."""
PROMPT = "$ outvote "
IN_ORDER = (
    "README.md",
    "docs/tutorial/index.md",
    "docs/tutorial/1-aggregate.md",
    "docs/tutorial/2-simulate.md",
    "docs/tutorial/3-own-rule.md",
    "docs/tutorial/4-flower.md",
    "docs/concepts/threat-model.md",
    "docs/concepts/limits.md",
    "docs/concepts/gas-in-figures.md",
    "docs/concepts/sampling.md",
    "docs/how-to/aggregate-files.md",
    "docs/how-to/clusters.md",
    "docs/how-to/gpu.md",
    "docs/how-to/reproduce.md",
    "docs/reference/command-line.md",
)
"""Pages whose code is one program, block after block, and whose commands show what is printed."""


def blocks(text: str, kind: str = r"\w*") -> list[tuple[str, str]]:
    """The fenced blocks of a page: kind and content."""
    found = re.findall(rf"^```({kind})\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return [(each[0], each[1]) for each in found]


def python_blocks(page: str) -> list[str]:
    """The Python of a page, block by block."""
    return [text for _, text in blocks((ROOT / page).read_text(encoding="utf-8"), "python")]


def squeezed(line: str) -> str:
    return " ".join(line.split())


def shown_commands(page: str) -> dict[str, list[str]]:
    """Every command of a page, with the lines of output shown below it."""
    found = {}
    for _, text in blocks((ROOT / page).read_text(encoding="utf-8"), "console"):
        for shown in text.split(PROMPT)[1:]:
            command, _, output = shown.partition("\n")
            command = re.sub(r"\s+# .*$", "", command)
            found[command] = [squeezed(line) for line in output.splitlines()]
    return found


def every_command() -> list[tuple[str, str]]:
    """Every outvote command in the blocks of any page, without comments."""
    lines = [
        (path.relative_to(ROOT).as_posix(), line)
        for path in PAGES
        if path.name != "CHANGELOG.md"
        for kind, text in blocks(path.read_text(encoding="utf-8"))
        if kind in ("", "console", "sh")
        for line in text.splitlines()
    ]
    found = [
        (page, re.match(r"(?:\$ )?outvote (.*?)(?: {2,}.*| # .*)?$", line)) for page, line in lines
    ]
    return list(dict.fromkeys((page, each[1]) for page, each in found if each is not None))


def expected_output(page: str) -> list[str]:
    """What the code of a page prints: comments after a print, and `text` blocks below the code."""
    lines = []
    for kind, text in blocks((ROOT / page).read_text(encoding="utf-8")):
        if kind == "python":
            lines += re.findall(r"^ *print\(.*\)  # (.*)$", text, flags=re.MULTILINE)
        elif kind == "text":
            lines += text.splitlines()
    return lines


def paths_of_tree(text: str) -> list[str]:
    """The paths of a tree, folders included."""
    folders: dict[int, str] = {}
    found = []
    for line in text.splitlines():
        name = line.split()[0]
        indent = len(line) - len(line.lstrip())
        parent = "" if indent == 0 else folders[indent - 2]
        folders[indent] = parent + name
        found.append(parent + name)
    return found
