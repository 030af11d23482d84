"""Tables: every cell that a suite asks for, true numbers, what is missing, in four formats."""

import csv
import io
import random
import re
import statistics
from dataclasses import replace
from functools import cache

import msgspec
import pytest

from made_results import ENVIRONMENT, made_results, without_kept, without_weights
from outvote.experiment.plan import make_plan, table_cells
from outvote.report import table_formats
from outvote.report.cells import METRICS, OF_CLIENTS, spread_of
from outvote.report.layout import grids_of
from outvote.report.provenance import provenance_of
from outvote.report.rendered_table import render, render_table
from outvote.results.labels import is_same, names_of, outline
from outvote.results.schema import CodeUsed, Status
from outvote.suites.suite import make_suite, read_suite, suite_names

OTHER_DATA = ("table1-cifar100", "table1-femnist", "table1-imagenet12")
OWN = {"rule": ["median", "gas(median)"], "attack": ["lie", "ipm"], "rounds": 4}


def writer(name):
    """A format as a function of grids."""

    def write(grids, metric=None, *, paper=False):
        return getattr(table_formats, name)(render(grids, metric, paper=paper))

    return write


markdown, latex, html, to_csv, as_json, records = map(
    writer, ("markdown", "latex", "html", "to_csv", "as_json", "records")
)


def bold(grid, metric):
    rows = render_table(grid, metric).rows
    return {(n, k) for n, row in enumerate(rows) for k, c in enumerate(row.cells) if c.is_bold}


@cache
def made_table1(seeds, diverged):
    return made_results(
        "table1-cifar10", seeds=seeds, rounds=3, diverged=diverged, parts=("main", "lie-p100")
    )


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
    assert cell.spread("test_loss") is None, "targets are classes"
    for metric in METRICS:
        if metric in ("test_loss", *OF_CLIENTS):
            continue
        scale = 1 if metric == "deviation" else 100
        values = [scale * getattr(each, metric) for each in cell.results]
        spread = cell.spread(metric)
        assert spread.mean == pytest.approx(statistics.mean(values))
        assert spread.std == pytest.approx(statistics.stdev(values))


def test_one_seed_has_no_deviation_and_no_number_no_mean():
    assert spread_of([1.0]) == (1.0, None, 1)
    assert spread_of([float("nan"), 1.0]) == (1.0, None, 1)
    assert spread_of([float("nan")]) is None


@pytest.mark.parametrize(
    "name",
    [
        # The same tables as those of CIFAR-10, of other data.
        pytest.param(name, marks=[pytest.mark.slow] * (name in OTHER_DATA))
        for name in suite_names()
    ],
)
def test_every_cell_of_every_suite_has_all_its_runs_and_the_papers_number(name):
    grids = grids_of(made_results(name, seeds=1, rounds=2))
    parts = read_suite(name).parts
    assert [grid.part for grid in grids] == [part.name for part in parts]
    for grid, part in zip(grids, parts, strict=True):
        # Rules that differ in parameters alone have a row each.
        rows = list(names_of(part.texts("rule"), part.ignored("rule")).values())
        assert (list(grid.rows), list(grid.columns)) == (list(dict.fromkeys(rows)), part.values)
        for cell in cells_of(grid):
            assert (len(cell.results), cell.num_wanted) == (1, len(part.seeds))
            assert (cell.printed is None) == (part.wanted is None)


def test_cells_are_there_when_only_one_run_is():
    main, lie, *_ = grids_of(table1()[:1])
    assert (len(cells_of(main)), len(cells_of(lie))) == (72, 6)
    assert sum(bool(cell.results) for cell in cells_of(main)) == 1
    assert markdown([main], "best").count("not run |") == 71 + 11


def test_parts_without_a_run_are_only_named():
    """A part with one run that is not over has all its cells."""
    grids = grids_of([ended(table1()[0], "failed")])
    titles = [part.title for part in read_suite("table1-cifar10").parts[1:]]
    named = f"Not run, though the suite has it: {'; '.join(titles)}."
    text = markdown(grids, "best")
    assert text.count(named) == 1
    assert len(table_lines(text)) == 2 + 12
    assert f"% {named}" in latex(grids, "best")
    assert latex(grids, "best").count(r"\begin{table}") == 1
    assert len(records(grids, "best")) == 72 + 6 + 36 + 6 + 72
    everything = grids_of(made_results("table1-cifar10", seeds=1, rounds=1))
    assert "Not run" not in markdown(everything, "best")


