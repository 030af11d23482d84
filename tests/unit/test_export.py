"""Exports read back to what they were made of; runs are collected from any mixture of paths."""

import csv
import gzip
import io
import json
import time
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from made_results import made_results, write_store
from outvote.results.collect import collect
from outvote.results.disk import DamagedFileError, StoreError
from outvote.results.export import MARK, read_export, to_export
from outvote.results.schema import DataUsed, Status
from outvote.results.series import SERIES

TWO = {"rule": ["mean", "gas(median, num_groups=20)"], "attack": ["lie", "none"], "rounds": 6}
EVERY = (*SERIES, "byzantine_weight")


def exported(tmp_path, results, name="runs.csv.gz", **how):
    path = tmp_path / name
    path.write_bytes(to_export(results, **how))
    return path


def assert_same(found, wanted):
    for key in ("suite", "name", "config", "status", "environment", "num_samples", "hash"):
        assert getattr(found, key) == getattr(wanted, key), key
    assert found.seconds == pytest.approx(wanted.seconds, abs=5e-4)
    for key in SERIES:
        ours, theirs = getattr(found.series, key), getattr(wanted.series, key)
        assert ours.dtype == theirs.dtype
        # Five digits of what is never printed with more; the rest to the last bit.
        slack = 5e-5 if key in ("loss", "deviation", "honest_norm") else 0
        np.testing.assert_allclose(ours, theirs, rtol=slack, atol=0, err_msg=key)


@pytest.mark.parametrize("is_packed", [True, False])
def test_an_export_reads_back_to_the_same_results(tmp_path, is_packed):
    wanted = made_results(TWO, diverged=("mean-lie",))
    found = read_export(exported(tmp_path, wanted, is_packed=is_packed))
    wanted = sorted(wanted, key=lambda result: result.name)
    assert {result.status.outcome for result in found} == {"finished", "diverged"}
    for ours, theirs in zip(found, wanted, strict=True):
        assert_same(ours, theirs)
        assert ours.folder is None
        assert (ours.best, ours.final, ours.last_ten) == (
            theirs.best,
            theirs.final,
            theirs.last_ten,
        )


def test_unmeasured_values_and_awkward_texts_survive(tmp_path):
    one = made_results(TWO, seeds=1)[0]
    gaps = np.where(np.arange(len(one.series)) % 2, np.nan, 1 / 3)
    series = replace(one.series, accuracy=gaps, loss=gaps)
    status = msgspec.structs.replace(one.status, reason='he wrote "no",\nthen \u00e9nough')
    odd = replace(one, series=series, status=status, environment=None)
    found = read_export(exported(tmp_path, [odd]))[0]
    assert_same(found, odd)
    assert np.array_equal(found.series.accuracy, gaps, equal_nan=True)


def test_an_export_of_an_export_has_the_same_bytes_whatever_the_order(tmp_path):
    results = made_results(TWO)
    first = exported(tmp_path, results)
    assert to_export(read_export(first)) == first.read_bytes()
    assert to_export(results[::-1]) == first.read_bytes()


def test_an_export_is_plain_csv_with_one_row_per_run():
    results = made_results(TWO, seeds=1)
    text = gzip.decompress(to_export(results)).decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == len(results)
    assert next(iter(rows[0])) == MARK
    assert json.loads(rows[0]["config"])["federation"]["num_clients"] == 50
    first = min(results, key=lambda result: result.name)
    assert [float(word) for word in rows[0]["accuracy"].split()] == first.series.accuracy.tolist()


def test_the_columns_of_an_export_have_their_order():
    """Exports are committed: the same runs must give the same bytes in the next version too."""
    header = to_export(made_results(TWO, seeds=1), is_packed=False).decode().splitlines()[0]
    assert header.split(",") == [
        *("outvote-export", "suite", "name", "outcome", "reason", "rounds_completed", "num_rounds"),
        *("config", "environment", "seconds", "num_samples"),
        *("round", "accuracy", "loss", "deviation", "honest_norm", "num_sampled", "num_byzantine"),
        *("num_kept", "num_kept_byzantine", "num_rejected"),
        *("num_byzantine_assumed", "num_byzantine_used", "byzantine_weight"),
    ]


