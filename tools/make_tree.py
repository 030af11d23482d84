"""Make docs/tree.md, one line for each file: python tools/make_tree.py."""

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = (
    "data",
    "models",
    "results",
    "suites",
    "partition",
    "clients",
    "attacks",
    "rules",
    "server",
    "metrics",
    "engine",
    "testing",
    "experiment",
    "report",
    "flower",
    "cli",
)
"""From the bottom to the top: a package imports only from those before it."""
FOLDERS = ("benchmarks", "examples", "tools")
HEAD = """\
# Every file

One line each, from the files themselves (`python tools/make_tree.py`). Packages stand in the order
of their layers: imports go upwards on this page only.
"""


def page() -> str:
    """Return the whole page."""
    source = ROOT / "src" / "outvote"
    blocks = [_block("src/outvote", source)]
    blocks += [_block(f"src/outvote/{name}", source / name) for name in PACKAGES]
    blocks += [_block(name, ROOT / name) for name in FOLDERS]
    return "\n".join([HEAD, *blocks])


def first_line(path: Path) -> str:
    """Return the first line of the docstring of a file."""
    found = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    return (found or "").split("\n", maxsplit=1)[0].rstrip(".")


def _block(title: str, folder: Path) -> str:
    files = sorted(path for path in folder.glob("*.py"))
    package = folder / "__init__.py"
    about = f"\n{first_line(package)}.\n" if package in files else ""
    rows = [f"| `{path.name}` | {_cell(path)} |" for path in files if path != package]
    return "\n".join([f"## {title}", about, "| file | what |", "|---|---|", *rows, ""])


def _cell(path: Path) -> str:
    return first_line(path).replace("|", "\\|").replace("<->", "&lt;-&gt;")


if __name__ == "__main__":
    target = ROOT / "docs" / "tree.md"
    target.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{target}\n")
