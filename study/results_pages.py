"""Make the pages and figures of the study from its exports: python study/results_pages.py."""

import io
import sys
from contextlib import chdir, redirect_stdout
from os.path import relpath
from pathlib import Path

import claims
import client_selection
import many_groups
import theory_bounds
import who_pays
from choosing import PAGE, with_worst_cases
from gain_figure import draw_gains
from marks import put_between
from other_data import MADE, with_other_data
from outvote.cli import main as outvote
from outvote.results.collect import collect
from outvote.suites.suite import suite_names
from regimes import (
    AGAINST,
    ALL_CLIENTS,
    ALONG,
    LATER,
    PRINTED,
    borrowed_text,
    distance_table,
    distances_by_reading,
    gain_table,
    missing_table,
    readings,
    seed_table,
    shorter_text,
    sweep_table,
    training_table,
)

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "study" / "results"
FIGURES = {
    "table1-cifar10": ("curves", "--part", "other-side"),
    "figure1-motivation": ("selection", "--part", "iid", "--part", "non-iid"),
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

    Where the suite is a file beside the export, that is given too (`--suite FILE`). The page of
    Table 1 with all clients goes on with its readings, and that of many groups with differences to
    p = 1,000.
    """
    found = {f"{name}.md": _table(folder, name) for name in page_names(folder)}
    if f"{ALL_CLIENTS}.md" in found:
        found[f"{ALL_CLIENTS}.md"] += all_readings(folder)
    if many_groups.is_run(folder):
        found[f"{many_groups.NAME}.md"] += many_groups.sections(folder)
    return found


READINGS_TEXT = """
---

The sections below are made by `study/results_pages.py` from the exports of this page, of
[table1-cifar10](table1-cifar10.md) and of [probes](probes.md).

### Seeds of each cell

One number for each reading of the paper's Table 1, in this order: {names}.{borrowed}{rounds}

{seeds}

### Gains of GAS with two trainings, all 50 clients

GAS(A) − A in points, best round / last ten rounds: printed training, and in brackets the later
training with 200 rounds.

{trainings}

### Points from the paper, by row and reading

Mean absolute distance of our best accuracy to the paper's over the attacks that were run (in
brackets: how many cells).{rounds}

{distances}

### Missing runs

By attack and seed, with the command that runs them and no others. An attack without a run gets the
rounds that most attacks of its part have.

{missing}

### GPU time

One NVIDIA H200. Runs of a stack share the seconds of its rounds, evaluation after every round is in
the seconds, and Byzantine clients that do not train add no samples. The [setup](README.md#setup)
names the code of runs whose commit is unknown.

{sweeps}
"""


def all_readings(folder: Path) -> str:
    """Return seeds, distances to the paper, missing runs and GPU time of Table 1, by reading."""
    return READINGS_TEXT.format(
        names="; ".join(readings(folder)),
        borrowed=borrowed_text(folder),
        rounds=shorter_text(folder, PRINTED),
        seeds="\n".join(seed_table(folder)),
        trainings="\n".join(training_table(folder)),
        distances="\n".join(distance_table(folder)),
        missing=missing_table(folder, [ALL_CLIENTS]),
        sweeps=sweep_table(folder),
    )


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
    table = "\n".join(gain_table(folder, (LATER, PRINTED, ALONG, AGAINST)))
    rounds = shorter_text(folder, PRINTED).strip()
    table += f"\n\n{rounds}" if rounds else ""
    return put_between(page, f"<!-- gains, {MADE}", "<!-- end of gains -->", table)


def with_tables(page: str, folder: Path) -> str:
    """Return the first page of the results with all its tables."""
    for put in (with_gains, with_distances, many_groups.with_many_groups, with_other_data):
        page = put(page, folder)
    return page


def with_distances(page: str, folder: Path) -> str:
    """Return the first page of the results with the distances to the paper between its marks."""
    table = "\n".join(distances_by_reading(folder))
    return put_between(page, f"<!-- distances, {MADE}", "<!-- end of distances -->", table)


def with_missing(page: str, folder: Path) -> str:
    """Return the page of missing runs with those of Table 1, CIFAR-10 between its marks."""
    table = missing_table(folder)
    return put_between(page, f"<!-- missing, {MADE}", "<!-- end of missing -->", table)


def pages() -> dict[Path, str]:
    """Return every page that is made, or has a table that is, from the exports."""
    made = {FOLDER / name: text for name, text in tables(FOLDER).items()}
    made[FOLDER / "claims.md"] = claims.page(FOLDER)
    with_marks = {
        FOLDER / "README.md": with_tables,
        FOLDER / "missing.md": with_missing,
        PAGE: with_worst_cases,
        who_pays.PAGE: who_pays.with_who_pays,
        client_selection.PAGE: client_selection.with_client_selection,
        theory_bounds.PAGE: theory_bounds.with_theory_bounds,
    }
    for path, put in with_marks.items():
        made[path] = put(path.read_text(encoding="utf-8"), FOLDER)
    return made


def main() -> None:
    """Write all pages and figures."""
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
    figures(FOLDER)
    sys.stdout.write(f"{FOLDER}\n")


if __name__ == "__main__":
    main()