def test_unfinished_runs_are_not_counted_but_named():
    results = table1(seeds=1)
    results[0], results[1] = ended(results[0], "failed"), ended(results[1], "interrupted")
    main = grids_of(results)[0]
    missing = [cell for cell in cells_of(main) if not cell.results]
    assert [len(cell.unfinished) for cell in missing] == [1, 1]
    text = markdown([main], "best")
    assert "| failed |" in text
    assert "| unfinished |" in text
    assert "Not counted, because unfinished: 1 failed, 1 interrupted." in text


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
    found = bold(grid, "best")
    for first in range(0, 12, 2):
        for column in range(6):
            plain, gas = (
                round(grid.cells[row][column].spread("best").mean, 2) for row in (first, first + 1)
            )
            assert ((first, column) in found) == (plain >= gas)
            assert ((first + 1, column) in found) == (gas >= plain)
    assert bold(grid, "kept_byzantine") != found


def test_the_worst_case_is_the_smallest_mean_and_partial_if_a_column_is_missing():
    results = table1()
    whole = grids_of(results)[0]
    worst = render_table(whole, "best", paper=True).rows[0].worst
    assert worst.mean.value == min(cell.spread("best").mean for cell in whole.cells[0])
    assert not worst.is_partial
    assert worst.paper == (23.68, "23.68")
    most = render_table(whole, "kept_byzantine").rows[0].worst.mean.value
    assert most == max(cell.spread("kept_byzantine").mean for cell in whole.cells[0])
    column = whole.columns[worst.column]
    part = grids_of([each for each in results if each.attack != column])[0]
    assert render_table(part, "best").rows[0].worst.is_partial
    assert "(5 of 6)" in markdown([part], "best")


def test_an_added_rule_is_a_row_and_an_added_attack_a_column():
    results = table1()
    rule = [with_rule(each, "mine.py:My") for each in results if each.rule == "median"]
    attack = [with_attack(each, "gas-aware") for each in results if each.attack == "ipm"]
    main, lie, *_ = grids_of([*results, *rule, *attack])
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


def test_runs_of_other_rounds_are_laid_out_as_their_part_and_named_so():
    full = made_results("splits", seeds=1, rounds=3, parts=("cifar10",))
    shorter = [replace(each, config={**each.config, "rounds": 90}) for each in full]
    whole, grid = grids_of(full)[1], grids_of(shorter)[1]
    assert grid.title == f"{whole.title}, 90 instead of 200 rounds"
    assert (grid.part, grid.rows, grid.columns) == (whole.part, whole.rows, whole.columns)
    assert len(grid.results) == len(shorter)
    assert [each.part for each in grids_of(shorter)] == ["small", "cifar10"]
    titles = [each.title for each in grids_of([*full, *shorter]) if each.results]
    assert titles == [whole.title, grid.title]
    text = markdown(grids_of(shorter[1:]))
    assert "run them with `outvote bench splits --part cifar10 --set rounds=90`" in text


def with_rounds(results, rounds, *attacks):
    """The same runs; those under the attacks were to have fewer rounds."""
    return [
        replace(each, config={**each.config, "rounds": rounds}) if each.attack in attacks else each
        for each in results
    ]


@pytest.mark.parametrize(
    ("suite", "part"),
    [("splits", "cifar10"), ("table1-cifar10", "main")],
    ids=["the part has rounds", "its preset has rounds"],
)
def test_columns_with_fewer_rounds_are_in_the_same_table_and_marked(suite, part):
    full = made_results(suite, seeds=1, rounds=3, parts=(part,))
    (whole,) = [grid for grid in grids_of(full) if grid.results]
    results = with_rounds(full, 90, "ipm")
    (grid,) = [grid for grid in grids_of(results) if grid.results]
    assert (grid.title, grid.rows, grid.columns) == (whole.title, whole.rows, whole.columns)
    assert len(grid.results) == len(full)
    marked = [title for title in grid.titles if title not in whole.titles]
    assert marked == ["ipm, 90 rounds"]
    text = markdown([grid])
    others = ", ".join(name for name in grid.columns if name != "ipm")
    assert f" Columns differ in rounds: {others} 200; ipm 90. " in text
    assert "| ipm, 90 rounds |" in text
    assert "200 rounds" not in text
    assert "Columns differ in rounds" in latex([grid])
    for each in records([grid]):
        assert each["num_rounds"] == (90 if each["value"] == "ipm" else 200)


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
    assert not any(render_table(grid, "best").has_worst for grid in grids)