def test_a_run_without_any_round_is_read_back(tmp_path):
    one = made_results(TWO, seeds=1)[0]
    empty = replace(one.series, **{key: getattr(one.series, key)[:0] for key in EVERY})
    found = read_export(exported(tmp_path, [replace(one, series=empty)]))[0]
    assert (len(found.series), found.series.num_kept.dtype) == (0, np.float64)


def test_a_field_may_be_longer_than_the_csv_module_expects(tmp_path):
    one = made_results(TWO, seeds=1)[0]
    limit = csv.field_size_limit()
    long = replace(one.series, **{key: np.tile(getattr(one.series, key), 20_000) for key in EVERY})
    found = read_export(exported(tmp_path, [replace(one, series=long)]))[0]
    assert len(found.series) == 120_000
    assert csv.field_size_limit() == limit


def changed(tmp_path, old, new):
    path = exported(tmp_path, made_results(TWO, seeds=1), "runs.csv", is_packed=False)
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("\n2,", "\n3,", r"newer outvote \(export 3, known: 2\); upgrade"),
        ("\n2,", "\n1,", r"unreleased outvote \(export 1, known: 2\); export the runs again"),
        ("\n2,", "\none,", "version is 'one'"),
        (MARK, "other", "is not an export; give"),
        (",loss,", ",los,", "no column 'loss'"),
        (",finished,", ",done,", "run 1 of .* is damaged: Invalid enum value 'done'"),
        (",round,", ",round,note,", "unknown column 'note'; remove it"),
        ("1 2 3 4 5 6", "1 2 3 4 5", "accuracy has 6 numbers for 5 rounds"),
        ("1 2 3 4 5 6", "1 2 3 4 5 x", "run 1 of .* is damaged"),
        ('""rule"":', '""role"":', "its rule is None"),
        ('"{""', '"[""', "run 1 of .* is damaged"),
    ],
)
def test_what_is_wrong_with_an_export_is_reported_in_one_line(tmp_path, old, new, words):
    with pytest.raises(StoreError, match=words) as caught:
        collect([changed(tmp_path, old, new)])
    assert "\n" not in str(caught.value)


def test_runs_are_collected_from_stores_suites_single_runs_and_exports(tmp_path):
    store = tmp_path / "runs"
    results = write_store(store, TWO)
    names = sorted(result.name for result in results)
    assert [result.name for result in collect([store])] == names
    assert [result.name for result in collect([store / "own"])] == names
    assert [result.name for result in collect([store / "own" / names[2]])] == [names[2]]
    half = exported(tmp_path, [result for result in results if result.name in names[:5]])
    rest = [store / "own" / name for name in names[4:]]
    assert [result.name for result in collect([half, *rest])] == names


def test_the_same_run_twice_counts_once_and_the_better_one_wins(tmp_path):
    over = made_results(TWO, seeds=1)[0]
    running = replace(over, status=msgspec.structs.replace(over.status, outcome="running"))
    short = {key: getattr(over.series, key)[:3] for key in EVERY}
    behind = replace(running, series=replace(over.series, **short))
    paths = [
        exported(tmp_path, [each], f"{k}.csv.gz") for k, each in enumerate((behind, running, over))
    ]
    for order in (paths, paths[::-1], [paths[2], paths[0], paths[1]]):
        (found,) = collect(order)
        assert found.status.outcome == "finished"
    for order in (paths[:2], paths[1::-1]):
        (found,) = collect(order)
        assert len(found.series) == 6
    elsewhere = exported(tmp_path, [replace(over, suite="another")], "3.csv.gz")
    assert [result.suite for result in collect([paths[2], elsewhere])] == ["another", "own"]


