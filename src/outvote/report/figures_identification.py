"""One run, client by round: how each was scored, who was kept, and who lied."""

from typing import Any, NamedTuple

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from outvote.report.audit import Audit


class Verdict(NamedTuple):
    """What became of a client in a round, and its colour."""

    name: str
    colour: str


KNOWN = (
    Verdict("honest, kept", "#9ecae8"),
    Verdict("honest, dropped", "#0072B2"),
    Verdict("liar, dropped", "#f4c18b"),
    Verdict("liar, kept", "#c0392b"),
)
UNKNOWN = (Verdict("kept", "#9ecae8"), Verdict("dropped", "#D55E00"))


def draw_identification(audit: Audit) -> Figure:
    """Draw two maps of clients by rounds: scores, and verdicts beside the truth."""
    if not audit.is_judged.any():
        raise ValueError("nobody was judged in this run; choose another.")
    order, num_liars = _order(audit)
    height = min(max(1.6, 0.075 * len(order)), 3.6)
    figure = Figure(figsize=(10.0, 2 * height + 1.1), layout="constrained")
    figure.suptitle(audit.title, fontsize=10, fontweight="bold", x=0.01, ha="left")
    above, below = figure.subplots(2, 1, sharex=True, sharey=True)
    span = (audit.rounds[0] - 0.5, audit.rounds[-1] + 0.5, len(order) - 0.5, -0.5)
    _draw_scores(above, audit, order, span)
    verdicts = UNKNOWN if audit.is_byzantine is None else KNOWN
    _draw_verdicts(below, audit, order, span, verdicts)
    for axes in (above, below):
        _mark_liars(axes, num_liars, len(order))
    below.set_xlabel("round")
    patches = [Patch(facecolor=each.colour) for each in verdicts]
    names = [each.name for each in verdicts]
    place = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.0), "borderaxespad": 0.2}
    below.legend(patches, names, ncols=len(names), columnspacing=1.4, **place)
    return figure


def _order(audit: Audit) -> tuple[NDArray[np.int64], int]:
    """Return the clients, liars first if they are known, then those most often refused."""
    judged = np.maximum(audit.is_judged.sum(axis=0), 1)
    rate = audit.is_refused.sum(axis=0) / judged
    liars = audit.is_byzantine
    truth = np.zeros(len(rate), dtype=bool) if liars is None else liars
    order = np.lexsort((np.arange(len(rate)), -rate, ~truth))
    return order, int(truth.sum())


def _draw_scores(axes: Axes, audit: Audit, order: NDArray[np.int64], span: Any) -> None:
    """Draw scores relative to their round, because updates shrink as training goes on."""
    relative = _relative(audit)
    known = relative[relative > 0]
    far = max(1.5, float(np.quantile(np.maximum(known, 1 / known), 0.98))) if len(known) else 2.0
    axes.set_title("scores")
    image = axes.imshow(
        relative.T[order],
        extent=span,
        aspect="auto",
        interpolation="nearest",
        cmap=colormaps["cividis"],
        norm=LogNorm(1 / far, far, clip=True),
    )
    bar = axes.figure.colorbar(image, ax=axes, pad=0.01, aspect=14)
    bar.set_ticks([1 / far, 1.0, far], labels=[f"≤ {1 / far:.2g}", "1", f"≥ {far:.2g}"])
    bar.ax.minorticks_off()
    bar.set_label("score / median of its round", fontsize=8.5)
    bar.outline.set_visible(False)


def _relative(audit: Audit) -> NDArray[np.float64]:
    """Return scores divided by the median of their round; infinite where not finite."""
    scores = np.where(audit.is_judged, audit.scores, np.nan)
    middles = np.full((len(scores), 1), np.nan)
    for row, line in enumerate(scores):
        known = line[np.isfinite(line)]
        if len(known) and np.median(known) > 0:
            middles[row] = np.median(known)
    result: NDArray[np.float64] = scores / middles
    return result


def _draw_verdicts(
    axes: Axes,
    audit: Audit,
    order: NDArray[np.int64],
    span: Any,
    verdicts: tuple[Verdict, ...],
) -> None:
    kind = audit.is_refused.astype(float)
    if audit.is_byzantine is not None:
        # In the order of KNOWN: kept, dropped; a liar's dropped, kept.
        kind = np.where(audit.is_byzantine, 3.0 - kind, kind)
    shown = np.where(audit.is_judged, kind, np.nan)
    axes.set_title("verdicts" if audit.is_byzantine is None else "verdicts and truth")
    axes.imshow(
        shown.T[order],
        extent=span,
        aspect="auto",
        interpolation="nearest",
        cmap=ListedColormap([each.colour for each in verdicts]),
        vmin=-0.5,
        vmax=len(verdicts) - 0.5,
    )


def _mark_liars(axes: Axes, num_liars: int, num_clients: int) -> None:
    """Name the two groups of clients instead of each of them."""
    axes.grid(visible=False)
    axes.tick_params(axis="y", length=0)
    if not num_liars:
        axes.set_yticks([])
        axes.set_ylabel("clients, most often dropped first")
        return
    axes.axhline(num_liars - 0.5, color="black", linewidth=0.8)
    middles = [(num_liars - 1) / 2, (num_liars + num_clients - 1) / 2]
    groups = [f"{num_liars} liars", f"{num_clients - num_liars} honest"]
    axes.set_yticks(middles, groups, rotation=90, va="center")
