"""The program is killed, and goes on as if nothing had happened."""

import random
import signal
import subprocess
import sys
import time

import pytest

from outvote.cli import main
from simulations import results

MAIN = "import sys; from outvote.cli import main; sys.exit(main())"
ROUNDS = 8
# The rule sleeps, so that the program can be hit in any round.
CONFIG = """
rule = ["{rule}", "centered-clipping"]
attack = ["lie", "mimic(client=none)"]
rounds = {rounds}
data.partition = "iid"
federation = {{ num_clients = 10, sampled = 5 }}
model.name = "mlp"
training = {{ num_steps = 2, batch_size = 16 }}
server.momentum = 0.5
"""
SLOW = """
import time
import outvote
class Slow(outvote.VectorRule):
    def max_byzantine(self, num_clients):
        return num_clients - 1
    def aggregate(self, rows, num_byzantine):
        time.sleep(0.05)
        return rows.mean(dim=0)
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("slow")
    (folder / "slow.py").write_text(SLOW)
    path = folder / "slow.toml"
    path.write_text(CONFIG.format(rule=f"{folder / 'slow.py'}:Slow", rounds=ROUNDS))
    return path


@pytest.fixture(scope="module")
def undisturbed(config):
    finish(config, config.parent / "whole")
    return results(config.parent / "whole")


def finish(config, output):
    assert main(["run", str(config), "--device", "cpu", "--output", str(output)]) == 0


def start(config, output, *words):
    command = [sys.executable, "-c", MAIN, "run", config, "--device", "cpu"]
    return subprocess.Popen(
        [*map(str, command), "--output", str(output), "--checkpoint-every", "0", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def num_rounds(output):
    files = list(output.glob("*/*/metrics.jsonl"))
    return max((path.read_bytes().count(b"\n") for path in files), default=0)


def wait_for_round(process, output, number):
    while num_rounds(output) < number and process.poll() is None:
        time.sleep(0.002)


def kill_at(config, output, targets, chance):
    """Kill the program at some rounds, one after the other, and let it end."""
    num_killed = 0
    for target in targets:
        process = start(config, output)
        wait_for_round(process, output, target)
        time.sleep(chance.uniform(0, 0.15))
        process.kill()
        process.communicate(timeout=60)
        num_killed += process.returncode == -signal.SIGKILL
    finish(config, output)
    return num_killed


@pytest.mark.parametrize("num_kills", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_killed_at_random_rounds_it_ends_the_same_to_the_last_bit(
    config, tmp_path, undisturbed, num_kills
):
    seed = random.SystemRandom().randrange(10**6)
    chance = random.Random(seed)
    targets = sorted(chance.choices(range(1, ROUNDS - 1), k=num_kills))
    assert kill_at(config, tmp_path / "killed", targets, chance) > 0, (seed, targets)
    assert len(undisturbed) == 4
    assert results(tmp_path / "killed") == undisturbed, (seed, targets)