def test_a_folder_wins_over_an_export_of_the_same_run(tmp_path):
    results = write_store(tmp_path / "runs", TWO, seeds=1)
    path = exported(tmp_path, results)
    orders = ([tmp_path / "runs", path], [path, tmp_path / "runs"])
    for order in orders:
        assert all(result.folder is not None for result in collect(order))
    # But not where it was begun anew, and the export has the finished run.
    status = results[0].folder.path / "status.json"
    status.write_bytes(status.read_bytes().replace(b"finished", b"running"))
    for order in orders:
        found = {result.name: result for result in collect(order)}
        assert found[results[0].name].is_over
        assert found[results[0].name].folder is None


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("status.json", '{"outcome": "fini'),
        ("config.toml", "rule = "),
        ("config.toml", 'attack = "lie"\nseed = 0\n'),
        ("env.json", "{}"),
    ],
)
def test_a_damaged_run_is_left_out_and_named(tmp_path, name, content):
    results = write_store(tmp_path, TWO, seeds=1)
    bad = results[1].folder.path
    (bad / name).write_text(content)
    words = []
    assert len(collect([tmp_path], words.append)) == len(results) - 1
    (message,) = words
    assert message.startswith(f"{bad} is left out: {bad / name}")


def test_a_run_that_was_never_begun_is_no_run(tmp_path):
    results = write_store(tmp_path, TWO, seeds=1)
    folder = results[0].folder.path
    for name in ("config.toml", "metrics.jsonl"):
        (folder / name).unlink()
    never = Status(outcome="failed", round=0, num_rounds=3, reason="it could not be built")
    (folder / "status.json").write_bytes(msgspec.json.encode(never))
    words = []
    assert len(collect([tmp_path], words.append)) == len(results) - 1
    assert words == []


def test_nothing_found_is_an_error(tmp_path):
    with pytest.raises(StoreError, match=r"there is no file or folder .*nowhere; check the path"):
        collect([tmp_path / "nowhere"])
    with pytest.raises(StoreError, match=r"no runs in .*; give a store"):
        collect([tmp_path])
    with pytest.raises(StoreError, match="no runs in no path"):
        collect([])


@pytest.mark.parametrize("seeds", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_the_runs_of_a_table_of_the_paper_fit_into_one_and_a_half_megabytes(tmp_path, seeds):
    results = made_results("table1-cifar10", seeds=seeds, parts=("main",))
    assert sum(len(result.series) for result in results) >= 72 * seeds * 200
    path = exported(tmp_path, results)
    assert path.stat().st_size < 300_000 * seeds
    start = time.perf_counter()
    assert len(read_export(path)) == len(results)
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize("rule", ["", " ", 3, None])
def test_a_run_without_the_text_of_a_rule_is_damaged(tmp_path, rule):
    one = made_results(TWO, seeds=1)[0]
    path = exported(tmp_path, [replace(one, config={**one.config, "rule": rule})])
    with pytest.raises(DamagedFileError, match="its rule is"):
        read_export(path)


@pytest.mark.parametrize(
    "path", ["/home/ann/my data, old/cifar10", "~/cifar10", "D:\\data\\cifar10"]
)
def test_an_export_does_not_hold_local_paths(path):
    run = made_results("table3-num-groups", seeds=1, rounds=2)[0]
    form = "WebP mosaics (part0.webp, ...)"
    data = DataUsed(
        name="cifar10", source=f"{form}, {path}", num_train=1, num_test=1, checksum="0" * 64
    )
    environment = msgspec.structs.replace(run.environment, data=data)
    content = to_export([replace(run, environment=environment)], is_packed=False).decode()
    assert form in content
    assert "ann" not in content
    assert path not in content


def test_what_a_rule_cannot_report_is_nan_in_an_export(tmp_path):
    one = made_results(TWO, seeds=1)[0]
    unknown = np.full(len(one.series), np.nan)
    series = replace(one.series, num_kept=unknown, num_kept_byzantine=unknown)
    path = exported(tmp_path, [replace(one, series=series)], "runs.csv", is_packed=False)
    assert " ".join(["nan"] * len(unknown)) in path.read_text()
    (found,) = read_export(path)
    assert np.isnan(found.series.num_kept).all()
    assert found.summary.kept_byzantine is None
    assert to_export([found], is_packed=False) == path.read_bytes()
