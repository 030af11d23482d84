"""Figures: all kinds in all formats, the same bytes for the same runs, true numbers in them."""

import random
import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from made_results import made_results, without_kept, write_store
from outvote.report.audit import audit_run
from outvote.report.figure_maps import draw_identification
from outvote.report.figure_style import COLOURS, legend_below, line_styles
from outvote.report.figures import (
    FEWER,
    INCLUDES,
    KINDS,
    audit_figure_file,
    by_group,
    curve_of,
    figure_file,
    figure_of,
)
from outvote.report.layout import grids_of
from outvote.results.schema import Status
from outvote.suites.suite import read_suite

GRID = {
    "rule": ["median", "gas(median)"],
    "attack": "lie",
    "rounds": 5,
    "data": {"beta": [0.1, 0.5]},
    "federation": {"byzantine": [2, 5], "num_clients": 20, "sampled": 10},
}
FOUR_PANELS = {"rule": ["krum", "gas(krum)"], "attack": ["none", "lie"], "rounds": 5}
SOURCES = {
    "curves": "demo",
    "heatmap": "demo",
    "selection": "figure1-motivation",
    "deviation": "figure2-deviation",
    "f-beta": "own",
    "bound": "theory",
}


def with_theory(result):
    """A run that measured the theory; only GAS has a bound as printed."""
    away = result.series.deviation
    columns = {"gradient_norm": 2 * away, "gradient_deviation": away, "deviation_bound": 50 * away}
    if result.rule.startswith("gas"):
        columns["printed_bound"] = 9 * away
    return replace(result, series=replace(result.series, **columns))


