"""Every script in benchmarks/ runs: in miniature here, so that none rots unseen."""

import importlib
import json
import logging
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from bad_replies import HandMadeGrid
from benches import own_suite
from outvote.ops import process as pools

FOLDER = Path(__file__).parents[2] / "benchmarks"
SMALL = {
    "bench_attacks": "--clients 10 --honest 8 --byzantine 2 --dim 300 --repeats 1",
    "bench_cost": "--clients 5 8 --dim 200 400 --groups 5 20 --middle 5 200 20 --repeats 1 "
    "--rules median",
    "bench_engine": "--repeats 1",
    "bench_files": "--dim 3000 5000 --groups 3 100 --clients 8 --byzantine 1",
    "bench_flower": "--nodes 7 --byzantine 1 --width 2 --repeats 1",
    "bench_rules": "--dim 500 --clients 5 --repeats 1 --no-memory",
    "bench_vmap": "--runs 1 --clients 1 --steps 1 --precision float32 --few 1 --repeats 1 "
    "--images 64 --ways stacked sequential",
    "flower_bad_replies": "--kinds nan shape",
    "flower_exclusion": "--trials 1 --rounds 3 --rules median",
    "flower_precision": "--trials 1 --dim 50",
    "lie_sides": "--rounds 1 --random 1500",
    "scale_remedies": "",
}
"""Scripts that need nothing, and what makes them small; all write a result file."""
SLOW = {"bench_engine"}
"""Half a minute: it trains three networks in processes of their own."""
OTHERS = {
    "bench_byzfl",
    "bench_engine_gpu",
    "race",
    "round_parts",
    "too_many_runs",
}
"""Scripts with a test of their own below."""
PARTS = {
    "byzfl_side",
    "race_byzfl",
    "race_flower",
    "race_outvote",
    "race_outvote_runs",
    "race_pfl",
    "race_plain",
    "race_work",
    "straightforward",
    "timing",
}
"""What the scripts import."""


@pytest.fixture
def threads_again():
    """Put the number of threads back, which scripts set."""
    before = torch.get_num_threads()
    yield
    pools._pool.cache_clear()
    torch.set_num_threads(before)


@pytest.fixture
def script(monkeypatch, threads_again):
    """Return what runs a script in this process, as if it had been called with some words."""
    monkeypatch.syspath_prepend(str(FOLDER))
    flower = logging.getLogger("flwr")
    monkeypatch.setattr(flower, "level", flower.level)  # Scripts silence it.

    def run(name, words=""):
        module = importlib.import_module(name)
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *words.split()])
        return module.main()

    return run


