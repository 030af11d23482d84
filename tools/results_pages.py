"""Make the pages of docs/results from the exports beside them: python tools/results_pages.py."""

import io
import sys
from contextlib import chdir, redirect_stdout
from os.path import relpath
from pathlib import Path

import client_selection
import theory_bounds
import who_pays
from choosing import PAGE, with_worst_cases
from gain_figure import draw_gains
from marks import put_between
from outvote.cli import main as outvote
from outvote.results.collect import collect
from outvote.suites.suite import suite_names
from regimes import AGAINST, ALONG, LATER, gain_table, missing_table, sweep_table

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "results"
MADE = "made by tools/results_pages.py -->"
FIGURES = {
    "table1-cifar10": ("curves", "--part", "other-side"),
    "figure1-motivation": ("selection",),
    "figure2-deviation": ("deviation",),
    "theory-small": ("bound", "--part", "ipm", "--suite", str(FOLDER / "theory-small.toml")),
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
    if (folder / "table1-cifar10-all-clients.csv.gz").exists():
        drawn.append(draw_gains(folder, folder / "gains.png"))
    return drawn


def _run(words: list[str]) -> None:
    code = outvote(words)
    if code:
        raise SystemExit(f"outvote {' '.join(words)} ended with {code}")


def with_gains(page: str, folder: Path) -> str:
    """Return the first page of the results with the gains of GAS in both regimes between marks."""
    table = "\n".join(gain_table(folder, (LATER, ALONG, AGAINST)))
    return put_between(page, f"<!-- gains, {MADE}", "<!-- end of gains -->", table)


def with_tables(page: str, folder: Path) -> str:
    """Return the first page of the results with all its tables."""
    return with_sweeps(with_gains(page, folder), folder)


def with_sweeps(page: str, folder: Path) -> str:
    """Return the first page of the results with the missing runs and the sweeps between marks."""
    for name, table in (("missing", missing_table(folder)), ("sweeps", sweep_table(folder))):
        page = put_between(page, f"<!-- {name}, {MADE}", f"<!-- end of {name} -->", table)
    return page


def main() -> None:
    """Write all of them."""
    for name, text in tables(FOLDER).items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    figures(FOLDER)
    pages = {FOLDER / "README.md": with_tables, PAGE: with_worst_cases}
    pages[who_pays.PAGE] = who_pays.with_who_pays
    pages[client_selection.PAGE] = client_selection.with_client_selection
    pages[theory_bounds.PAGE] = theory_bounds.with_theory_bounds
    for page, put in pages.items():
        page.write_text(put(page.read_text(encoding="utf-8"), FOLDER), encoding="utf-8")
    sys.stdout.write(f"{FOLDER}\n")


if __name__ == "__main__":
    main()
