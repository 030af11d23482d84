"""`outvote bench` from the outside, in one process."""

import re
from itertools import chain, repeat

import pytest
import torch

from benches import finished_store, metrics, outcomes, own_rule
from command_line import run
from outvote.cli import run_plan
from outvote.experiment.runner import stacks
from outvote.results.folder import find_runs
from simulations import tiny

CPU = ["--device", "cpu"]
TABLE_1 = ["bench", "table1-cifar10", "--dry-run", *CPU]


@pytest.fixture(scope="module")
def suite_and_store(tmp_path_factory):
    return finished_store(tmp_path_factory.mktemp("suite"))


@pytest.fixture
def suite(suite_and_store):
    return suite_and_store[0]


@pytest.fixture
def store(suite_and_store):
    return suite_and_store[1]


def test_a_dry_run_of_table_1_counts_360_runs_and_names_12_times_6_cells(capsys, tmp_path):
    result = run(capsys, *TABLE_1, "-o", tmp_path)
    assert result.code == 0
    assert "main: 360 runs = 12 rules × 6 attacks × 5 seeds" in result.out
    assert "attacks: bit-flip, label-flip, lie, min-max, min-sum, ipm" in result.out
    assert "all: 960 runs, 0 finished, 0 half done, 0 adoptable" in result.out
    assert f"no estimate: no run like these is in {tmp_path}/." in result.out
    found = run(capsys, *TABLE_1, "-o", tmp_path, "--json").json
    main = found["parts"][0]
    assert (len(main["rules"]), len(main["values"]), len(main["seeds"])) == (12, 6, 5)
    assert (main["counts"]["runs"], main["counts"]["to_do"]) == (360, 360)
    assert (found["seconds"], found["num_unknown"]) == (None, 960)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_dry_run_for_a_gpu_needs_none(capsys, suite, store, tmp_path):
    words = ["bench", suite, "--device", "cuda", "--precision", "bfloat16", "-o", store]
    result = run(capsys, *words, "--dry-run")
    assert (result.code, result.err) == (0, "")
    assert "no estimate" in result.out
    assert "torch finds no CUDA device" in run(capsys, *words).err


def test_a_suite_is_shown_in_cells(capsys, suite, store):
    result = run(capsys, "bench", suite, "-o", store, *CPU)
    assert (result.code, result.err) == (0, "")
    table = run(capsys, "table", store, "--suite", suite, "--format", "text").out
    assert result.out.startswith(table)
    assert f"8 of 8 runs are over. Results: {store / 'tiny'}" in result.out
    found = run(capsys, "bench", suite, "-o", store, *CPU, "--json").json
    assert {each["outcome"] for each in found} == {"finished"}
    assert outcomes(store) == {"finished": 8}


def test_rules_of_one_name_have_a_row_each(capsys, suite, tmp_path):
    text = suite.read_text().replace("rule = [", 'rule = ["rfa(num_iterations=1)", "rfa", ', 1)
    own = tmp_path / "tiny.toml"
    own.write_text(text)
    words = [
        "bench",
        own,
        "--rule",
        "rfa",
        "--attack",
        "none",
        "--seeds",
        "1",
        *CPU,
        "-o",
        tmp_path,
    ]
    assert "= 2 rules × 1 attack × 1 seed" in run(capsys, *words, "--dry-run").out
    lines = run(capsys, *words).out.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  rfa")] == [
        "rfa(num_iterations=1)",
        "rfa(num_iterations=3)",
    ]


def test_a_dry_run_knows_what_is_done_and_how_fast_it_was(capsys, suite, store):
    words = ["bench", suite, "-o", store, *CPU, "--dry-run", "--seeds", "4"]
    result = run(capsys, *words)
    assert "main: 16 runs = 2 rules × 2 attacks × 4 seeds" in result.out
    assert "8 finished, 0 half done, 0 adoptable from another suite, 8 to do" in result.out
    assert re.search(r"about \d+ s at the speed of the runs in", result.out)
    found = run(capsys, *words, "--json").json
    assert 0 < found["seconds"] < 60
    done = run(capsys, "bench", suite, "-o", store, *CPU, "--dry-run")
    assert "nothing is left to run." in done.out
    other = run(capsys, *words, "--set", "rounds=[3, 4]", "--json").json
    assert other["num_unknown"] == 16
    assert other["counts"]["finished"] == 8


def test_runs_without_weights_are_finished_too(capsys, suite, store, tmp_path):
    words = ["bench", suite, "-o", tmp_path, *CPU, "--no-weights"]
    assert run(capsys, *words).code == 0
    assert not list(tmp_path.glob("*/*/checkpoint*"))
    assert metrics(tmp_path) == metrics(store)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*/*")}
    assert run(capsys, *words).code == 0
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*/*")} == before