def test_a_setting_that_runs_leave_out_at_its_default_has_a_column():
    table = {**OWN, "attack": "lie", "server": {"optimizer": ["sgd", "adam"]}}
    results = made_results(table, seeds=1)
    (grid,) = grids_of(results)
    assert grid.titles == ["server.optimizer = adam", "server.optimizer = sgd"]
    assert all(len(cell.results) == 1 for cell in cells_of(grid))
    about = {"columns": "server.optimizer", "settings": table}
    (part,) = make_suite("mine", {"part": [about]}).parts
    assert all(part.holds(result) for result in results)
    columns = [column for _, column in table_cells(part, make_plan(table)).values()]
    assert sorted(columns) == ["adam", "adam", "sgd", "sgd"]


def test_names_have_the_parameters_that_differ_and_no_others():
    names = names_of(
        [
            "gas(rfa(num_iterations=3), num_groups=10)",
            "gas(rfa(num_iterations=3))",
            "rfa(num_iterations=3)",
        ]
    )
    assert list(names.values()) == ["gas(rfa, num_groups=10)", "gas(rfa, num_groups=1000)", "rfa"]


@pytest.mark.parametrize(
    "texts",
    [
        ["gas(flame.py:Flame(noise=0.001))", "gas(flame.py:Flame(noise=0.002), num_groups=10)"],
        ["gas(flame.py:Flame)", "gas(flame.py:Flame(noise=0.001))"],
        ["gas(dnc(removal_factor=4.0), num_groups=100)", "gas(dnc)"],
        ["nnm(clip(krum, factor=2.0))", "nnm(clip(krum, factor=3.0))"],
        ["'my rules/flame.py:Flame'(noise=0.1)", "'my rules/flame.py:Flame'(noise=0.2)"],
        ["a.py:Mine(noise=0.12345678)", "a.py:Mine(noise=0.12345679)"],
        ["a.py:Mine(mode='two words')", "a.py:Mine(mode='true')"],
        ["gas(a.py:Mine(size=3), num_groups=5)", "gas(a.py:Mine(size=3, k=2), num_groups=5)"],
        ["clip(clip(krum, factor=2), factor=3)", "clip(clip(krum, factor=3), factor=2)"],
    ],
)
def test_a_name_has_parameters_of_the_rule_where_the_rule_has_them(texts):
    names = names_of(texts)
    assert len(set(names.values())) == len(texts)
    for text, name in names.items():
        known = parameters_by_depth(outline(text).settled)
        assert parameters_by_depth(outline(name)).items() <= known.items()
    assert not is_same(*names.values())


def parameters_by_depth(found):
    """All parameters of a rule, by the names around them."""
    result, path = {}, ()
    while True:
        path = (*path, found.name)
        result |= {(path, key): value for key, value in found.parameters.items()}
        if not found.inside:
            return result
        (found,) = found.inside


def code_of(result, digest, path="mine.py"):
    environment = msgspec.structs.replace(
        result.environment, code=(CodeUsed(path=path, checksum=digest),)
    )
    return replace(result, name=f"{result.name[:-6]}{digest[:6]}", environment=environment)


def test_versions_of_a_users_file_have_rows_of_their_own():
    plain = made_results({**OWN, "rule": "median", "attack": "lie"}, seeds=2)
    own = [with_rule(each, "mine.py:Mine") for each in plain]
    old, new = ([code_of(each, letter * 32) for each in own] for letter in "ab")
    (grid,) = grids_of([*old, *new, *plain])
    assert grid.rows == ("median", "mine.py:Mine, code aaaaaaa", "mine.py:Mine, code bbbbbbb")
    assert [len(cell.results) for cell in cells_of(grid)] == [2, 2, 2]
    text = markdown([grid], "best")
    assert "mine.py was edited between these runs" in text
    assert "seed of another run" not in text
    assert "Not the defaults" not in text
    (grid,) = grids_of([*new, *plain])
    assert grid.rows == ("median", "mine.py:Mine")
    assert "edited" not in markdown([grid], "best")


