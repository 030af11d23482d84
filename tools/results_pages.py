"""Make the pages of docs/results from the exports beside them: python tools/results_pages.py."""

import io
import sys
from contextlib import chdir, redirect_stdout
from os.path import relpath
from pathlib import Path

from choosing import PAGE, with_worst_cases
from marks import put_between
from outvote.cli import main as outvote
from outvote.report.layout import grids_of
from outvote.results.collect import collect
from outvote.suites.suite import suite_names

ROOT = Path(__file__).parents[1]
FOLDER, README = ROOT / "docs" / "results", ROOT / "README.md"
BEGIN, END = "<!-- table 1, made by tools/results_pages.py -->", "<!-- end of table 1 -->"
FIGURES = {
    "table1-cifar10": ("curves", "--part", "main"),
    "figure1-motivation": ("selection",),
    "figure2-deviation": ("deviation",),
}


def page_names(folder: Path) -> list[str]:
    """Return the exports that have a page: those of outvote's suites, and of files beside them."""
    names = [path.name.removesuffix(".csv.gz") for path in sorted(folder.glob("*.csv.gz"))]
    known = suite_names()
    return [name for name in names if name in known or (folder / f"{name}.toml").exists()]


def tables(folder: Path) -> dict[str, str]:
    """Return the page of each suite: exactly what `outvote table EXPORT --paper` prints.

    Where the suite is a file beside the export, that is given too (`--suite FILE`).
    """
    return {f"{name}.md": _table(folder, name) for name in page_names(folder)}


def _table(folder: Path, name: str) -> str:
    words = ["table", str(folder / f"{name}.csv.gz"), "--paper"]
    if (folder / f"{name}.toml").exists():
        # The page names the file in its commands, and those are typed in the root.
        words += ["--suite", relpath(folder / f"{name}.toml", ROOT)]
    printed = io.StringIO()
    with chdir(ROOT), redirect_stdout(printed):
        _run(words)
    return printed.getvalue()


def figures(folder: Path) -> list[Path]:
    """Draw the figures of exports in which runs are over, and return them."""
    drawn = []
    for name, (kind, *more) in FIGURES.items():
        export, figure = folder / f"{name}.csv.gz", folder / f"{name}.png"
        if export.exists() and any(each.is_over for each in collect([export])):
            _run(["plot", str(export), "--kind", kind, *more, "-o", str(figure)])
            drawn.append(figure)
    return drawn


def _run(words: list[str]) -> None:
    code = outvote(words)
    if code:
        raise SystemExit(f"outvote {' '.join(words)} ended with {code}")


def short_table(folder: Path) -> str:
    """Return Table 1 as the README has it: means, the paper's number in brackets."""
    results = collect([folder / "table1-cifar10.csv.gz"])
    (grid,) = grids_of(results, part="main")
    lines = [f"| rule | {' | '.join(grid.titles)} |", f"|---|{'---|' * len(grid.titles)}"]
    for row, cells in zip(grid.rows, grid.cells, strict=True):
        texts = []
        for cell in cells:
            spread, printed = cell.spread("best"), cell.printed
            assert spread is not None
            assert printed is not None
            texts.append(f"{spread.mean:.1f} ({printed.accuracy:.1f})")
        lines.append(f"| {row} | {' | '.join(texts)} |")
    return "\n".join(lines)


def with_short_table(readme: str, folder: Path) -> str:
    """Return the README with the table put between its marks."""
    return put_between(readme, BEGIN, END, short_table(folder))


def main() -> None:
    """Write all of them."""
    for name, text in tables(FOLDER).items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    figures(FOLDER)
    README.write_text(
        with_short_table(README.read_text(encoding="utf-8"), FOLDER), encoding="utf-8"
    )
    PAGE.write_text(with_worst_cases(PAGE.read_text(encoding="utf-8"), FOLDER), encoding="utf-8")
    sys.stdout.write(f"{FOLDER}\n")


if __name__ == "__main__":
    main()
