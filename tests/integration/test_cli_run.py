"""`outvote run` and `outvote demo` from the outside."""

import pytest

from command_line import run
from outvote.results.folder import find_runs
from outvote.suites.suite import read_suite

CONFIG = """
rule = ["mean", "gas(median)"]
rounds = 2
data.partition = "iid"
federation = { num_clients = 10, sampled = 5 }
model.name = "mlp"
training = { num_steps = 1, batch_size = 16 }
"""
ON_CPU = ["{config}", "--device", "cpu", "--set"]
SMALL_DEMO = ["--set", "rounds=1", "--set", "training.num_steps=1", "--device", "cpu"]


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(CONFIG)
    return path


def test_run_prints_a_table_and_where_the_results_are(capsys, config, tmp_path):
    result = run(capsys, "run", config, "-o", tmp_path / "runs", "--set", "data.min_size=1")
    assert (result.code, result.err) == (0, "")
    table = run(capsys, "table", tmp_path / "runs", "--format", "text").out
    assert result.out.startswith(table)
    assert f"2 of 2 runs are over. Results: {tmp_path / 'runs' / 'small'}" in result.out
    assert len(find_runs(tmp_path / "runs")) == 2


def test_a_dry_run_counts_runs_and_executes_nothing(capsys, config, tmp_path):
    words = ["run", config, "-o", tmp_path / "runs", "--device", "cpu", "--seeds", "3", "--dry-run"]
    result = run(capsys, *words)
    assert (result.code, result.err) == (0, "")
    assert "small: 6 runs = 2 rules × 1 attack × 3 seeds" in result.out
    assert "0 finished, 0 half done" in result.out
    assert not (tmp_path / "runs").exists()
    found = run(capsys, *words, "--json").json
    assert (found["counts"]["runs"], found["counts"]["to_do"]) == (6, 6)
    assert found["parts"][0]["seeds"] == [0, 1, 2]


def test_run_takes_seeds_and_processes_and_a_dry_run_knows_what_is_done(capsys, config, tmp_path):
    words = ["run", config, "-o", tmp_path / "runs", "--device", "cpu", "--set", "rule=mean"]
    assert run(capsys, *words, "--seeds", "2", "-j", "1").code == 0
    assert len(find_runs(tmp_path / "runs")) == 2
    left = run(capsys, *words, "--seeds", "3", "--dry-run", "--json").json
    assert (left["counts"]["finished"], left["counts"]["to_do"]) == (2, 1)
    assert left["seconds"] is not None


def test_run_prints_json_for_programs(capsys, config, tmp_path):
    found = run(capsys, "run", config, "-o", tmp_path, "--json").json
    assert [each["rule"] for each in found] == ["mean", "gas(median)"]
    assert {each["outcome"] for each in found} == {"finished"}
    assert found[0]["kept_byzantine"] == 1.0
    assert found[0]["deviation"] > 0
    nobody = run(capsys, "run", config, "--set", "attack=none", "-o", tmp_path, "--json").json
    assert [each["kept_byzantine"] for each in nobody] == [None, None]
    assert 0 <= found[0]["final"] <= found[0]["best"] <= 1


def test_run_without_weights_keeps_all_the_rest(capsys, config, tmp_path):
    assert run(capsys, "run", config, "-o", tmp_path, "--no-weights").code == 0
    kept = {path.name for path in tmp_path.glob("small/*/*") if path.name[0] != "."}
    assert kept == {
        "audit.npz",
        "config.toml",
        "env.json",
        "metrics.jsonl",
        "status.json",
        "timings.jsonl",
    }


def test_run_ends_with_1_and_one_line_for_each_run_that_failed(capsys, config, tmp_path):
    words = ["--set", "data={partition='dirichlet', min_size=[1, 2000]}", "--set", "rule=mean"]
    result = run(capsys, "run", config, "-o", tmp_path, *words)
    assert result.code == 1
    assert result.err.count("\n") == 1
    assert "failed: ValueError" in result.err
    assert "1 of 2 runs are over" in result.out


FAILING = """
import outvote
class Failing(outvote.VectorRule):
    def max_byzantine(self, num_clients):
        return num_clients - 1
    def aggregate(self, rows, num_byzantine):
        return {}[1]
"""


@pytest.fixture
def failing(tmp_path):
    (tmp_path / "failing.py").write_text(FAILING)
    return f"rule={tmp_path / 'failing.py'}:Failing"


def test_the_reason_names_the_line_of_the_users_file(capsys, config, tmp_path, failing):
    result = run(capsys, "run", config, "-o", tmp_path, "--set", failing)
    assert result.code == 1
    assert result.err.count("\n") == 1
    assert "failed: KeyError: 1 (failing.py, line 7)." in result.err