def test_versions_of_a_users_attack_have_columns_of_their_own():
    plain = made_results({**OWN, "rule": "median", "attack": "lie"}, seeds=1)
    own = [replace(each, config={**each.config, "attack": "mine.py:Mine"}) for each in plain]
    both = [code_of(each, letter * 32) for each in own for letter in "ab"]
    (grid,) = grids_of(both)
    assert grid.titles == ["mine.py:Mine, code aaaaaaa", "mine.py:Mine, code bbbbbbb"]


def test_the_provenance_names_protocols_if_there_are_several():
    results = made_results({**OWN, "rule": "gas(median)", "attack": "lie"}, seeds=2)
    assert "Protocols" not in provenance_of(grids_of(results)).text()
    newer = msgspec.structs.replace(ENVIRONMENT, protocol=2)
    mixed = grids_of([results[0], replace(results[1], environment=newer)])
    note = "Protocols: 1, 2; the same seed draws other random splits in each."
    assert note in provenance_of(mixed).text()
    assert note in markdown(mixed, "best")
    assert note in html(mixed, "best")
    assert "Protocols" not in html(grids_of(results), "best")


def test_a_repeated_seed_is_counted_and_named():
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
    assert latex([grid], "best").count(r"\textbf{") == len(bold(grid, "best"))


def test_the_csv_reads_back_to_the_records():
    grids = grids_of(table1()[:50])
    found = list(csv.DictReader(io.StringIO(to_csv(grids, "best", paper=True))))
    wanted = records(grids, "best", paper=True)
    assert len(found) == len(wanted) == 72 + 6 + 36 + 6 + 72
    for row, record in zip(found, wanted, strict=True):
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
    grids = grids_of(table1())[:2]
    found = as_json(grids, "best", paper=True)
    assert found["cells"] == records(grids, "best", paper=True)
    assert len(found["worst_cases"]) == 12
    assert found["provenance"]["num_runs"] == 156


def test_provenance_counts_a_run_once_and_names_all_machines():
    one = made_results("smoke", seeds=1)
    other = msgspec_replace(device="NVIDIA H200", commit="f" * 40 + "+changes")
    more = made_results(OWN, seeds=1, environment=other)
    grids = [*grids_of(one), *grids_of([*one, *more])]
    about = provenance_of(grids)
    assert about.num_runs == len(one) + len(more)
    assert about.devices == ["NVIDIA H200", "cpu"]
    assert about.num_samples == sum(each.num_samples for each in [*one, *more])
    assert "0123456789ab, ffffffffffff+changes" in about.text()


def msgspec_replace(**changes):
    from msgspec.structs import replace as changed

    return changed(ENVIRONMENT, **changes)


def test_what_the_names_of_rows_and_columns_leave_out_is_named():
    text = markdown(grids_of(table1())[:1], "best")
    assert (
        "Not the defaults: dnc(removal_factor=4), gas(dnc(removal_factor=4)), "
        "lie(sign=1), min-max(sign=1, method=search), min-sum(sign=1, method=search).\n" in text
    )
    assert r"Not the defaults: dnc(removal\_factor=4)" in latex(grids_of(table1())[:1], "best")
    groups = made_results("table3-num-groups", seeds=1, rounds=1, parts=("other-side",))
    assert "Not the defaults" not in markdown(grids_of(groups), "best")


@pytest.mark.parametrize("write", [markdown, latex])
def test_a_mean_of_fewer_runs_than_there_are_is_marked(write):
    results = table1(seeds=3)
    nan = results[0].series.accuracy * float("nan")
    results[0] = replace(results[0], series=replace(results[0].series, accuracy=nan))
    assert write(grids_of(results), "best").count("(2 of 3 measured)") == 1
    assert "measured" not in write(grids_of(table1(seeds=3)), "best")


def test_records_have_the_worst_case_and_the_papers():
    grids = grids_of(table1())[:2]
    worst = as_json(grids, "final", paper=True)["worst_cases"]
    found = [each for each in records(grids, "final") if each["is_worst"]]
    assert [(each["rule"], each["value"], each["final_mean"]) for each in found] == [
        (each["rule"], each["value"], each["mean"]) for each in worst
    ]
    assert worst[0]["paper"] == 23.68
    assert worst[0]["difference"] == pytest.approx(worst[0]["mean"] - 23.68, abs=0.0051)
    lie = [each for each in records(grids, "final") if each["part"] == "lie-p100"]
    assert {each["is_worst"] for each in lie} == {None}


