"""Tables: every cell that a suite asks for, true numbers, what is missing, in four formats."""

import csv
import io
import random
import re
import statistics
from dataclasses import replace
from functools import cache

import pytest

from made_results import ENVIRONMENT, made_results, without_weights
from outvote.report.cells import METRICS, Cell, spread_of
from outvote.report.layout import grids_of
from outvote.report.provenance import provenance_of
from outvote.report.table_data import as_json, records, to_csv
from outvote.report.table_latex import latex
from outvote.report.table_markdown import markdown
from outvote.results.labels import names_of
from outvote.results.schema import Status
from outvote.suites.suite import read_suite, suite_names

OWN = {"rule": ["median", "gas(median)"], "attack": ["lie", "ipm"], "rounds": 4}


@cache
def made_table1(seeds, diverged):
    return made_results("table1-cifar10", seeds=seeds, rounds=3, diverged=diverged)


def table1(seeds=2, diverged=()):
    return list(made_table1(seeds, diverged))


def ended(result, outcome):
    return replace(result, status=Status(outcome=outcome, round=1, num_rounds=3))


def with_rule(result, rule):
    return replace(result, config={**result.config, "rule": rule})


def with_attack(result, attack):
    return replace(result, config={**result.config, "attack": attack})


def cells_of(grid):
    return [cell for row in grid.cells for cell in row]


def table_lines(text):
    return [re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines() if line[:1] == "|"]


def test_a_cell_has_the_mean_and_the_sample_deviation_of_its_seeds():
    results = table1(seeds=3)
    cell = grids_of(results)[0].cells[0][0]
    assert cell.seeds == [0, 1, 2]
    for metric in METRICS:
        scale = 1 if metric == "deviation" else 100
        values = [scale * getattr(each, metric) for each in cell.results]
        spread = cell.spread(metric)
        assert spread.mean == pytest.approx(statistics.mean(values))
        assert spread.std == pytest.approx(statistics.stdev(values))


def test_one_seed_has_no_deviation_and_no_number_no_mean():
    assert spread_of([1.0]) == (1.0, None, 1)
    assert spread_of([float("nan"), 1.0]) == (1.0, None, 1)
    assert spread_of([float("nan")]) is None


@pytest.mark.parametrize("name", suite_names())
def test_every_cell_of_every_suite_has_all_its_runs_and_the_papers_number(name):
    grids = grids_of(made_results(name, seeds=1, rounds=2))
    parts = read_suite(name).parts
    assert [grid.part for grid in grids] == [part.name for part in parts]
    for grid, part in zip(grids, parts, strict=True):
        assert (list(grid.rows), list(grid.columns)) == (part.rows, part.values)
        for cell in cells_of(grid):
            assert (len(cell.results), cell.num_wanted) == (1, len(part.seeds))
            assert (cell.printed is None) == (part.wanted is None)


def test_cells_are_there_when_only_one_run_is():
    main, lie = grids_of(table1()[:1])
    assert (len(cells_of(main)), len(cells_of(lie))) == (72, 6)
    assert sum(not cell.is_missing for cell in cells_of(main)) == 1
    assert markdown([main], "best").count("not run |") == 71 + 11


def test_parts_without_a_run_are_only_named():
    """A part with one run that is not over has all its cells."""
    grids = grids_of([ended(table1()[0], "failed")])
    named = "Nothing was run, as the suite has it, of: CIFAR-10, LIE, p = 100."
    text = markdown(grids, "best")
    assert text.count(named) == 1
    assert len(table_lines(text)) == 2 + 12
    assert f"% {named}" in latex(grids, "best")
    assert latex(grids, "best").count(r"\begin{table}") == 1
    assert len(records(grids, "best")) == 72 + 6
    assert "Nothing was run" not in markdown(grids_of(table1()), "best")