@pytest.mark.parametrize("where", ["first", "last"])
def test_debug_prints_the_traceback_of_a_run_that_failed(capsys, config, tmp_path, failing, where):
    words = ["run", config, "-o", tmp_path, "--set", failing]
    result = run(capsys, *(["--debug", *words] if where == "first" else [*words, "--debug"]))
    assert result.code == 1
    assert "Traceback (most recent call last):" in result.err
    assert "return {}[1]" in result.err
    assert "failed: KeyError: 1 (failing.py, line 7)." in result.err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["nowhere.toml"], ["there is no file nowhere.toml"]),
        (["{config}", "--set", "rulez=1"], ["small.toml", "'rulez'", "'rule'"]),
        (["{config}", "--set", "data.name=cifar"], ["unknown dataset 'cifar'", "'cifar10'"]),
        (["{config}", "--device", "tpu"], ["device"]),
        (["{config}", "--device", "cuda:x"], ["device"]),
        (["{config}", "--checkpoint-every", "-1"], ["--checkpoint-every"]),
        ([], ["CONFIG"]),
        (
            ["{config}", "--set", "federation.assumed_byzantine=6"],
            ["at most the 5 clients sampled", "got 6"],
        ),
        ([*ON_CPU, "precision=bfloat16"], ["precision must be", "CPU", "got 'bfloat16'"]),
        ([*ON_CPU, "model.name=alexnet"], ["alexnet cannot take the 28 x 28 images"]),
        (
            [*ON_CPU, "model.name=resnet18", "--set", "training.batch_size=1"],
            ["batch_size must be at least 2", "got 1"],
        ),
        (
            [*ON_CPU, "data.partition=by-group"],
            ["fashion-mnist-small has none", "choose another partition"],
        ),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(capsys, config, words, expected):
    words = [word.format(config=config) for word in words]
    run(capsys, "run", *words).assert_fails(2, *expected)


def test_data_that_is_not_there_is_one_line_before_anything_is_run(
    capsys, config, tmp_path, monkeypatch
):
    monkeypatch.setenv("OUTVOTE_DATA", str(tmp_path))
    result = run(capsys, "run", config, "-o", tmp_path / "runs", "--set", "data.name=mnist")
    result.assert_fails(2, "mnist is not in", "outvote data fetch mnist")
    assert not (tmp_path / "runs").exists()


def test_the_demo_in_small_has_all_rules_under_all_attacks(capsys, tmp_path):
    result = run(capsys, "demo", "-o", tmp_path, *SMALL_DEMO)
    assert (result.code, result.err) == (0, "")
    (part,) = read_suite("demo").parts
    for rule in part.texts("rule"):
        assert f"\n  {rule} " in result.out
    for attack in part.texts("attack"):
        assert attack in result.out
    assert len(find_runs(tmp_path / "demo")) == 15
    page = tmp_path / "demo" / "report.html"
    assert str(page) in result.out
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert len(run(capsys, "demo", "-o", tmp_path, *SMALL_DEMO, "--json").json) == 15


@pytest.mark.slow
def test_the_audit_of_the_demo_ranks_the_byzantine_clients_first(capsys, tmp_path):
    """Under LIE with gas(krum): not honest clients with unusual data."""
    cell = ["--set", 'rule="gas(krum)"', "--set", 'attack="lie(sign=1)"']
    assert run(capsys, "demo", "-o", tmp_path, *cell, "--device", "cpu").code == 0
    (folder,) = find_runs(tmp_path / "demo")
    found = run(capsys, "audit", folder.path, "--json").json["clients"]
    assert [each["is_byzantine"] for each in found] == [True] * 4 + [False] * 16
    assert [each["drop_rate"] for each in found[:4]] == [1.0] * 4


def test_an_assumed_byzantine_majority_is_one_line_of_warning(capsys, config, tmp_path):
    words = ["--set", "federation.assumed_byzantine=0.5", "--set", "rounds=1", "--set", "rule=mean"]
    words = ["run", config, *words, "-o", tmp_path / "runs"]
    for more in ([], ["--dry-run"]):
        result = run(capsys, *words, "--set", "seed=[0, 1]", *more)
        assert result.code == 0
        assert result.err.startswith("warning: 2 of 2 runs assume that half of a round's clients")
        assert result.err.count("\n") == 1
    one = run(capsys, *words, "--dry-run", "--json")
    assert one.err.startswith("warning: 1 of 1 run assumes that half")
    assert [note in one.err for note in one.json["notes"]] == [True]
