"""Titles in figures: none leaves the figure, none reaches into a neighbour."""

from itertools import combinations

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from made_results import made_results
from outvote.report.figure_style import fit_titles
from outvote.report.figures import figure_of

LONG = {
    "rule": ["gas(bucketing(geometric-median), num_groups=5000)", "gas(median, num_groups=5000)"],
    "attack": ["lie(sign=1, z=1.25)", "gas-aware(draws=17, steps=20)"],
    "rounds": 3,
    "data": {"beta": [0.1, 0.5]},
    "federation": {"byzantine": [2, 5], "num_clients": 20, "sampled": 10},
}
CASES = {
    "maps beside each other": ("heatmap", "figure1-motivation"),
    "a narrow map": ("heatmap", "demo"),
    "labels of groups": ("selection", "demo"),
    "two lines in each title": ("curves", "figure1-motivation"),
    "a map for each rule and attack": ("f-beta", LONG),
}


def written(figure):
    """All titles, labels of axes and legends, and where each is in pixels."""
    FigureCanvasAgg(figure)
    figure.canvas.draw()
    found = []
    for axes in figure.axes:
        texts = [
            axes.title,
            axes._left_title,
            axes._right_title,
            axes.xaxis.label,
            axes.yaxis.label,
        ]
        found += [(each.get_text(), each.get_window_extent()) for each in texts if each.get_text()]
        if (legend := axes.get_legend()) is not None:
            found.append(("legend of a panel", legend.get_window_extent()))
    if figure.get_suptitle():
        found.append((figure.get_suptitle(), figure._suptitle.get_window_extent()))
    return [*found, *(("legend", each.get_window_extent()) for each in figure.legends)]


def faults(figure):
    found = written(figure)
    width, height = figure.bbox.width, figure.bbox.height
    outside = [
        text
        for text, box in found
        if min(box.x0, box.y0) < -1 or box.x1 > width + 1 or box.y1 > height + 1
    ]
    over = [(one, two) for (one, a), (two, b) in combinations(found, 2) if a.overlaps(b)]
    return outside, over


@pytest.mark.parametrize("case", CASES)
def test_no_title_leaves_the_figure_or_overlaps_a_neighbour(case):
    kind, suite = CASES[case]
    figure = figure_of(kind, made_results(suite, seeds=1, rounds=3))
    assert faults(figure) == ([], [])


def test_only_titles_that_do_not_fit_are_changed_and_panels_keep_their_height():
    figure = Figure(figsize=(6, 2), layout="constrained")
    short, long = figure.subplots(1, 2)
    short.set_title("short", loc="left")
    long.set_title("a title that is much longer than the panel below it is wide", loc="left")
    figure.draw_without_rendering()
    before = short.get_window_extent().height
    fit_titles(figure)
    figure.draw_without_rendering()
    assert short.get_title(loc="left") == "short"
    assert long.get_title(loc="left").replace("\n", " ").startswith("a title that is much longer")
    assert "\n" in long.get_title(loc="left")
    assert figure.get_figheight() > 2
    assert short.get_window_extent().height == pytest.approx(before, rel=0.1)