def test_runs_that_are_not_over_are_not_counted_but_told():
    results = table1(seeds=1)
    results[0], results[1] = ended(results[0], "failed"), ended(results[1], "interrupted")
    main = grids_of(results)[0]
    missing = [cell for cell in cells_of(main) if cell.is_missing]
    assert [len(cell.unfinished) for cell in missing] == [1, 1]
    text = markdown([main], "best")
    assert "| failed |" in text
    assert "| not over |" in text
    assert "Not counted, because not over: 1 failed, 1 interrupted." in text


def test_a_number_of_seeds_is_told_once_or_where_it_differs():
    results = table1()
    assert "deviation, 2 of 5 seeds. " in markdown(grids_of(results)[:1], "best")
    text = markdown(grids_of(results[1:])[:1], "best")
    assert "deviation, 2 of 5 seeds unless a cell says otherwise." in text
    assert text.count("(1 of 5 seeds)") == 1


def test_diverged_runs_are_marked():
    text = markdown(grids_of(table1(diverged=("rfa",)))[:1], "best")
    assert text.count("(2 diverged)") == 6
    never_tested = [
        replace(each, series=replace(each.series, accuracy=each.series.accuracy * float("nan")))
        for each in table1(seeds=1, diverged=("rfa",))
    ]
    text = markdown(grids_of(never_tested)[:1], "best")
    assert text.count(" diverged |") == 6
    assert text.count(" not measured |") == 66
    assert text.count(" no number |") == 12


def test_the_better_of_a_rule_and_its_gas_form_is_bold():
    grid = grids_of(table1())[0]
    bold = grid.best("best")
    for first in range(0, 12, 2):
        for column in range(6):
            plain, gas = (
                round(grid.cells[row][column].spread("best").mean, 2) for row in (first, first + 1)
            )
            assert ((first, column) in bold) == (plain >= gas)
            assert ((first + 1, column) in bold) == (gas >= plain)
    assert grid.best("kept_byzantine") != bold


def test_equal_numbers_are_both_bold_and_a_single_one_is_not():
    one = next(each for each in made_results(OWN, seeds=1) if each.rule == "median")
    both = [one, replace(with_rule(one, "gas(median)"), name="other")]
    assert grids_of(both)[0].best("best") == {(0, 0), (1, 0)}
    assert grids_of([one])[0].best("best") == set()


def test_the_worst_case_is_the_smallest_mean_and_partial_if_a_column_is_missing():
    results = table1()
    whole = grids_of(results)[0]
    worst = whole.worst(0, "best")
    assert worst.spread.mean == min(cell.spread("best").mean for cell in whole.cells[0])
    assert not worst.is_partial
    assert worst.printed == 23.68
    most = whole.worst(0, "kept_byzantine").spread.mean
    assert most == max(cell.spread("kept_byzantine").mean for cell in whole.cells[0])
    column = whole.columns[worst.column]
    part = grids_of([each for each in results if each.attack != column])[0]
    assert part.worst(0, "best").is_partial
    assert "(5 of 6)" in markdown([part], "best")


def test_an_added_rule_is_a_row_and_an_added_attack_a_column():
    results = table1()
    rule = [with_rule(each, "mine.py:My") for each in results if each.rule == "median"]
    attack = [with_attack(each, "gas-aware") for each in results if each.attack == "ipm"]
    main, lie = grids_of([*results, *rule, *attack])
    assert main.rows[-1] == "mine.py:My"
    assert main.columns[-1] == "gas-aware"
    assert [len(cell.seeds) for cell in main.cells[-1]] == [2, 2, 2, 2, 2, 2, 0]
    assert all(row[-1].seeds == [0, 1] for row in main.cells[:-1])
    assert [cell.printed for cell in main.cells[-1]] == [None] * 7
    assert lie.rows[-1] == "mine.py:My"  # It was under LIE, too.


def test_the_same_rule_with_another_parameter_is_a_row_of_its_own():
    results = table1()
    more = [with_rule(each, "gas(median, num_groups=7)") for each in results if each.rule == "rfa"]
    main = grids_of([*results, *more])[0]
    assert main.rows[-1] == "gas(median, num_groups=7)"
    assert "gas(median)" in main.rows
    assert all(len(cell.results) == 2 for cell in cells_of(main))


