"""A sweep of several processes is killed, or meets another one, and nothing is lost or doubled.

The fast tests have each of it alone: test_kill.py kills and stops one process, in
test_bench_parallel.py some of several processes are killed, and test_runner.py has a run that
another process works on.
"""

import json
import random
import signal
import time

import pytest
import torch

from benches import (
    SLOW,
    children,
    is_running,
    metrics,
    outcomes,
    own_rule,
    own_suite,
    start,
    wait_for_rounds,
)
from outvote.cli import main

pytestmark = pytest.mark.slow
ROUNDS = 6
NUM_RUNS = 8
BY_TWO = ("-j", "2", "--checkpoint-every", "0")


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    folder = tmp_path_factory.mktemp("slow")
    rules = [own_rule(folder, SLOW), "centered-clipping"]
    return own_suite(folder, rules, ROUNDS, name="slow")


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """All processes have one thread, as those of -j have on two cores: so last bits agree."""
    before = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        torch.set_num_threads(1)
        yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def undisturbed(suite):
    finish(suite, suite.parent / "whole")
    return metrics(suite.parent / "whole")


def finish(suite, output):
    """Execute the rest, in this process: starting others takes longer than the runs."""
    assert main(["bench", str(suite), "--device", "cpu", "-o", str(output)]) == 0


def assert_whole(output, undisturbed):
    """Every run is there once, finished, with every round once."""
    assert len(undisturbed) == NUM_RUNS
    assert {text.count(b"\n") for text in undisturbed.values()} == {ROUNDS}
    assert metrics(output) == undisturbed
    assert outcomes(output) == {"finished": NUM_RUNS}


def wait_until(is_so, seconds=30):
    last = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < last, "processes outlive the one that started them"
        time.sleep(0.01)


@pytest.mark.parametrize("num_kills", [1, 20])
def test_a_sweep_killed_at_random_moments_ends_as_if_it_never_was(
    suite, tmp_path, undisturbed, num_kills
):
    seed = random.SystemRandom().randrange(10**6)
    chance = random.Random(seed)
    # One kill alone must not come after the end.
    most = NUM_RUNS * ROUNDS // (2 if num_kills == 1 else 1)
    targets = sorted(chance.choices(range(1, most - 6), k=num_kills))
    num_killed = 0
    for target in targets:
        process = start(suite, tmp_path, *BY_TWO)
        wait_for_rounds(process, tmp_path, target)
        time.sleep(chance.uniform(0, 0.2))
        found = children(process)
        process.kill()
        process.communicate(timeout=60)
        num_killed += process.returncode == -signal.SIGKILL
        wait_until(lambda pids=found: not any(map(is_running, pids)))
    assert num_killed > 0, (seed, targets)
    finish(suite, tmp_path)
    assert_whole(tmp_path, undisturbed)


def test_a_signal_lets_all_processes_save_and_the_sweep_resumes(suite, tmp_path, undisturbed):
    process = start(suite, tmp_path, "-j", "2", "--checkpoint-every", "1000")
    wait_for_rounds(process, tmp_path, 3)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, err
    assert "stopped and saved; to resume: outvote bench" in err
    assert "runs are over" in out
    states = [json.loads(path.read_text()) for path in tmp_path.glob("*/*/status.json")]
    assert {state["outcome"] for state in states} <= {"interrupted", "finished"}
    assert not list(tmp_path.glob(".stop-*"))
    # All rounds are saved: none is repeated.
    finish(suite, tmp_path)
    assert_whole(tmp_path, undisturbed)
    for path in tmp_path.glob("*/*/timings.jsonl"):
        assert path.read_bytes().count(b"\n") == ROUNDS


def test_two_sweeps_at_once_share_the_runs_and_none_is_executed_twice(suite, tmp_path, undisturbed):
    words = ("--no-weights", "--max-stacked", "1")  # Run by run, so that both find some taken.
    for process in [start(suite, tmp_path, *words), start(suite, tmp_path, *words)]:
        _, err = process.communicate(timeout=300)
        # One that found some runs taken prints it.
        assert process.returncode == 0 or "another process works on" in err
    assert_whole(tmp_path, undisturbed)
    for path in tmp_path.glob("*/*/timings.jsonl"):
        assert path.read_bytes().count(b"\n") == ROUNDS
