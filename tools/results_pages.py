"""Make the pages of docs/results from the exports beside them: python tools/results_pages.py."""

import io
import sys
from contextlib import redirect_stdout
from pathlib import Path

from outvote.cli import main as outvote
from outvote.report.layout import grids_of
from outvote.results.collect import collect
from outvote.suites.suite import suite_names

ROOT = Path(__file__).parents[1]
FOLDER, README = ROOT / "docs" / "results", ROOT / "README.md"
BEGIN, END = "<!-- table 1, made by tools/results_pages.py -->", "<!-- end of table 1 -->"
PICTURES = {
    "table1-cifar10": ("curves", "--part", "main"),
    "figure1-motivation": ("selection",),
    "figure2-deviation": ("deviation",),
}


def tables(folder: Path) -> dict[str, str]:
    """Return the page of each suite: exactly what `outvote table EXPORT --paper` prints."""
    result = {}
    for export in sorted(folder.glob("*.csv.gz")):
        name = export.name.removesuffix(".csv.gz")
        if name in suite_names():
            said = io.StringIO()
            with redirect_stdout(said):
                code = outvote(["table", str(export), "--paper"])
            if code:
                raise SystemExit(f"outvote table {export} ended with {code}")
            result[f"{name}.md"] = said.getvalue()
    return result


def pictures(folder: Path) -> None:
    """Draw the figures."""
    for name, (kind, *more) in PICTURES.items():
        export = folder / f"{name}.csv.gz"
        if export.exists():
            words = ["plot", str(export), "--kind", kind, *more]
            outvote([*words, "-o", str(folder / f"{name}.png")])


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
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{short_table(folder)}\n\n{END}{after}"


def main() -> None:
    """Write all of them."""
    for name, text in tables(FOLDER).items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    pictures(FOLDER)
    README.write_text(
        with_short_table(README.read_text(encoding="utf-8"), FOLDER), encoding="utf-8"
    )
    sys.stdout.write(f"{FOLDER}\n")


if __name__ == "__main__":
    main()