def test_settings_that_a_part_leaves_open_are_tables_of_their_own():
    results = table1()
    more = [replace(each, config={**each.config, "precision": "tf32"}) for each in results]
    grids = [grid for grid in grids_of([*results, *more]) if grid.part == "main"]
    assert [grid.title for grid in grids] == [
        "CIFAR-10, p = 1000, float32",
        "CIFAR-10, p = 1000, tf32",
    ]
    assert all(len(cell.results) == 2 for grid in grids for cell in cells_of(grid))


def test_runs_that_fit_no_part_are_laid_out_by_themselves():
    results = table1()
    data = {**results[0].config["data"], "beta": 0.1}
    federation = {**results[0].config["federation"], "sampled": 7}
    config = {**results[0].config, "data": data, "federation": federation}
    odd = replace(results[0], config={**config, "attack": "lie(z=9.0)"}, name="odd")
    smoke = [replace(odd, suite="smoke")]
    *_, last = grids_of(smoke)
    assert (last.part, last.title) == ("", "Other runs")
    assert last.results == smoke


def test_own_runs_have_rules_as_rows_attacks_as_columns_and_tables_for_the_rest():
    grids = grids_of(made_results({**OWN, "data": {"beta": [0.5, 0.1]}}))
    assert [grid.title for grid in grids] == ["β = 0.1", "β = 0.5"]
    for grid in grids:
        assert (grid.part, grid.rows) == ("", ("median", "gas(median)"))
        assert grid.titles == ["ipm", "lie"]
        assert all(cell.seeds == [0, 1] for cell in cells_of(grid))


def test_own_runs_with_one_attack_have_what_differs_most_as_columns():
    federation = {"byzantine": [4, 2, 10], "sampled": 20}
    table = {**OWN, "attack": "lie", "data": {"beta": [0.5, 0.1]}, "federation": federation}
    grids = grids_of(made_results(table, seeds=1))
    assert [grid.titles for grid in grids] == [["f = 2", "f = 4", "f = 10"]] * 2
    assert not any(grid.has_worst for grid in grids)


def test_names_have_the_parameters_that_differ_and_no_others():
    names = names_of(
        [
            "gas(rfa(num_iterations=3), num_groups=10)",
            "gas(rfa(num_iterations=3))",
            "rfa(num_iterations=3)",
        ]
    )
    assert list(names.values()) == ["gas(rfa, num_groups=10)", "gas(rfa, num_groups=1000)", "rfa"]


def test_a_repeated_seed_is_counted_and_told():
    results = table1(seeds=1)
    grid = grids_of([*results, replace(results[0], name=f"{results[0].name[:-1]}x")])[0]
    repeated = [cell for cell in cells_of(grid) if cell.num_repeated]
    assert [(len(cell.seeds), len(cell.results)) for cell in repeated] == [(1, 2)]
    assert "1 runs have the seed of another run in their cell" in markdown([grid], "best")


def test_an_unknown_part_is_named_with_the_closest():
    with pytest.raises(ValueError, match=r"unknown part 'mian'.*main"):
        grids_of(table1(), "mian")
    assert {grid.part for grid in grids_of(table1(), "main")} == {"main"}


@pytest.mark.parametrize("write", [markdown, latex, to_csv, as_json])
def test_the_same_runs_in_any_order_give_the_same_text(write):
    results = table1()
    shuffled = random.Random(0).sample(results, len(results))
    assert write(grids_of(results), "best") == write(grids_of(shuffled), "best")


def test_markdown_tables_have_one_field_per_column():
    results = table1()
    lines = table_lines(markdown(grids_of(results)[:1], "best", paper=True))
    assert {len(line) for line in lines} == {8}
    assert len(lines) == 2 + 12


def test_differences_to_the_paper_add_up_as_printed():
    text = markdown(grids_of(table1()), "best", paper=True)
    found = re.findall(r"([\d.]+)[* ]*(?:± [\d.]+ )?\(paper ([\d.]+), ([+−]?[\d.]+)\)", text)
    assert len(found) == 72 + 12 + 6
    for ours, papers, difference in found:
        told = float(difference.replace("−", "-"))
        assert told == pytest.approx(float(ours) - float(papers), abs=1e-9)