def test_when_time_is_up_all_is_saved_and_the_same_command_resumes(
    capsys, suite, store, tmp_path, monkeypatch
):
    words = ["bench", suite, "-o", tmp_path, *CPU, "--max-stacked", "4"]
    with monkeypatch.context() as patch:
        # The clock is asked once at the start, then before each stack and after each round.
        times = chain([0.0] * 4, repeat(61.0))
        patch.setattr(run_plan, "monotonic", lambda: next(times))
        result = run(capsys, *words, "--max-minutes", "1")
    assert result.code == 0
    assert "time is up, 0 of 8 runs done, the rest is saved; to resume: outvote" in result.err
    assert outcomes(tmp_path) == {"interrupted": 4}
    assert {each.status().round for each in find_runs(tmp_path)} == {2}
    dry = run(capsys, *words, "--dry-run")
    assert "0 finished, 4 half done, 0 adoptable from another suite, 4 to do" in dry.out
    again = run(capsys, *words, "--max-minutes", "60")
    assert again.code == 0
    (line,) = again.err.splitlines()
    assert line.startswith("resumes ")
    assert line.endswith(" and 3 more after round 2 of 3")
    assert metrics(tmp_path) == metrics(store)
    for path in tmp_path.glob("*/*/timings.jsonl"):
        assert path.read_bytes().count(b"\n") == 3


def test_a_broken_rule_of_ones_own_does_not_end_the_sweep(capsys, suite, tmp_path):
    broken = own_rule(tmp_path, "raise RuntimeError('no idea')")
    words = ["--rule", broken, "--rule", "mean", "--attack", "lie"]
    result = run(capsys, "bench", suite, "-o", tmp_path / "runs", *CPU, *words)
    assert result.code == 1
    assert outcomes(tmp_path / "runs") == {"failed": 2, "finished": 2}
    assert "RuntimeError: no idea" in result.err
    assert "2 of 4 runs are over" in result.out


def test_a_rule_that_was_edited_meanwhile_does_not_spoil_the_table(capsys, suite, tmp_path):
    edited = own_rule(tmp_path, "Path(__file__).write_text('import nothing_like_that')")
    words = ["--rule", edited, "--attack", "lie"]
    result = run(capsys, "bench", suite, "-o", tmp_path / "runs", *CPU, *words)
    assert (result.code, result.err) == (0, "")
    (row,) = [line.split() for line in result.out.splitlines() if line.split()[:1] == [edited]]
    assert float(row[1]) > 0


def test_the_most_work_comes_first_dataset_by_dataset(tmp_path):
    plan = tiny(seed=[0, 1], rounds=[2, 30, 4], data={"name": ["mnist", "fashion-mnist"]})
    few = tiny(rounds=100, data={"name": "mnist"})
    jobs = [(0, job) for each in (plan, few) for job in each.jobs(tmp_path)]
    order = [(g[0].spec.data.name, g[0].spec.rounds, len(g)) for g in stacks(jobs)]
    assert order == [
        ("mnist", 100, 1),
        ("mnist", 30, 2),
        ("mnist", 4, 2),
        ("mnist", 2, 2),
        ("fashion-mnist", 30, 2),
        ("fashion-mnist", 4, 2),
        ("fashion-mnist", 2, 2),
    ]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["tabel1-cifar10"], ["unknown suite", "did you mean 'table1-cifar10'?"]),
        (["nowhere.toml"], ["there is no file nowhere.toml"]),
        (["smoke", "--part", "tabel1"], ["no part 'tabel1'", "did you mean 'table1'?"]),
        (["smoke", "--rule", "mediann"], ["unknown rule 'mediann'", "did you mean 'median'?"]),
        (["smoke", "--set", "rulez=1"], ["part table1", "did you mean 'rule'?"]),
        (["smoke", "--seeds", "0"], ["--seeds"]),
        (["smoke", "--max-minutes", "0"], ["--max-minutes"]),
        (["smoke", "-j", "2", "--dask", "x:1"], ["-j and --dask exclude each other"]),
        ([], ["SUITE"]),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(capsys, words, expected):
    run(capsys, "bench", *words).assert_fails(2, *expected)


def test_a_dry_run_names_p_and_the_settings_in_which_parts_differ(capsys, tmp_path):
    result = run(capsys, *TABLE_1, "-o", tmp_path)
    lines = result.out.splitlines()
    found = [line for line in lines if line.startswith("  p of gas: ")]
    assert found[:2] == ["  p of gas: 1,000", "  p of gas: 100"]
    assert {line for line in lines if line.startswith("  settings: ")} == {
        "  settings: federation.sampled = 5",
        "  settings: federation.sampled = 50",
    }
    main = run(capsys, *TABLE_1, "-o", tmp_path, "--part", "main", "--json").json["parts"][0]
    assert (main["num_groups"], main["settings"]) == ([1000], {})
    groups = run(capsys, "bench", "table3-num-groups", "--dry-run", *CPU, "-o", tmp_path)
    assert "p of gas" not in groups.out  # The columns are p.
    # Two parts that differ in the side of the attack alone.
    assert "  settings: attack = lie(sign=1); federation.sampled = 5\n" in groups.out
    assert "  settings: attack = lie; federation.sampled = 5\n" in groups.out
