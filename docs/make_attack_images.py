"""Draw one image per attack: two coordinates, positions of attackers, outputs of rules.

    python docs/make_attack_images.py            all images, into docs/images
    python docs/make_attack_images.py -o X lie   some of them, into X

Needs matplotlib: pip install 'outvote[plots]'.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from numpy.typing import NDArray

import outvote as ov
from outvote.attacks.attack_spec import ATTACKS
from outvote.errors import closest

mpl.use("svg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

FOLDER = Path(__file__).parent / "images"
NUM_HONEST, NUM_BYZANTINE = 16, 4
X_RANGE, Y_RANGE = (-3.0, 3.2), (-1.9, 2.3)
EDGE = 0.15
GREY, RED = "#8a94a6", "#d62728"
Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Style:
    """How the output of a rule is drawn; hollow shapes of different sizes can be nested."""

    rule: str
    label: str
    marker: str
    size: float
    colour: str


RULES = (
    Style("gas(multi-krum, num_groups=2)", "GAS", "o", 15, "#1f5fbf"),
    Style("multi-krum", "Multi-Krum", "s", 11.5, "#8e44ad"),
    Style("median", "median", "D", 7, "#1e8449"),
    Style("mean", "mean", "^", 6, "#e67e22"),
)
STYLE = {
    "svg.hashsalt": "outvote",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.edgecolor": "#c8ccd4",
    "xtick.color": "#6b7280",
    "ytick.color": "#6b7280",
}


def main() -> None:
    """Draw what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("attacks", nargs="*", default=list(ATTACKS), help="default: all")
    parser.add_argument("-o", "--output", type=Path, default=FOLDER, help="folder")
    parser.add_argument("--format", choices=("svg", "png"), default="svg")
    words = parser.parse_args()
    for name in words.attacks:
        if name not in ATTACKS:
            parser.error(f"there is no attack {name!r}; {closest(name, ATTACKS)}")
    words.output.mkdir(parents=True, exist_ok=True)
    for name in words.attacks:
        draw(name, words.output / f"{name}.{words.format}")


def toy_round(name: str) -> tuple[Matrix, Matrix]:
    """Return the honest cloud, and the honest gradients of the attackers."""
    random = np.random.default_rng(11)
    spread = np.array([[0.85, 0.0], [0.15, 0.6]])
    rows = np.array([1.0, 0.6]) + random.normal(size=(NUM_HONEST + NUM_BYZANTINE, 2)) @ spread.T
    honest, own = rows[:NUM_HONEST], rows[NUM_HONEST:]
    if name == "label-flip":
        # Synthetic: as if training on wrong labels had rotated the gradients by 120 degrees.
        turn = np.deg2rad(120)
        own = own @ np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
    return honest, own


def draw(name: str, path: Path) -> None:
    """Draw one attack."""
    honest, own = toy_round(name)
    attack, server = ov.make_attack(name), ov.make_rule(RULES[0].rule)
    options: dict[str, Any] = {"num_byzantine": NUM_BYZANTINE, "own": own, "seed": 1}
    rows = attack(honest, rule=server, **options)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(7.4, 3.7), layout="constrained")
        prepare(axes, name)
        axes.plot(*honest.T, "o", color=GREY, markersize=5.5, alpha=0.7, label="honest", mew=0)
        draw_attackers(axes, rows)
        mean = honest.mean(axis=0)
        axes.plot(*mean, "+", color="black", markersize=20, mew=1.1, label="honest mean")
        for style in RULES:
            draw_output(axes, style, np.concatenate([honest, rows]))
        figure.legend(loc="outside right upper", frameon=False, labelspacing=1.1, handlelength=1.6)
        figure.savefig(path, metadata=NO_DATES.get(path.suffix), dpi=130)
        plt.close(figure)


NO_DATES: dict[str, dict[str, None]] = {
    ".svg": {"Date": None, "Creator": None},
    ".png": {"Software": None},
}


def prepare(axes: Axes, name: str) -> None:
    """Set the same axes for every attack."""
    axes.set(xlim=X_RANGE, ylim=Y_RANGE, aspect="equal", yticks=range(-1, 3))
    axes.set_title(name, loc="left", fontweight="bold")
    axes.set_xlabel("first coordinate", color="#6b7280")
    axes.set_ylabel("second coordinate", color="#6b7280")
    axes.axhline(0, color="#e3e6eb", linewidth=1, zorder=0)
    axes.axvline(0, color="#e3e6eb", linewidth=1, zorder=0)
    axes.tick_params(length=0, labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def draw_attackers(axes: Axes, rows: Matrix) -> None:
    """Draw the attackers, those beyond the axes at the edge; non-finite rows become a text."""
    crosses = {"color": RED, "markersize": 8, "mew": 2.2, "linestyle": "", "zorder": 4}
    is_somewhere = np.isfinite(rows).all(axis=1)
    if not is_somewhere.all():
        text = "Not shown: rows that are\nnot finite are rejected."
        axes.text(-2.9, -1.8, text, color=RED, fontsize=9, va="bottom")
        axes.plot([], [], marker="x", label="attackers", **crosses)
        return
    low, high = (np.array([X_RANGE[k], Y_RANGE[k]]) for k in (0, 1))
    shown = rows.clip(low + EDGE, high - EDGE)
    is_one_point = len(np.unique(rows, axis=0)) == 1
    label = f"attackers (all {len(rows)})" if is_one_point else "attackers"
    axes.plot(*shown.T, marker="x", label=label, **crosses)


def draw_output(axes: Axes, style: Style, gradients: Matrix) -> None:
    """Draw the update of a rule."""
    rule = ov.make_rule(style.rule)
    update = rule(gradients, num_byzantine=NUM_BYZANTINE, when_too_many="lower", seed=0)
    axes.plot(
        *update,
        marker=style.marker,
        markersize=style.size,
        markerfacecolor="none",
        markeredgecolor=style.colour,
        mew=1.8,
        linestyle="",
        label=style.label,
        zorder=5,
    )


if __name__ == "__main__":
    main()
