"""Draw one image per rule, and the figures of GAS: python docs/make_rule_images.py [NAME].

A rule's image has two coordinates of a toy round: how much each gradient counts, and the update.
Needs matplotlib: pip install 'outvote[plots]'.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import numpy as np
from numpy.typing import NDArray

import outvote as ov
from outvote.errors import closest
from outvote.rules.rule_spec import RULES

mpl.use("svg")
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

FOLDER = Path(__file__).parent / "images"
NUM_HONEST, NUM_BYZANTINE = 12, 4
GREY, RED, BLUE = "#5b6b82", "#d62728", "#1f5fbf"
SHOWN = {
    "gas": "gas(multi-krum, num_groups=2)",
    "bucketing": "bucketing(median)",
    "nnm": "nnm(median)",
    "clip": "clip(mean, max_norm=honest)",
    "norm-filter": "norm-filter(mean, factor=1.5)",
    "centered-clipping": "centered-clipping(radius=1.0)",
    "norm-clipping": "norm-clipping(max_norm=1.2)",
    "foolsgold": "foolsgold(normalise=true)",
}
"""What is drawn for a wrapper, or with parameters that fit the size of the toy round."""
STYLE = {
    "svg.hashsalt": "outvote",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.edgecolor": "#c8ccd4",
    "xtick.color": "#6b7280",
    "ytick.color": "#6b7280",
}
Matrix = NDArray[np.float64]


def main() -> None:
    """Draw everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    known = [*RULES, *GAS_FIGURES]
    parser.add_argument("names", nargs="*", default=known, help="rules or figures; default: all")
    parser.add_argument("-o", "--output", type=Path, default=FOLDER, help="folder")
    words = parser.parse_args()
    for name in words.names:
        if name not in known:
            parser.error(f"there is no rule or figure {name!r}; {closest(name, known)}")
    with plt.rc_context(STYLE):
        for name in words.names:
            if name in RULES:
                save(draw_rule(name), words.output / "rules" / f"{name}.svg")
            else:
                save(GAS_FIGURES[name](), words.output / "gas" / f"{name}.svg")


