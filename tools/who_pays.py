"""The table of docs/concepts/who-pays.md: what honest clients get from each rule."""

from pathlib import Path
from statistics import fmean

from marks import put_between
from outvote.report.cells import SHORT, WHO_PAYS
from outvote.results.collect import collect
from outvote.results.run import Result
from outvote.suites.suite import read_suite

PAGE = Path(__file__).parents[1] / "docs" / "concepts" / "who-pays.md"
BEGIN, END = "<!-- who pays, made by tools/results_pages.py -->", "<!-- end of who pays -->"
NAME = "who-pays-small"
ATTACKS = ("none", "lie")


def who_pays(folder: Path) -> str:
    """Return the table: means over seeds in percent, without an attack / under LIE."""
    runs = collect([folder / f"{NAME}.csv.gz"])
    rules = read_suite(str(folder / f"{NAME}.toml")).parts[0].rows
    lines = [f"| rule | {' | '.join(SHORT[name] for name in WHO_PAYS)} |"]
    lines.append(f"|---|{'---:|' * len(WHO_PAYS)}")
    for rule in rules:
        cells = []
        for name in WHO_PAYS:
            means = [
                fmean(100 * getattr(run, name) for run in runs if _is_of(run, rule, attack))
                for attack in ATTACKS
            ]
            cells.append(" / ".join(f"{mean:.1f}" for mean in means))
        lines.append(f"| {rule} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _is_of(run: Result, rule: str, attack: str) -> bool:
    return (run.rule, run.attack) == (rule, attack)


def with_who_pays(page: str, folder: Path) -> str:
    """Return the page with the table put between its marks."""
    return put_between(page, BEGIN, END, who_pays(folder))
