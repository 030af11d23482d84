"""The figure of study/results: what GAS gains over each rule under each attack, in each regime."""

from math import isnan, nan
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paired import BASES, METRICS, Cells, signed
from regimes import AGAINST, ALONG, ATTACKS, LATER, PRINTED, gain, readings

ROWS = ("krum", *BASES)
LIMIT = 25.0
"""Points at which the colours end."""


def draw_gains(folder: Path, path: Path) -> Path:
    """Draw a map for each regime and metric, and return the file."""
    found = readings(folder, (LATER, PRINTED, ALONG, AGAINST))
    figure = Figure(figsize=(13, 6.4), layout="constrained")
    axes = figure.subplots(len(METRICS), len(found), sharex=True, sharey=True, squeeze=False)
    for row, metric in zip(axes, METRICS, strict=True):
        for axis, (name, cells) in zip(row, found.items(), strict=True):
            image = _draw(axis, cells, metric)
            axis.set_title(f"{name}, {metric}", fontsize=9)
    figure.colorbar(image, ax=axes, label="accuracy of GAS(A) minus that of A, points", shrink=0.7)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    return path


def gain_map(cells: Cells, metric: str) -> list[list[float]]:
    """Return the mean gains over seeds by rule and attack; NaN: not run."""
    return [
        [fmean(gain(cells, base, attack, metric).values() or [nan]) for attack in ATTACKS]
        for base in ROWS
    ]


def _draw(axis: Axes, cells: Cells, metric: str) -> Any:
    values = gain_map(cells, metric)
    image = axis.imshow(values, cmap="RdBu", vmin=-LIMIT, vmax=LIMIT, aspect="auto")
    axis.set_xticks(range(len(ATTACKS)), ATTACKS, rotation=30, ha="right", fontsize=8)
    axis.set_yticks(range(len(ROWS)), ROWS, fontsize=8)
    for row, line in enumerate(values):
        for column, value in enumerate(line):
            is_known = not isnan(value)
            colour = "white" if is_known and abs(value) > 0.7 * LIMIT else "black"
            text = signed(value, 0) if is_known else "–"
            axis.text(column, row, text, ha="center", va="center", fontsize=8, color=colour)
    return image
