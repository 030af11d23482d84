"""The tables of docs/concepts/client-selection.md: what sampling by score does, and to whom."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from marks import put_between
from outvote.experiment.builder import RunBuilder
from outvote.experiment.run_spec import DataSpec, FederationSpec, RunSpec
from outvote.report.cells import SHORT, Metric
from outvote.results.collect import collect
from outvote.results.run import Result

PAGE = Path(__file__).parents[1] / "docs" / "concepts" / "client-selection.md"
BEGIN = "<!-- client selection, made by study/results_pages.py -->"
END = "<!-- end of client selection -->"
NAME = "selection-small"
ATTACKS = {
    "none": "none",
    "lie": "LIE",
    "bit-flip": "bit-flip",
    "mimic": "mimic",
    "gaussian": "gaussian",
}
SELECTIONS = ("uniform", "by-score")
COMPARED: tuple[Metric, ...] = ("last_ten", "worst_decile")
MINORITY = 5
"""One of so many honest clients is in the minority: those whose labels differ most."""


def client_selection(folder: Path) -> str:
    """Return both tables."""
    runs = collect([folder / f"{NAME}.csv.gz"])
    between = (
        "How often clients are sampled, over the number of times that a uniform choice would "
        "sample them: uniform / by-score."
    )
    return "\n\n".join([_accuracies(runs), between, _chances(runs)])


def with_client_selection(page: str, folder: Path) -> str:
    """Return the page with the tables put between its marks."""
    return put_between(page, BEGIN, END, client_selection(folder))


def _accuracies(runs: Sequence[Result]) -> str:
    """Return means with a uniform choice, and what by-score adds, seed by seed."""
    rows = []
    for attack, rule in _pairs(runs):
        cells = []
        for name in COMPARED:
            before, after = (
                {run.seed: 100 * float(getattr(run, name)) for run in _of(runs, rule, attack, each)}
                for each in SELECTIONS
            )
            found = [after[seed] - before[seed] for seed in sorted(before)]
            cells += [
                f"{fmean(before.values()):.1f}",
                f"{fmean(found):+.1f} [{min(found):+.1f}, {max(found):+.1f}]".replace("-", "−"),
            ]
        rows.append([ATTACKS[attack], rule, *cells])
    titles = [title for name in COMPARED for title in (SHORT[name], "by-score minus uniform")]
    return _table(["attack", "rule", *titles], rows)


def _chances(runs: Sequence[Result]) -> str:
    rows = []
    for attack, rule in _pairs(runs):
        found = [
            [chances(run) for run in _of(runs, rule, attack, selection)] for selection in SELECTIONS
        ]
        cells = [
            " / ".join(f"{fmean(each[group] for each in some):.2f}" for some in found)
            for group in GROUPS
        ]
        rows.append([ATTACKS[attack], rule, *cells])
    return _table(["attack", "rule", *GROUPS], rows)


GROUPS = ("Byzantine", "honest", "honest, unusual labels", "honest, least kept")


def chances(run: Result) -> dict[str, float]:
    """Return how often the clients of each group were sampled, over a uniform choice."""
    assert run.clients is not None
    num_sampled, settings = float(run.series.num_sampled.sum()), run.config["federation"]
    num_clients, num_byzantine = settings["num_clients"], settings["byzantine"]
    usual = num_sampled / len(run.series) / num_clients
    sampled = run.clients.sampled / usual
    honest = np.flatnonzero(~np.isnan(run.clients.sampled))
    number = len(honest) // MINORITY
    unusual = honest[np.argsort(-_unusual(run)[honest], kind="stable")[:number]]
    least_kept = honest[np.argsort(run.clients.kept[honest], kind="stable")[:number]]
    byzantine = float(run.series.num_byzantine.sum()) / num_sampled
    return {
        "Byzantine": byzantine * num_clients / num_byzantine,
        "honest": float(sampled[honest].mean()),
        "honest, unusual labels": float(sampled[unusual].mean()),
        "honest, least kept": float(sampled[least_kept].mean()),
    }


def _unusual(run: Result) -> NDArray[np.float64]:
    """Return how far the labels of each client are from those of all, in total variation."""
    sections = {key: _frozen(run.config[key]) for key in ("data", "federation")}
    return _unusual_labels(run.seed, **sections)


def _frozen(section: Mapping[str, object]) -> tuple[tuple[str, object], ...]:
    return tuple(section.items())


@cache
def _unusual_labels(
    seed: int, data: tuple[tuple[str, object], ...], federation: tuple[tuple[str, object], ...]
) -> NDArray[np.float64]:
    spec = RunSpec(
        seed=seed,
        data=msgspec.convert(dict(data), DataSpec),
        federation=msgspec.convert(dict(federation), FederationSpec),
    )
    builder = RunBuilder(torch.device("cpu"))
    counts = builder.label_counts(spec, builder.run(spec).federation)
    own = counts / counts.sum(axis=1, keepdims=True)
    distances: NDArray[np.float64] = np.abs(own - counts.sum(axis=0) / counts.sum()).sum(axis=1) / 2
    return distances


def _pairs(runs: Sequence[Result]) -> list[tuple[str, str]]:
    rules = ("multi-krum", "gas(multi-krum)", "dnc")
    known = {(run.attack, run.rule) for run in runs}
    return [(a, r) for a in ATTACKS for r in rules if (a, r) in known]


def _of(runs: Sequence[Result], rule: str, attack: str, selection: str) -> list[Result]:
    return [
        run
        for run in runs
        if (run.rule, run.attack, run.setting("federation.selection")) == (rule, attack, selection)
    ]


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(titles)} |", f"|---|---|{'---:|' * (len(titles) - 2)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])