def test_the_papers_number_stands_where_ours_is_missing():
    assert "not run (paper 59.23)" in markdown(grids_of(table1()[:1]), "best", paper=True)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("paper", [False, True])
def test_latex_is_balanced_and_every_row_has_all_columns(metric, paper):
    results = [with_rule(each, "my_%$&#{}~^\\.py:<R>") for each in table1()[:2]]
    text = latex(grids_of([*table1()[:40], *results]), metric, paper=paper)
    assert text.isascii()
    bare = re.sub(r"\\[\\{}&%$#_]", "", re.sub(r"^%.*$", "", text, flags=re.MULTILINE))
    depth = 0
    for letter in bare:
        depth += {"{": 1, "}": -1}.get(letter, 0)
        assert depth >= 0
    assert depth == 0
    assert bare.count("$") % 2 == 0
    opened, closed = (re.findall(rf"\\{word}{{(\w+)}}", text) for word in ("begin", "end"))
    assert opened == ["table", "tabular"]
    assert closed == ["tabular", "table"]
    for tabular in re.findall(r"\\begin{tabular}{(l r*|lr+)}(.*?)\\end{tabular}", text, re.DOTALL):
        rows = [line for line in tabular[1].splitlines() if line.endswith(r"\\")]
        assert len(rows) > 5
        assert {len(re.findall(r"(?<!\\)&", row)) + 1 for row in rows} == {len(tabular[0])}
        for rule in ("toprule", "midrule", "bottomrule"):
            assert tabular[1].count(rf"\{rule}") == 1


def test_latex_has_the_best_in_bold():
    grid = grids_of(table1())[0]
    assert latex([grid], "best").count(r"\textbf{") == len(grid.best("best"))


def test_names_from_files_cannot_break_a_markdown_table():
    results = made_results(OWN, seeds=1)
    hostile = [with_rule(each, "'a|b\n# <b>*x*`y`.py:R'") for each in results]
    text = markdown(grids_of(hostile), "best")
    assert {len(line) for line in table_lines(text)} == {4}
    assert "<b>" not in text.replace("\\<b\\>", "")
    assert "\n# " not in text


def test_the_csv_reads_back_to_the_records():
    grids = grids_of(table1()[:50])
    found = list(csv.DictReader(io.StringIO(to_csv(grids, "best", paper=True))))
    told = records(grids, "best", paper=True)
    assert len(found) == len(told) == 78
    for row, record in zip(found, told, strict=True):
        for key, value in record.items():
            if value is None:
                assert row[key] == ""
            elif isinstance(value, float):
                assert float(row[key]) == value
            elif isinstance(value, list):
                assert [int(word) for word in row[key].split()] == value
            else:
                assert row[key] == str(value)


def test_json_has_cells_worst_cases_and_where_they_come_from():
    grids = grids_of(table1())
    found = as_json(grids, "best", paper=True)
    assert found["cells"] == records(grids, "best", paper=True)
    assert len(found["worst_cases"]) == 12
    assert found["provenance"]["num_runs"] == 156


def test_provenance_counts_a_run_once_and_tells_all_machines():
    one = made_results("smoke", seeds=1)
    other = msgspec_replace(device="NVIDIA H200", commit="f" * 40 + "+changes")
    more = made_results(OWN, seeds=1, environment=other)
    grids = [*grids_of(one), *grids_of([*one, *more])]
    about = provenance_of(grids)
    assert about.num_runs == len(one) + len(more)
    assert about.devices == ["NVIDIA H200", "cpu"]
    assert about.num_samples == sum(each.num_samples for each in [*one, *more])
    assert "0123456789ab, ffffffffffff+changes" in about.told()


def msgspec_replace(**changes):
    from msgspec.structs import replace as changed

    return changed(ENVIRONMENT, **changes)


