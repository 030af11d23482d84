"""`outvote export`, `outvote list runs` and `outvote list suites`, as a user types them."""

import gzip
import sys

import msgspec
import pytest

from command_line import run
from made_results import write_store
from outvote.results.collect import collect
from outvote.results.long_table import to_frame, to_long_csv
from outvote.results.schema import Status

TWO = {"rule": ["mean", "gas(median, num_groups=20)"], "attack": ["lie", "none"], "rounds": 6}


@pytest.fixture
def store(tmp_path):
    write_store(tmp_path / "runs", TWO, seeds=1)
    return tmp_path / "runs"


def set_outcome(store, outcome, number=0):
    path = sorted(store.glob("*/*/status.json"))[number]
    status = msgspec.json.decode(path.read_bytes(), type=Status)
    changed = msgspec.structs.replace(status, outcome=outcome, sums=None)
    if changed.is_over:
        changed = changed.with_sums(status.sums.run, status.sums.files)
    path.write_bytes(msgspec.json.encode(changed))
    return path.parent


def test_an_export_can_stand_for_the_runs(capsys, store, tmp_path):
    first, second = tmp_path / "a.csv.gz", tmp_path / "b.csv.gz"
    found = run(capsys, "export", store, "-o", first, "--json")
    assert found.json == {
        "path": str(first),
        "runs": 4,
        "left_out": 0,
        "bytes": first.stat().st_size,
    }
    found = run(capsys, "export", first, store, "-o", second)
    assert found.out == f"{second}: 4 runs, {first.stat().st_size:,} bytes.\n"
    assert first.read_bytes() == second.read_bytes()


def test_a_long_export_has_a_row_per_run_and_round(capsys, store, tmp_path):
    path = tmp_path / "long.csv"
    found = run(capsys, "export", store, "--format", "long", "-o", path, "--json")
    assert found.json["runs"] == 4
    assert path.read_bytes() == to_long_csv(collect([store]), is_packed=False)
    assert path.read_text().count("\n") == 1 + 4 * 6
    packed = tmp_path / "long.csv.gz"
    assert run(capsys, "export", store, "--format", "long", "-o", packed).code == 0
    assert gzip.decompress(packed.read_bytes()) == path.read_bytes()
    run(capsys, "table", path).assert_fails(2, "is not an export; give", "--format runs")


def test_a_parquet_export_needs_pyarrow_and_holds_the_same(capsys, store, tmp_path, monkeypatch):
    path = tmp_path / "runs.parquet"
    run(capsys, "export", store, "-o", path).assert_fails(2, "add --format parquet")
    words = ["export", store, "--format", "parquet"]
    run(capsys, *words, "-o", tmp_path / "a.csv").assert_fails(2, "must end in .parquet, got")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "pyarrow", None)
        run(capsys, *words, "-o", path).assert_fails(2, "needs pyarrow", "pip install pyarrow")
    assert not path.exists()
    pandas, _ = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    assert run(capsys, *words, "-o", path).code == 0
    pandas.testing.assert_frame_equal(
        pandas.read_parquet(path), to_frame(collect([store])), check_dtype=False
    )
    run(capsys, "table", path).assert_fails(2, "is not an export; give", "--format runs")


def test_unfinished_runs_are_left_out_unless_asked_for(capsys, store, tmp_path):
    set_outcome(store, "running")
    found = run(capsys, "export", store, "-o", tmp_path / "a.csv")
    assert "3 runs" in found.out
    assert "unfinished: 1; --all takes them too" in found.out
    assert (
        run(capsys, "export", store, "-o", tmp_path / "a.csv", "--all", "--json").json["runs"] == 4
    )
    assert len(collect([tmp_path / "a.csv"])) == 4


def test_a_damaged_run_is_named_on_stderr_and_the_others_are_exported(capsys, store, tmp_path):
    bad = sorted(store.glob("*/*"))[1]
    (bad / "config.toml").write_text("rule =")
    found = run(capsys, "export", store, "-o", tmp_path / "a.csv.gz", "--json")
    assert found.json["runs"] == 3
    assert found.err.startswith(f"{bad} is left out")


def test_mistakes_are_one_line(capsys, store, tmp_path):
    target = tmp_path / "a.csv.gz"
    run(capsys, "export", "nowhere", "-o", target).assert_fails(2, "no file or folder nowhere")
    run(capsys, "export", store, "-o", tmp_path / "a.txt").assert_fails(2, ".csv.gz or .csv, got")
    run(capsys, "export", store).assert_fails(2, "--output")
    run(capsys, "export", "-o", target).assert_fails(2, "RUNS")
    set_outcome(store, "running")
    one = set_outcome(store, "failed")
    run(capsys, "export", one, "-o", target).assert_fails(2, "1 run, none finished")
    assert not target.exists()
    missing = tmp_path / "no" / "a.csv"
    run(capsys, "export", store, "-o", missing).assert_fails(2, "could not be written")
    target.write_bytes(b"\x1f\x8bno")
    run(capsys, "export", target, "-o", target).assert_fails(1, "cannot be read")


def test_runs_are_listed_as_a_table_and_as_json(capsys, store):
    found = run(capsys, "list", "runs", "--store", store, "--json").json
    assert [entry["outcome"] for entry in found] == ["finished"] * 4
    assert {entry["rule"] for entry in found} == {"mean", "gas(median, num_groups=20)"}
    assert "stamp" not in found[0]
    assert {entry["settings"]["data.beta"] for entry in found} == {0.5}
    table = run(capsys, "list", "runs", "--store", store, "--rebuild")
    assert (table.code, table.err) == (0, "")
    for entry in found:
        assert f"{100 * entry['best']:.1f}" in table.out
    assert (store / "index.sqlite").exists()


def test_runs_are_listed_by_suite(capsys, store):
    write_store(store, {**TWO, "rounds": 3} | {"rule": "median"}, seeds=1)
    assert len(run(capsys, "list", "runs", "--store", store, "--suite", "own", "--json").json) == 6
    found = run(capsys, "list", "runs", "--store", store, "--suite", "owm")
    found.assert_fails(2, "no runs of a suite 'owm'", "own")


def test_suites_are_listed_with_their_runs_and_parts(capsys):
    found = {suite["name"]: suite for suite in run(capsys, "list", "suites", "--json").json}
    assert len(found) == 17
    assert found["table1-cifar10"]["num_runs"] == 960
    assert [part["name"] for part in found["table1-cifar10"]["parts"]] == [
        "main",
        "lie-p100",
        "other-side",
        "lie-p100-other-side",
        "all-clients",
    ]


def test_one_run_is_one_run(capsys, tmp_path):
    one = write_store(tmp_path / "runs", {"rule": "mean", "rounds": 1}, seeds=1)
    store = tmp_path / "runs"
    target = tmp_path / "one.csv"
    assert f"{target}: 1 run, " in run(capsys, "export", store, "-o", target).out
    table = run(capsys, "table", store).out
    assert ", 1 round, " in table
    assert "1 rounds" not in table
    assert "1 run, none damaged" in run(capsys, "verify", store).out
    audit = run(capsys, "audit", one[0].folder.path).out
    assert ": 1 round, " in audit
