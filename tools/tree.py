"""The page of the site with a line for each file."""

import ast
import re
from configparser import ConfigParser
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("benchmarks", "examples", "study", "tools")
HEAD = """\
# Every file

One line each, the first of its docstring. Packages are in the order of their layers: a module
imports only from packages above it on this page.
"""


def page() -> str:
    """Return the whole page."""
    source = ROOT / "src" / "outvote"
    blocks = [_block("src/outvote", source)]
    blocks += [_block(f"src/outvote/{name}", source / name) for name in packages(source)]
    blocks += [_block(name, ROOT / name) for name in FOLDERS]
    return "\n".join([HEAD, *blocks])


def packages(source: Path) -> list[str]:
    """Return the packages from the bottom layer of .importlinter to the top."""
    rules = ConfigParser()
    rules.read(ROOT / ".importlinter", encoding="utf-8")
    layers = rules["importlinter:contract:layers"]["layers"].splitlines()
    names = [name for layer in reversed(layers) for name in re.findall(r"\((\w+)\)", layer)]
    return [name for name in names if (source / name).is_dir()]


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
    text = first_line(path).replace("|", "\\|").replace("<->", "&lt;-&gt;")
    return text.replace("[", "\\[")  # else a reference