def test_the_settings_of_the_runs_are_told():
    text = markdown(grids_of(table1())[:1], "best")
    assert (
        "cifar10, alexnet, 200 rounds, 50 clients, 20 % liars, 5 sampled, dirichlet, β = 0.5."
        in (text)
    )


def test_what_the_names_of_rows_and_columns_leave_out_is_told():
    text = markdown(grids_of(table1())[:1], "best")
    assert (
        "Other than by default: dnc(removal_factor=4), gas(dnc(removal_factor=4)), "
        "min-max(method=search), min-sum(method=search).\n" in text
    )
    assert r"Other than by default: dnc(removal\_factor=4)" in latex(grids_of(table1())[:1], "best")
    by_groups = markdown(grids_of(made_results("table3-num-groups", seeds=1, rounds=1)), "best")
    assert "Other than by default" not in by_groups


def test_rules_that_reckon_with_nobody_are_told():
    results = [
        replace(
            each, series=replace(each.series, num_byzantine_used=0 * each.series.num_byzantine_used)
        )
        if each.rule == "bulyan"
        else each
        for each in table1(seeds=1)
    ]
    assert "no liar among so few clients" not in markdown(grids_of(table1(seeds=1))[:1], "best")
    assert "Can tolerate no liar among so few clients: bulyan.\n" in markdown(
        grids_of(results)[:1], "best"
    )


def test_an_empty_cell_has_nothing():
    assert (Cell().spread("best"), Cell().difference("best"), Cell().seeds) == (None, None, [])


def test_commands_play_the_precision_that_the_runs_had():
    results = table1(seeds=1)
    half = [replace(each, config={**each.config, "precision": "bfloat16"}) for each in results]
    text = markdown(grids_of(half), "best")
    assert "`outvote bench table1-cifar10 --part main --precision bfloat16` plays" in text
    assert provenance_of(grids_of(half)).commands == [
        "outvote bench table1-cifar10 --seeds 1 --precision bfloat16"
    ]
    both = [*results, *(replace(each, name=f"{each.name}b") for each in half)]
    assert provenance_of(grids_of(both)).commands == [
        "outvote bench table1-cifar10 --seeds 1 --precision bfloat16",
        "outvote bench table1-cifar10 --seeds 1",
    ]


def test_a_table_of_runs_that_are_not_over_does_not_say_that_nothing_was_run():
    text = markdown(grids_of([ended(each, "interrupted") for each in table1(seeds=1)])[:1], "best")
    assert "None of these runs is over." in text
    assert "No run is over. Not counted, because not over: 72 interrupted." in text
    assert "unknown" not in text


@pytest.mark.parametrize("write", [markdown, latex])
def test_a_mean_of_fewer_runs_than_there_are_says_so(write):
    results = table1(seeds=3)
    nan = results[0].series.accuracy * float("nan")
    results[0] = replace(results[0], series=replace(results[0].series, accuracy=nan))
    assert write(grids_of(results), "best").count("(2 of 3 measured)") == 1
    assert "measured" not in write(grids_of(table1(seeds=3)), "best")


def test_records_tell_the_worst_case_and_what_the_paper_has_for_it():
    grids = grids_of(table1())
    worst = as_json(grids, "final", paper=True)["worst_cases"]
    found = [each for each in records(grids, "final") if each["is_worst"]]
    assert [(each["rule"], each["value"], each["final_mean"]) for each in found] == [
        (each["rule"], each["value"], each["mean"]) for each in worst
    ]
    assert worst[0]["paper"] == 23.68
    assert worst[0]["difference"] == pytest.approx(worst[0]["mean"] - 23.68, abs=0.0051)
    lie = [each for each in records(grids, "final") if each["part"] == "lie-p100"]
    assert {each["is_worst"] for each in lie} == {None}


