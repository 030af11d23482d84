"""Make the pages of docs/results from the exports beside them: python tools/results_pages.py."""

import io
import sys
from contextlib import redirect_stdout
from pathlib import Path

from outvote.cli import main as outvote
from outvote.suites.suite import suite_names

FOLDER = Path(__file__).parents[1] / "docs" / "results"
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


def main() -> None:
    """Write all of them."""
    for name, text in tables(FOLDER).items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    pictures(FOLDER)
    sys.stdout.write(f"{FOLDER}\n")


if __name__ == "__main__":
    main()
