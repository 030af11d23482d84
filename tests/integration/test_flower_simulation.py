"""The example in Flower's simulation, beside the same federation in outvote's own engine."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from statistics import mean

import pytest

from outvote.cli import main
from outvote.results.audit_log import read_audit
from outvote.seeding import RandomStream

SIMULATION = Path(__file__).parents[1] / "flower_simulation.py"
PYTHON = os.environ.get("OUTVOTE_FLOWER_PYTHON", sys.executable)
"""A Python with outvote and `flwr[simulation]`: Ray is too heavy for the development extra."""
ALONE = ["unshare", "-rn", "--pid", "--fork", "--kill-child", "--mount-proc"]
"""A network without anybody else: Ray listens on every interface. Whoever is left is ended."""
NUM_NODES, NUM_BYZANTINE, NUM_ROUNDS, LAST = 20, 4, 30, 5
RULE, ATTACK, BETA = "gas(multi-krum)", "label-flip", 0.5


@pytest.fixture
def _simulator():
    """Skip unless Ray is there, and may be shut into a network of its own."""
    for command in ([PYTHON, "-c", "import ray"], [*ALONE, "ip", "link"]):
        try:
            subprocess.run(command, capture_output=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            pytest.skip(
                "needs flwr[simulation], perhaps in the Python that OUTVOTE_FLOWER_PYTHON names, "
                f"and a network namespace; this failed: {' '.join(command)}"
            )


def simulate_with_flower(folder):
    settings = {
        "num-rounds": NUM_ROUNDS,
        "rule": RULE,
        "num-byzantine": NUM_BYZANTINE,
        "attack": ATTACK,
        "num-attackers": NUM_BYZANTINE,
        "min-nodes": NUM_NODES,
        "fraction-evaluate": 0.0,
        "beta": BETA,
        "seed": RandomStream((0,))
        .fold_in("partition")
        .derived()[0],  # as the engine's run with seed 0
    }
    done = subprocess.run(
        [*ALONE, PYTHON, SIMULATION, folder, str(NUM_NODES), json.dumps(settings)],
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    return [float(found) for found in re.findall(r"'accuracy': ([0-9.]+)", done.stdout)]


def simulate_with_the_engine(folder):
    config = folder / "same.toml"
    config.write_text(f"""
rule = "{RULE}"
attack = "{ATTACK}"
rounds = {NUM_ROUNDS}
data.beta = {BETA}
federation = {{ num_clients = {NUM_NODES}, byzantine = {NUM_BYZANTINE} }}
model.name = "mlp"
""")
    assert main(["run", str(config), "--device", "cpu", "--output", str(folder / "runs")]) == 0
    (metrics,) = (folder / "runs").glob("*/*/metrics.jsonl")
    return [json.loads(line)["accuracy"] for line in metrics.read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.usefixtures("_simulator")
def test_twenty_virtual_nodes_reach_the_accuracy_of_the_engine(tmp_path):
    (tmp_path / "flower").mkdir()
    theirs = simulate_with_flower(tmp_path / "flower")
    ours = simulate_with_the_engine(tmp_path)
    entries = read_audit(tmp_path / "flower" / "audit")
    assert [each.round for each in entries] == [*range(1, NUM_ROUNDS + 1)]
    assert all(len(each.clients) == NUM_NODES and each.is_updated for each in entries)
    assert abs(mean(theirs[-LAST:]) - mean(ours[-LAST:])) < 0.02
    assert min(mean(theirs[-LAST:]), mean(ours[-LAST:])) > 0.7