@pytest.fixture
def load(monkeypatch, threads_again):
    """Return what imports a file of benchmarks/."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


def test_every_script_is_run_by_a_test():
    there = {path.stem for path in FOLDER.glob("*.py")}
    assert there == {*SMALL, *OTHERS, *PARTS}


@pytest.mark.filterwarnings("ignore:gas. num_groups")
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in sorted(SMALL)],
)
def test_a_script_runs_in_miniature(name, script, load, tmp_path, monkeypatch, capsys):
    if name == "bench_engine":
        # Without ByzFL, which is a slow test's.
        monkeypatch.setattr(load(name), "make_environment", lambda: "not wanted")
        monkeypatch.setattr(load(name), "TRAINING", replace(load(name).TRAINING, num_steps=1))
    target = tmp_path / "result.json"
    assert not script(name, f"{SMALL[name]} -o {target}")
    result = json.loads(target.read_text())
    assert {"date", "commit", "torch"} <= set(result["circumstances"])
    assert result["rows"]
    assert capsys.readouterr().out


def test_the_networks_of_the_paper_run_in_miniature(script, tmp_path):
    target = tmp_path / "result.json"
    script(
        "bench_engine_gpu",
        f"networks --device cpu --tiny --networks alexnet --runs 2 --rounds 1 -o {target}",
    )
    (row,) = json.loads(target.read_text())["rows"]
    assert len(row["rounds"]) == 1
    for used in (row["before"], *row["rounds"]):
        assert used["processor_seconds"] > 0
        assert "megabytes_read" in used


def test_a_curve_and_plain_loops_are_the_same_in_miniature(script, load, tmp_path, monkeypatch):
    bench = load("bench_engine_gpu")
    setting = replace(bench.SETTINGS["alexnet"], num_train=4000, num_test=40)
    images = bench.Data.random(setting, torch.device("cpu"))
    monkeypatch.setattr(bench.Data, "cifar10", lambda _: images)
    monkeypatch.setattr(bench, "PAPER", bench._tiny(setting).training)
    found = {}
    for what in ("curve", "plain"):
        target = tmp_path / f"{what}.json"
        words = f"--device cpu --rounds 2 --seeds 0 1 --precision float32 -o {target}"
        script("bench_engine_gpu", f"{what} {words}")
        found[what] = json.loads(target.read_text())["rows"]
    curve = [row["accuracy"] for row in found["curve"]]
    plain = {(row["round"], row["seed"]): row["accuracy"] for row in found["plain"]}
    assert curve == [[plain[number, seed] for seed in (0, 1)] for number in (1, 2)]


def test_memory_is_measured(script, capsys):
    script("bench_rules", "--memory median random 5 100000 cpu")
    assert 0 <= float(capsys.readouterr().out) < 20


def test_the_steps_of_the_cost_are_put_back_and_add_up(load):
    bench = load("bench_cost")
    before = [owner.__dict__[name] for owner, name in bench.STEPS.values()]
    sizes = {"clients": 6, "dim": 3000, "groups": 30}
    found = bench.measure("multi-krum", **sizes, device=torch.device("cpu"), repeats=1)
    assert [owner.__dict__[name] for owner, name in bench.STEPS.values()] == before
    steps = sum(found[name] for name in (*bench.STEPS, "rest"))
    assert steps >= 0.99 * found["gas"] > 0
    assert all(found[name] > 0 for name in bench.STEPS)


def test_the_page_on_cost_has_the_tables_of_its_result_files(load):
    bench = load("bench_cost")
    page = (FOLDER.parent / "study" / "results" / "cost.md").read_text()
    files = sorted((FOLDER / "results").glob("*-cost-*.json"))
    assert files
    for path in files:
        assert path.name in page
        assert bench.tables(json.loads(path.read_text())) in page


def test_the_parts_of_a_round_are_timed(script, load, tmp_path, monkeypatch, capsys):
    parts = load("round_parts")
    # The script replaces these for good.
    for name in parts.PARTS:
        monkeypatch.setattr(parts.rounds, name, getattr(parts.rounds, name))
    monkeypatch.setattr(parts.aggregate_step, "ask_rule", parts.aggregate_step.ask_rule)
    for trainer in (parts.SequentialTrainer, parts.StackedTrainer):
        monkeypatch.setattr(trainer, "evaluate", trainer.evaluate)
    suite = own_suite(tmp_path, ["median"])
    assert script("round_parts", f"{suite} --rounds 3 --device cpu") == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines if line.endswith("times")} >= set(parts.PARTS)


def test_more_runs_than_fit_are_simulated(script, capsys):
    script("too_many_runs", "--device cpu --runs 2 --clients 6 --samples 2 --width 4 --rules mean")
    assert capsys.readouterr().out.startswith("2 runs ['finished']")


def test_a_rule_is_timed_beside_another_librarys(load):
    bench = load("bench_byzfl")
    library = SimpleNamespace(Average=lambda: lambda rows: rows.mean(dim=0))
    (pair,) = [each for each in bench.PAIRS if each.ours(10, 2) == "mean"]
    row = bench.measure(pair, library, torch.randn(10, 50), repeats=2, budget=0.1)
    assert row["largest_difference"] < bench.TOLERANCE
    assert row["rule"] in bench.line(row)
    row |= {"times_faster": 0.5}
    assert "slower than ByzFL: mean (n=10)" in bench.summary([row])


TINY_RACE = "--no-install --clients 5 --samples 100 --rounds 1 --repeats 1 --cores 1 --runs 2"


def in_process(race, monkeypatch):
    """Run contestants in this process: a new one takes seconds to import torch."""
    from race_work import run_contestant

    def execute(contestant, work, _python, _limit):
        return run_contestant(contestant.module, work)

    monkeypatch.setattr(race, "execute", execute)


def test_a_race_has_a_table_with_everyone(script, load, monkeypatch, tmp_path, capsys):
    race = load("race")
    in_process(race, monkeypatch)
    monkeypatch.setattr(race, "ENVIRONMENTS", tmp_path)
    absent = race.Contestant(module="absent", imports=("no_such_package",))
    monkeypatch.setitem(race.CONTESTANTS, "absent", absent)
    names = "outvote outvote-runs plain absent"
    assert script("race", f"{TINY_RACE} --contestants {names}") == 0
    result = json.loads(next(tmp_path.glob("20??-??-??-race-cpu.json")).read_text())
    rows = {row["contestant"]: row for row in result["rows"]}
    assert list(rows) == names.split()
    assert rows["absent"] == {"contestant": "absent", "reason": "not installed: no_such_package"}
    assert rows["outvote"]["samples_per_second"] > 0
    assert result["measured"][1]["federations"] == 2
    assert result["measured"][1]["samples"] == 200
    printed = capsys.readouterr().out
    assert all(f"| {name}" in printed for name in names.split())


def test_plain_loops_and_the_library_train_alike(load):
    work = load("race_work").Work(samples=2000, clients=5, assumed_byzantine=1, rounds=2)
    found = {
        name: load("race_work").run_contestant(name, work)
        for name in ("race_outvote", "race_plain")
    }
    assert all(len(each["seconds"]) == 2 for each in found.values())
    reached = [each["accuracy"] for each in found.values()]
    assert min(reached) > 0.5
    assert abs(reached[0] - reached[1]) < 0.1


def test_flowers_client_and_strategy_make_a_round(load):
    race_work, flower = load("race_work"), load("race_flower")
    work = race_work.Work(samples=500, clients=5, assumed_byzantine=1)
    model = flower.ArrayRecord(work.network().state_dict())

    def reply(message):
        number = message.metadata.dst_node_id - 100
        return flower.train_client(message, SimpleNamespace(node_config={"partition-id": number}))

    grid, strategy = HandMadeGrid(range(100, 105), reply), flower.strategy_of(work)
    config = flower.ConfigRecord({"work": race_work.write_work(work)})
    replies = grid.send_and_receive(strategy.configure_train(1, model, config, grid))
    after, _ = strategy.aggregate_train(1, replies)
    before = race_work.accuracy(work, work.network().state_dict())
    assert race_work.accuracy(work, after.to_torch_state_dict()) > before + 0.1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["byzfl", "flower", "pfl"])
def test_another_library_runs_the_race(name, load, tmp_path):
    race = load("race")
    try:
        python = race.find_python(name, is_installing=True)
    except race.CannotRunError as error:
        pytest.skip(str(error))
    words = f"--clients 5 --samples 1000 --rounds 1 --repeats 1 --cores 2 --contestants {name}"
    options = race.parse(words.split())
    for threads, processes in race.CONTESTANTS[name].ways(2, "cpu"):
        work = replace(race.work_of(options), threads=threads, processes=processes)
        try:
            found = race.execute(race.CONTESTANTS[name], work, python, 240)
        except race.CannotRunError as error:
            if "namespace" in str(error):
                pytest.skip(str(error))
            raise
        assert found["accuracy"] > 0.3
        assert found["samples"] == 1000


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        "bench_byzfl.py --dim 2000 --clients 10 --repeats 1 --seconds 0.1",
        "bench_engine.py --repeats 1",
    ],
)
def test_a_script_runs_with_byzfl(words, tmp_path):
    target = tmp_path / "result.json"
    name, *others = words.split()
    command = [sys.executable, str(FOLDER / name), *others, "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    if "could not be installed" in done.stdout:
        pytest.skip(done.stdout.splitlines()[0])
    assert json.loads(target.read_text())["rows"]