def save(figure: Figure, path: Path) -> None:
    """Write a figure that is the same every time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None, "Creator": None})
    plt.close(figure)


def toy_round() -> tuple[Matrix, Matrix]:
    """Return twelve honest gradients, and four of attackers: three together and one far away."""
    random = np.random.default_rng(5)
    spread = np.array([[0.75, 0.0], [0.2, 0.5]])
    honest = np.array([1.0, 0.6]) + random.normal(size=(NUM_HONEST, 2)) @ spread.T
    byzantine = np.array([[-1.05, -0.55], [-1.15, -0.6], [-1.1, -0.7], [2.6, -1.5]])
    return honest, byzantine


def draw_rule(name: str) -> Figure:
    """Draw how much each gradient counts, and the update."""
    honest, byzantine = toy_round()
    shown = SHOWN.get(name, name)
    options = {"num_byzantine": NUM_BYZANTINE, "when_too_many": "lower", "seed": 3}
    mean = honest.mean(axis=0)
    reference = mean if name == "fltrust" else None
    verdict = ov.make_rule(shown).inspect(
        np.concatenate([byzantine, honest]), reference=reference, **options
    )
    figure, axes = plt.subplots(figsize=(7.4, 3.7), layout="constrained")
    axes.set(xlim=(-2.0, 3.2), ylim=(-1.9, 2.2), aspect="equal")
    axes.set_title(shown, loc="left", fontweight="bold")
    weights = verdict.weights
    sizes = np.full(len(honest) + len(byzantine), 0.06) if weights is None else weights
    kinds = ((slice(0, 4), byzantine, RED, "Byzantine"), (slice(4, None), honest, GREY, "honest"))
    for which, rows, colour, label in kinds:
        axes.scatter(*rows.T, s=14, facecolors="none", edgecolors=colour, label=label)
        axes.scatter(*rows.T, s=1400 * np.asarray(sizes[which]), color=colour, alpha=0.45, lw=0)
    axes.plot(*mean, "+", color="black", markersize=18, mew=1.2, label="honest mean")
    axes.plot(*verdict.update, "*", color=BLUE, markersize=15, mec="white", label="update")
    figure.legend(loc="outside right upper", frameon=False, labelspacing=1.1)
    note = "area: share in the update"
    axes.set_xlabel(note, color="#6b7280")
    return figure


def gas_round() -> Matrix:
    """Return the gradients of the figures of GAS: five attackers (LIE), then fifteen honest."""
    random = np.random.default_rng(0)
    is_strong = random.random((15, 10_000)) < 0.02
    honest = 0.5 + random.normal(size=(15, 10_000)) * np.where(is_strong, 10, 1)
    return np.concatenate([ov.LIE(z=1.25)(honest, num_byzantine=5), honest])


def draw_whole() -> Figure:
    """Draw the scores of Multi-Krum on whole gradients."""
    scores = ov.MultiKrum().inspect(gas_round(), num_byzantine=5).scores
    return draw_scores(scores, "score of Multi-Krum")


def draw_sums() -> Figure:
    """Draw the scores of GAS."""
    scores = ov.GAS(ov.MultiKrum()).inspect(gas_round(), num_byzantine=5, seed=0).scores
    return draw_scores(scores, "sum of the distances")


def draw_scores(scores: NDArray[np.float64], label: str) -> Figure:
    """Draw one bar per client; those with the five largest are dropped."""
    figure, axes = plt.subplots(figsize=(7.4, 3.0), layout="constrained")
    colours = [RED] * 5 + [GREY] * 15
    bars = axes.bar(range(20), scores, color=colours, alpha=0.85)
    is_dropped = np.argsort(np.argsort(scores)) >= 15
    for bar, dropped in zip(bars, is_dropped, strict=True):
        if dropped:
            middle = bar.get_x() + bar.get_width() / 2
            style = {"rotation": 90, "fontsize": 8, "color": "#444444", "ha": "center"}
            axes.annotate(
                *("dropped", (middle, bar.get_height()), (0, 3)),
                textcoords="offset points",
                va="bottom",
                **style,
            )
    add_legend(figure)
    axes.set(xlabel="client", ylabel=label, xticks=range(20), ylim=(0, 1.42 * max(scores)))
    return figure


def add_legend(figure: Figure) -> None:
    """Name the two colours, above the axes."""
    handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in (RED, GREY)]
    names = ["Byzantine", "honest"]
    figure.legend(handles, names, frameon=False, ncols=2, loc="outside upper right")


def draw_groups() -> Figure:
    """Draw the distance of each client to the output of the rule, group by group."""
    gradients = gas_round()
    order = np.random.default_rng(1).permutation(10_000)
    groups = np.array_split(order, 1000)[:80]
    far = np.empty((20, len(groups)))
    for number, group in enumerate(groups):
        output = ov.MultiKrum()(gradients[:, group], num_byzantine=5)
        far[:, number] = np.linalg.norm(gradients[:, group] - output, axis=1)
    figure, axes = plt.subplots(figsize=(7.4, 3.4), layout="constrained")
    image = axes.imshow(far, aspect="auto", cmap="Greys", vmin=0, vmax=12, interpolation="nearest")
    axes.set(xlabel="group (80 of 1,000)", ylabel="client", yticks=range(0, 20, 2))
    axes.axhline(4.5, color=RED, lw=1.2)
    axes.text(79.5, 4.3, "Byzantine", color=RED, ha="right", va="bottom", fontsize=9)
    figure.colorbar(image, label="distance to the output")
    return figure


def draw_number() -> Figure:
    """Draw the error of the update for several numbers of groups."""
    honest = gas_round()[5:]
    numbers, mean = [1, 3, 10, 30, 100, 300, 1000, 3000, 10_000], honest.mean(axis=0)
    figure, axes = plt.subplots(figsize=(7.4, 3.0), layout="constrained")
    for text, colour in (("lie(z=1.25)", GREY), ("gas-aware(draws=2)", RED)):
        errors = []
        for number in numbers:
            rule = ov.GAS(ov.MultiKrum(), num_groups=number)
            rows = ov.make_attack(text)(honest, num_byzantine=5, rule=rule, seed=0)
            update = rule(np.concatenate([rows, honest]), num_byzantine=5, seed=0)
            errors.append(np.linalg.norm(update - mean) / np.linalg.norm(mean))
        axes.plot(numbers, errors, "o-", color=colour, label=text.split("(")[0])
    axes.set(xscale="log", xlabel="number of groups p", ylabel="relative error", ylim=(-0.05, None))
    axes.legend(frameon=False)
    return figure


GAS_FIGURES: dict[str, Callable[[], Figure]] = {
    "1-whole": draw_whole,
    "2-groups": draw_groups,
    "3-sums": draw_sums,
    "4-groups": draw_number,
}

if __name__ == "__main__":
    main()