@cache
def made(name):
    if name == "theory":
        return [with_theory(each) for each in made_results(FOUR_PANELS, seeds=2)]
    parts = ("main",) if name == "figure2-deviation" else ()
    return made_results(GRID if name == "own" else name, seeds=2, rounds=5, parts=parts)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Run folders, for what an export does not know."""
    return write_store(tmp_path_factory.mktemp("runs"), GRID, seeds=1)


def draw(kind, runs, format_="svg", **how):
    """Draw what a kind needs; identification has the first run folder."""
    if kind == "identification":
        return figure_file(kind, runs, format_, **{"run": runs[0].name, **how})
    return drawn(kind, format_, **how)


@cache
def drawn(kind, format_, **how):
    """Draw made-up runs, once for all tests that look at the figure."""
    return figure_file(kind, made(SOURCES[kind]), format_, **how)


def words_of(svg):
    return re.findall(r">([^<>\n]+)</text>", svg.decode())


STARTS = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


# What differs by format is the same for all kinds.
@pytest.mark.parametrize(
    ("kind", "format_"),
    [
        pytest.param(
            kind, format_, marks=[pytest.mark.slow] * (format_ != "svg" and kind != "heatmap")
        )
        for kind in KINDS
        for format_ in STARTS
    ],
)
def test_every_kind_can_be_drawn_in_every_format(kind, format_, runs):
    assert draw(kind, runs, format_).startswith(STARTS[format_])


@pytest.mark.parametrize(
    "kind",
    [pytest.param(k, marks=[pytest.mark.slow] * (k in ("selection", "deviation"))) for k in KINDS],
)
def test_the_same_runs_in_any_order_give_the_same_bytes(kind, runs):
    if kind == "identification":
        again = figure_file(kind, runs[::-1], "svg", run=runs[0].hash)
    else:
        results = made(SOURCES[kind])
        again = figure_file(kind, random.Random(0).sample(results, len(results)), "svg")
    assert draw(kind, runs) == again
    assert b"<dc:date>" not in again


def test_a_curve_is_the_mean_and_sample_deviation_of_what_was_measured():
    first, second = made("demo")[:2]
    gap = first.series.accuracy.copy()
    gap[1] = np.nan
    first = replace(first, series=replace(first.series, accuracy=gap))
    curve = curve_of([first, second], "accuracy")
    both = np.stack([first.series.accuracy, second.series.accuracy])
    np.testing.assert_allclose(curve.mean, np.nanmean(both, axis=0))
    np.testing.assert_allclose(np.delete(curve.std, 1), np.delete(both.std(axis=0, ddof=1), 1))
    assert curve.std[1] == 0
    assert curve.rounds.tolist() == [1, 2, 3, 4, 5]


def test_a_curve_has_no_point_where_nothing_was_measured_and_marks_who_diverged():
    first = made("demo")[0]
    accuracy = np.array([np.nan, 0.1, np.nan, 0.2, 0.3])
    status = Status(outcome="diverged", round=5, num_rounds=30)
    gone = replace(first, series=replace(first.series, accuracy=accuracy), status=status)
    curve = curve_of([gone], "accuracy")
    assert curve.rounds.tolist() == [2, 4, 5]
    assert curve.ends == [5]
    everywhere = [replace(each, status=status) for each in made("demo")]
    assert figure_file("curves", everywhere, "svg") != figure_file("curves", made("demo"), "svg")


def test_curves_name_every_rule_once_and_every_column():
    words = words_of(draw("curves", []))
    grid = grids_of(made("demo"))[0]
    for name in (*grid.rows, *grid.columns):
        assert words.count(name) == 1


def test_bounds_have_a_panel_for_each_rule_and_attack_on_a_common_logarithmic_axis():
    figure = figure_of("bound", made("theory"))
    grid = grids_of(made("theory"))[0]
    assert len(figure.axes) == len(grid.rows) * len(grid.columns) == 4
    lines = {axes.get_title(): axes.get_lines() for axes in figure.axes}
    assert {axes.get_yscale() for axes in figure.axes} == {"log"}
    for title, found in lines.items():
        assert len(found) == 4 if title.startswith("gas") else 3
        highest, lowest = found[0].get_ydata(), found[-1].get_ydata()
        np.testing.assert_allclose(highest, 50 * lowest)


def test_bounds_of_runs_without_the_theory_are_an_error():
    with pytest.raises(ValueError, match="run them with theory = true"):
        figure_of("bound", made("demo"))


def test_a_rule_and_its_gas_form_share_a_colour_and_differ_in_dashes():
    styles = line_styles(["median", "gas(median)", "krum"])
    assert styles["median"].colour == styles["gas(median)"].colour != styles["krum"].colour
    assert [styles[row].dashes for row in ("median", "gas(median)", "krum")] == ["--", "-", "-"]
    many = line_styles([f"r{k}" for k in range(20)])
    assert {style.colour for style in many.values()} == set(COLOURS)


def test_a_heatmap_has_the_means_of_the_table():
    words = words_of(draw("heatmap", []))
    for row in grids_of(made("demo"))[0].cells:
        for cell in row:
            assert f"{cell.spread('best').mean:.1f}" in words
    kept = words_of(draw("heatmap", [], metric="kept_byzantine"))
    assert kept != words
    assert "Byzantine selection rate, percent" in kept
    assert "–" in kept
    far = words_of(draw("heatmap", [], metric="deviation"))
    assert "deviation" in far
    for row in grids_of(made("demo"))[0].cells:
        for cell in row:
            assert f"{cell.spread('deviation').mean:.3g}" in far


def test_a_heatmap_marks_what_was_not_run():
    results = [each for each in made("demo") if (each.rule, each.attack) != ("krum", "lie")]
    assert words_of(figure_file("heatmap", results, "svg")).count("not run") == 1


def test_byzantine_clients_and_heterogeneity_have_a_map_for_each_rule():
    words = words_of(draw("f-beta", []))
    assert words.count("f = 2") == words.count("β = 0.5") == 2
    one = [
        each
        for each in made("own")
        if each.rule == "median"
        and (each.setting("federation.byzantine"), each.setting("data.beta")) == (2, 0.1)
    ]
    assert f"{100 * np.mean([each.best for each in one]):.1f}" in words


def test_selection_shows_the_honest_share_and_the_accuracy():
    words = words_of(draw("selection", []))
    for grid in grids_of(made("figure1-motivation")):
        assert words.count(grid.title) == 1
        for row in grid.cells:
            assert f"{100 - row[0].spread('byzantine_weight').mean:.1f}" in words
            assert f"{row[0].spread('best').mean:.1f}" in words


def test_selection_draws_the_share_by_round_in_the_papers_two_groups():
    results = made("figure1-motivation")
    figure = figure_of("selection", results)
    panels = [axes for axes in figure.axes if axes.get_xlabel() == "round"]
    wanted = ["multi-krum", "rfa", "dnc", "bulyan", "median", "trimmed-mean"]
    assert [axes.get_title(loc="left") for axes in panels] == wanted
    labels = [" ".join(axes.get_ylabel().split("\n")[:-1]) for axes in panels]
    assert labels == [INCLUDES, "", "", FEWER, "", ""]
    grids = grids_of(results)
    for axes in panels:
        curves = [line for line in axes.lines if line.get_linestyle() == "-"]
        means = [line for line in axes.lines if line.get_linestyle() == ":"]
        assert len(curves) == len(means) == len(grids)
        for grid, curve, mean in zip(grids, curves, means, strict=True):
            runs = grid.column(0)[axes.get_title(loc="left")].results
            shares = 100 * (1 - np.mean([run.series.byzantine_weight for run in runs], axis=0))
            np.testing.assert_allclose(curve.get_ydata(), shares)
            average = 100 * np.mean([1 - run.byzantine_weight for run in runs])
            assert mean.get_ydata()[0] == pytest.approx(average)


def test_the_outer_rule_decides_the_group_and_a_group_without_rules_is_left_out():
    assert by_group(["gas(median)", "median", "krum"]) == {
        INCLUDES: ["gas(median)"],
        FEWER: ["median", "krum"],
    }
    assert by_group(["mean"]) == {INCLUDES: ["mean"]}


def test_what_a_rule_does_not_report_is_a_dash_in_figures(runs):
    unknown = [without_kept(each) for each in made("figure1-motivation")]
    words = words_of(figure_file("selection", unknown, "svg"))
    num_bars = sum(len(grid.rows) for grid in grids_of(unknown))
    assert words.count("–") == num_bars
    words = words_of(audit_figure_file(audit_run(without_kept(runs[0])), "svg"))
    assert "not reported" in words


def test_selection_refuses_more_than_can_be_read():
    with pytest.raises(ValueError, match=r"at most 6 columns.*--metric selection-rate"):
        figure_file("selection", made_results("table1-cifar10", seeds=1, rounds=2), "png")


def test_curves_refuse_more_panels_than_can_be_read():
    with pytest.raises(ValueError, match=r"28 panels, and 24 can be read.*--part"):
        figure_file("curves", made_results("smoke", seeds=1), "png")


def test_deviation_has_a_panel_for_each_rule_and_one_legend():
    words = words_of(draw("deviation", []))
    for rule in ("multi-krum", "bulyan", "median", "rfa", "dnc", "trimmed-mean"):
        assert words.count(rule) == 1
    assert words.count("the rule alone") == words.count("gas(rule)") == 1


def test_identification_shows_every_score_and_verdict_beside_the_truth(runs):
    audit = audit_run(runs[0])
    above, below = draw_identification(audit).axes[:2]
    verdicts = below.images[0].get_array()
    byzantine, refused = audit.is_byzantine, audit.is_refused
    num_seen = int(byzantine.sum())
    assert np.isin(verdicts[:num_seen].compressed(), [2, 3]).all()
    assert np.isin(verdicts[num_seen:].compressed(), [0, 1]).all()
    for code, kind in enumerate((~refused & ~byzantine, refused & ~byzantine, refused & byzantine)):
        assert (verdicts.compressed() == code).sum() == (audit.is_received & kind).sum()
    scores = above.images[0].get_array().compressed()
    middles = np.nanmedian(audit.scores, axis=1, keepdims=True)
    relative = (audit.scores / middles)[audit.is_received]
    np.testing.assert_allclose(np.sort(scores), np.sort(relative))
    words = words_of(draw("identification", runs))
    groups = {f"{num_seen} Byzantine", f"{len(byzantine) - num_seen} honest"}
    assert {*groups, "Byzantine, kept", "verdicts and truth"} <= set(words)


def test_identification_without_the_truth_ranks_by_refusals(runs):
    audit = replace(audit_run(runs[0]), is_byzantine=None)
    words = words_of(audit_figure_file(audit, "svg"))
    assert "clients, most often dropped first" in words
    assert "Byzantine, kept" not in words


def test_identification_wants_one_run_with_its_folder(runs):
    with pytest.raises(ValueError, match=r"shows one run, got 8; name one by run"):
        figure_file("identification", runs, "png")
    with pytest.raises(ValueError, match=r"none of 8 runs has 'medain' in its"):
        figure_file("identification", runs, "png", run="medain")
    with pytest.raises(ValueError, match=r"4 runs have 'gas-median' in their names; name one: gas"):
        figure_file("identification", runs, "png", run="gas-median")
    name = runs[0].name
    whole = figure_file("identification", runs, "svg", run=name)
    assert figure_file("identification", runs, "svg", run=name[2:]) == whole
    with pytest.raises(ValueError, match=r"an export has no verdicts"):
        figure_file("identification", made("own")[:1], "png")


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"identification"}))
def test_unfinished_runs_cannot_be_drawn(kind):
    status = Status(outcome="running", round=1, num_rounds=5)
    results = [replace(each, status=status) for each in made("own")]
    with pytest.raises(ValueError, match="none of these runs is finished"):
        figure_file(kind, results, "png")


def test_with_a_window_a_point_is_the_mean_of_several_rounds():
    run = made_results("table1-cifar10", seeds=1, rounds=10)[0]
    curve = curve_of([run], "accuracy", window=4)
    accuracy = run.series.accuracy
    assert curve.rounds.tolist() == [4, 8, 10]
    assert np.allclose(curve.mean, [accuracy[:4].mean(), accuracy[4:8].mean(), accuracy[8:].mean()])


@pytest.mark.parametrize("width", [4.0, 7.0, 9.9, 12.0])
def test_a_rule_and_its_gas_form_stand_in_one_column_of_the_legend(width):
    figure = Figure(figsize=(width, 3.0), layout="constrained")
    rows = read_suite("table1-cifar10").parts[0].rows
    legend_below(figure, [Line2D([], []) for _ in rows], rows)
    figure.draw_without_rendering()
    left = [text.get_window_extent().x0 for text in figure.legends[0].get_texts()]
    assert left[::2] == pytest.approx(left[1::2])