def test_without_an_attack_there_is_no_selection_rate_and_no_column_is_missing():
    grid = grids_of(made_results({**OWN, "attack": ["none", "lie", "ipm"]}))[0]
    column = grid.columns.index("none")
    assert {row[column].spread("kept_byzantine") for row in grid.cells} == {None}
    worst = render_table(grid, "kept_byzantine").rows[0].worst
    assert not worst.is_partial
    assert worst.column != column
    lines = table_lines(markdown([grid], "kept_byzantine"))
    assert {line[1 + column].strip() for line in lines[2:]} == {"–"}
    assert "–: no Byzantine client took part." in markdown([grid], "kept_byzantine")
    assert "no Byzantine client" not in markdown([grid], "best")
    record = records([grid], "kept_byzantine")[column]
    assert (record["value"], record["kept_byzantine_mean"]) == ("none", None)


def test_an_unknown_selection_rate_is_a_dash_and_never_zero():
    own = {**OWN, "attack": ["none", "lie", "ipm"]}
    results = [without_kept(e) if e.rule == "median" else e for e in made_results(own)]
    (grid,) = grids_of(results)
    for metric in ("kept_byzantine", "byzantine_weight"):
        text = markdown([grid], metric)
        row = next(line for line in table_lines(text) if line[0].strip() == "median")
        assert [cell.strip() for cell in row[1:]] == ["–", "–", "–", "no number"]
        why = "no Byzantine client took part, or the rule does not report which clients it kept."
        assert f"–: {why}" in text
        assert f"--: {why}" in latex([grid], metric)
    unknown = [each for each in records([grid]) if each["rule"] == "median"]
    assert {each["kept_byzantine_mean"] for each in unknown} == {None}
    assert {each["best_mean"] is None for each in unknown} == {False}


def test_a_deviation_is_a_plain_number_and_the_smallest_is_best():
    grid = grids_of(made_results({**OWN, "attack": ["none", "lie", "ipm"]}))[0]
    text = markdown([grid], "deviation", paper=True)
    assert (
        "Distance of the update to the honest mean, in rounds with Byzantine clients: mean ±"
        in text
    )
    assert "percent" not in text
    assert "Worst case: the largest mean" in text
    means = [[cell.spread("deviation").mean for cell in row] for row in grid.cells]
    for row, column in bold(grid, "deviation"):
        assert means[row][column] == min(each[column] for each in means)
    for row, line in enumerate(table_lines(text)[2:]):
        printed = [float(each.replace("*", "").split()[0]) for each in line[1:-1]]
        assert printed == [pytest.approx(mean, rel=5e-3) for mean in means[row]]
        assert float(line[-1]) == max(printed)
    assert records([grid])[0]["deviation_mean"] == pytest.approx(means[0][0], rel=1e-5)


def test_runs_without_weights_show_the_selection_rate():
    results = made_results("figure1-motivation", seeds=1, rounds=2, parts=("iid", "non-iid"))
    old = grids_of([without_weights(each) for each in results])
    assert {each["metric"] for each in records(old)} == {"kept_byzantine"}


def test_a_table_shows_what_its_part_is_about_unless_a_metric_is_chosen():
    selection = grids_of(
        made_results("figure1-motivation", seeds=1, rounds=2, parts=("iid", "non-iid"))
    )
    deviation = grids_of(made_results("figure2-deviation", seeds=1, rounds=2))
    text = markdown(selection, paper=True)
    assert (
        text.count(
            "Byzantine weight (the Byzantine clients' share of the rule's weights), in percent"
        )
        == 2
    )
    assert text.count("Best accuracy of all rounds, in percent") == 2
    assert text.count("### ") == text.count("lack runs; run them with `") == 2
    assert "Distance of the update" in markdown(deviation, paper=True)
    assert "paper" not in markdown(deviation, paper=True)
    for grids in (selection, deviation):
        assert "Accuracy after the last round" in markdown(grids, "final")
        assert "Byzantine weight" not in markdown(grids, "final")
    labels = re.findall(r"\\label{(.*?)}", latex(selection))
    assert len(set(labels)) == len(labels) == 4
    assert {each["metric"] for each in records(selection[:2])} == {"byzantine_weight"}
    begun = [ended(each, "interrupted") for grid in selection for each in grid.results]
    assert len(table_lines(markdown(grids_of(begun)))) == 2 * (2 + 6)
    assert as_json(deviation)["metric"] is None
    assert markdown(grids_of(table1())) == markdown(grids_of(table1()), "best")
