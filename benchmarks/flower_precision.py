"""How often Krum chooses a Byzantine node when updates are small: Flower's Krum, and ours.

python benchmarks/flower_precision.py
python benchmarks/flower_precision.py -o benchmarks/results/flower-precision.json

Flower measures distances between weights, ours between updates. In float32 the first drown when
updates are small, as they are late in training or with a small learning rate. The Byzantine updates
are three times as long as those of the others, so that exact distances never choose one.
"""

import argparse
import logging
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timing import circumstances, write_json

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from flwr.app import Message
from flwr.serverapp.strategy import Krum, Strategy

from bad_replies import HandMadeGrid, arrays_of, content_of, record_of, run_round
from outvote.flower import RobustStrategy

NUM_NODES, NUM_BYZANTINE = 20, 4
RATIOS = (1e-2, 1e-3, 1e-4, 1e-5)


def main() -> int:
    """Run all trials, print one table; write it as JSON where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--dim", type=int, default=100_000)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    sizes = {
        "nodes": NUM_NODES,
        "num_byzantine": NUM_BYZANTINE,
        "dim": options.dim,
        "trials": options.trials,
    }
    conditions = circumstances(torch.device("cpu")) | {"flwr": version("flwr"), **sizes}
    print(conditions)
    print(f"{'update / weight':>15} {'Flower':>7} {'ours':>7}   trials that chose a Byzantine node")
    rows = []
    for ratio in RATIOS:
        row = measure(ratio, options.trials, options.dim)
        rows.append(row)
        print(f"{ratio:15.0e} {row['flower']:7} {row['outvote']:7}", flush=True)
    if options.output:
        write_json(options.output, {"circumstances": conditions, "rows": rows})
    return 0


def measure(ratio: float, num_trials: int, dim: int) -> dict[str, Any]:
    """Count the trials in which a Byzantine node was chosen."""
    wrong = {"flower": 0, "outvote": 0}
    for trial in range(num_trials):
        draw = np.random.default_rng(trial)
        weights = draw.normal(size=dim).astype(np.float32)
        scales = np.where(np.arange(NUM_NODES) < NUM_BYZANTINE, 3 * ratio, ratio)
        sent = [(weights + draw.normal(0, scale, dim)).astype(np.float32) for scale in scales]
        theirs: Strategy = Krum(num_malicious_nodes=NUM_BYZANTINE)
        ours = RobustStrategy("krum", num_byzantine=NUM_BYZANTINE, audit_dir=None)
        wrong["flower"] += chosen(theirs, weights, sent) < NUM_BYZANTINE
        wrong["outvote"] += chosen(ours, weights, sent) < NUM_BYZANTINE
    return {"ratio": ratio, **wrong}


def chosen(strategy: Strategy, weights: np.ndarray, sent: list[np.ndarray]) -> int:
    """Run a round and return the node whose weights became the model."""

    def reply(message: Message) -> Message:
        return Message(
            content_of({"w": sent[message.metadata.dst_node_id - 100]}), reply_to=message
        )

    grid = HandMadeGrid(range(100, 100 + len(sent)), reply)
    model, _ = run_round(strategy, grid, record_of({"w": weights}))
    if model is None:
        raise RuntimeError(f"{strategy} kept the model: nothing was measured")
    found = arrays_of(model)["w"]
    return int(np.argmin([np.abs(each - found).max() for each in sent]))


if __name__ == "__main__":
    sys.exit(main())
