"""Runs as a long table: typed columns, and the same values as frame, CSV and Parquet."""

import csv
import gzip
import io
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from made_results import made_results, without_kept
from outvote.experiment.run_spec import RunSpec
from outvote.grids import flat
from outvote.results.later import LATER
from outvote.results.long_table import (
    ABOUT,
    BY_ROUND,
    Column,
    run_columns,
    to_frame,
    to_long_csv,
    to_parquet,
    typed,
)

TWO = {
    "rule": ["mean", "gas(median, num_groups=20)"],
    "attack": ["lie", "none"],
    "rounds": 6,
    "evaluate_every": 2,
    "data": {"beta": [0.1, 0.5]},
}


@pytest.fixture(scope="module")
def results():
    return made_results(TWO, seeds=1)


def rows_of(content):
    return list(csv.DictReader(io.StringIO(content.decode())))


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([1, 2], "integer", [1, 2]),
        ([1, None], "integer", [1, None]),
        ([1, 0.5], "real", [1.0, 0.5]),
        ([-0.0, float("nan")], "real", [0.0, None]),
        ([None, None], "real", [None, None]),
        ([True, False], "boolean", [True, False]),
        ([True, 1], "text", ["true", "1"]),
        ([20, "all"], "text", ["20", "all"]),
        ([[], [[5, 0.1]]], "text", ["[]", "[[5, 0.1]]"]),
        ([2**63], "text", [str(2**63)]),
        (["odd\udcff"], "text", [r"odd\udcff"]),
    ],
)
def test_a_column_has_one_type(values, kind, expected):
    found = typed(values)
    assert found == Column(kind, expected)
    assert [str(each) for each in found.values] == [str(each) for each in expected]


def test_every_setting_has_a_column_and_none_has_the_name_of_another():
    names = {*flat(msgspec.to_builtins(RunSpec()))} - {*ABOUT}
    columns = run_columns(made_results(TWO, seeds=1))
    assert {*columns} & {*BY_ROUND} == set()
    assert names == {
        name.removeprefix("settings.")
        for name in columns
        if name not in ABOUT and not name.startswith(("rule.", "attack."))
    }


def test_a_setting_that_a_config_leaves_out_has_its_default(results):
    columns = run_columns(results)
    assert {key for each in results for key in flat(each.config)} & {*LATER} == set()
    for name, default in LATER.items():
        column = columns.get(name) or columns[f"settings.{name}"]
        assert column.values == [default] * len(results)


def test_a_setting_with_the_name_of_another_column_keeps_its_value(results):
    one = replace(results[0], config={**results[0].config, "loss": "mine.py:loss"})
    columns = run_columns([one, results[1]])
    assert columns["settings.loss"] == Column("text", ["mine.py:loss", "auto"])
    assert "loss" not in columns


def test_parameters_of_rule_and_attack_are_settings_too(results):
    columns = run_columns(results)
    assert columns["rule"].values == [each.config["rule"] for each in results]
    assert columns["rule.num_groups"].kind == "integer"
    for each, groups, z in zip(
        results, columns["rule.num_groups"].values, columns["attack.z"].values, strict=True
    ):
        assert groups == (20 if each.rule == "gas(median)" else None)
        assert z == (1.5 if each.attack == "lie" else None)


def test_the_attack_none_is_a_name_and_a_setting_none_is_missing(results):
    columns = run_columns(results)
    assert "none" in columns["attack"].values
    assert {each.config["training"]["num_steps"] for each in results} == {"none"}
    assert columns["training.num_steps"].values == [None] * len(results)


def test_a_long_csv_has_a_row_per_run_and_round_with_exact_values(results):
    rows = rows_of(to_long_csv(results, is_packed=False))
    assert len(rows) == sum(len(each.series) for each in results)
    by_run = {each.name: each for each in results}
    for row in rows:
        run = by_run[row["name"]]
        at = int(row["round"]) - 1
        for name in BY_ROUND:
            value = getattr(run.series, name)[at]
            assert row[name] == "" if np.isnan(value) else float(row[name]) == value
        assert float(row["data.beta"]) == run.config["data"]["beta"]
        assert (row["rule"], row["seed"]) == (run.config["rule"], "0")
    assert {row["accuracy"] == "" for row in rows} == {True, False}
    assert list(rows[0]) == [*run_columns(results), *BY_ROUND]


def test_the_same_runs_give_the_same_bytes_in_any_order(results):
    packed = to_long_csv(results)
    assert to_long_csv(results[::-1]) == packed
    assert gzip.decompress(packed) == to_long_csv(results, is_packed=False)


def test_counts_that_a_rule_cannot_report_are_empty(results):
    rows = rows_of(to_long_csv([without_kept(results[0]), results[1]], is_packed=False))
    assert {row["num_kept"] for row in rows if row["name"] == results[0].name} == {""}
    known = {row["num_kept"] for row in rows if row["name"] == results[1].name}
    assert all(each.isdecimal() for each in known)


def test_a_frame_has_typed_columns_and_one_row_per_run_and_round(results):
    pandas = pytest.importorskip("pandas")
    frame = to_frame(results)
    assert list(frame.columns) == [*run_columns(results), *BY_ROUND]
    assert len(frame) == 6 * len(results)
    assert list(frame.index) == list(range(len(frame)))
    kinds = {name: frame[name].dtype.kind for name in ("seed", "round", "data.beta", "accuracy")}
    assert kinds == {"seed": "i", "round": "i", "data.beta": "f", "accuracy": "f"}
    assert frame["data.balance"].dtype == bool
    assert pandas.api.types.is_string_dtype(frame["rule"])
    best = frame.groupby("name")["accuracy"].max()
    assert {each.name: each.best for each in results} == best.to_dict()


def test_frame_csv_and_parquet_hold_the_same_table(results, tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    ordered = sorted([*results[:-1], without_kept(results[-1])], key=lambda each: each.name)
    frame = to_frame(ordered)
    (tmp_path / "a.csv.gz").write_bytes(to_long_csv(ordered))
    (tmp_path / "a.parquet").write_bytes(to_parquet(ordered))
    for read in (
        pandas.read_csv(tmp_path / "a.csv.gz"),
        pandas.read_parquet(tmp_path / "a.parquet"),
    ):
        pandas.testing.assert_frame_equal(frame, read, rtol=1e-12)


def test_parquet_has_null_for_what_is_not_known(results):
    pytest.importorskip("pyarrow")
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(io.BytesIO(to_parquet([without_kept(results[0])])))
    types = {name: str(table.schema.field(name).type) for name in ("num_kept", "data.beta", "rule")}
    assert types == {"num_kept": "int64", "data.beta": "double", "rule": "string"}
    assert table["num_kept"].null_count == len(table) == 6
    assert table["accuracy"].to_pylist()[0] is None


def test_runs_without_rounds_have_no_row(results):
    pytest.importorskip("pandas")
    empty = {name: getattr(results[0].series, name)[:0] for name in BY_ROUND}
    begun = replace(results[0], series=replace(results[0].series, **empty))
    assert len(to_frame([begun, results[1]])) == 6
    assert len(to_frame([])) == 0
    assert rows_of(to_long_csv([begun], is_packed=False)) == []