def test_where_nobody_lies_no_share_is_told_and_no_column_is_missing():
    grid = grids_of(made_results({**OWN, "attack": ["none", "lie", "ipm"]}))[0]
    column = grid.columns.index("none")
    assert {row[column].spread("kept_byzantine") for row in grid.cells} == {None}
    worst = grid.worst(0, "kept_byzantine")
    assert not worst.is_partial
    assert worst.column != column
    lines = table_lines(markdown([grid], "kept_byzantine"))
    assert {line[1 + column].strip() for line in lines[2:]} == {"-"}
    assert "-: nobody lied." in markdown([grid], "kept_byzantine")
    assert "nobody lied" not in markdown([grid], "best")
    record = records([grid], "kept_byzantine")[column]
    assert (record["value"], record["kept_byzantine_mean"]) == ("none", None)


def test_a_deviation_is_a_plain_number_and_the_smallest_is_best():
    grid = grids_of(made_results({**OWN, "attack": ["none", "lie", "ipm"]}))[0]
    text = markdown([grid], "deviation", paper=True)
    assert "Distance of the update to the honest mean, where somebody lied: mean ±" in text
    assert "percent" not in text
    assert "Worst case: the largest mean" in text
    means = [[cell.spread("deviation").mean for cell in row] for row in grid.cells]
    for row, column in grid.best("deviation"):
        assert means[row][column] == min(each[column] for each in means)
    for row, line in enumerate(table_lines(text)[2:]):
        told = [float(each.replace("*", "").split()[0]) for each in line[1:-1]]
        assert told == [pytest.approx(mean, rel=5e-3) for mean in means[row]]
        assert float(line[-1]) == max(told)
    assert records([grid])[0]["deviation_mean"] == pytest.approx(means[0][0], rel=1e-5)


@pytest.mark.parametrize("far", [1e-7, 0.0, 1e30, 1e300])
def test_deviations_of_any_size_can_be_read(far):
    results = [
        replace(each, series=replace(each.series, deviation=each.series.deviation * 0 + far))
        for each in made_results(OWN)
    ]
    grid = grids_of(results)[0]
    assert grid.cells[0][0].spread("deviation") == (pytest.approx(far), 0.0, 2)
    told = table_lines(markdown([grid], "deviation"))[2][1].replace("*", "")
    assert float(told.split()[0]) == pytest.approx(far)
    assert latex([grid], "deviation").isascii()


def test_runs_that_do_not_tell_weights_tell_who_was_kept():
    results = made_results("figure1-motivation", seeds=1, rounds=2)
    old = grids_of([without_weights(each) for each in results])
    text = markdown(old, paper=True)
    assert text.count("Share of the sampled liars that were kept, in percent") == 2
    assert text.count("Best accuracy of all rounds, in percent") == 2
    assert "| not measured |" in markdown(old, "byzantine_weight")
    assert {each["metric"] for each in records(old)} == {"kept_byzantine"}


def test_a_table_shows_what_its_part_is_about_unless_told_otherwise():
    selection = grids_of(made_results("figure1-motivation", seeds=1, rounds=2))
    deviation = grids_of(made_results("figure2-deviation", seeds=1, rounds=2))
    text = markdown(selection, paper=True)
    assert text.count("Liars' share of the update: of the weights that the rule gave, in perc") == 2
    assert text.count("Best accuracy of all rounds, in percent") == 2
    assert text.count("### ") == text.count("plays those of the suite") == 2
    assert "Distance of the update" in markdown(deviation, paper=True)
    assert "paper" not in markdown(deviation, paper=True)
    for grids in (selection, deviation):
        assert "Accuracy after the last round" in markdown(grids, "final")
        assert "Liars' share" not in markdown(grids, "final")
    labels = re.findall(r"\\label{(.*?)}", latex(selection))
    assert len(set(labels)) == len(labels) == 4
    assert {each["metric"] for each in records(selection)} == {"byzantine_weight"}
    begun = [ended(each, "interrupted") for grid in selection for each in grid.results]
    assert len(table_lines(markdown(grids_of(begun)))) == 2 * (2 + 6)
    assert as_json(deviation)["metric"] is None
    assert markdown(grids_of(table1())) == markdown(grids_of(table1()), "best")
