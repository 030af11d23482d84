"""Time in the strategy per round: ours, checks included, beside Flower's own on the same replies.

python benchmarks/bench_flower.py
python benchmarks/bench_flower.py --repeats 9 -o benchmarks/results/flower-overhead.json

A round is configure_train and aggregate_train; sending and training are not counted. Ours is timed
with and without the log and the checkpoint (written and synced to the disk in every round).
"""

import argparse
import logging
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from timing import circumstances, write_json

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import (
    Bulyan,
    FedAvg,
    FedMedian,
    FedTrimmedAvg,
    Krum,
    MultiKrum,
    Strategy,
)

from bad_replies import HandMadeGrid, record_of
from outvote.flower import RobustStrategy

ROWS = {"a": (500,), "b": (400,), "c": (99,), "d": ()}
# Flower's, and the rule of ours that does the same.
PAIRS: dict[str, tuple[Callable[[int, int], Strategy] | None, str]] = {
    "FedAvg": (lambda _n, _f: FedAvg(), "mean"),
    "Krum": (lambda _n, f: Krum(num_malicious_nodes=f), "krum"),
    "MultiKrum": (
        lambda n, f: MultiKrum(num_malicious_nodes=f, num_nodes_to_select=n - f),
        "multi-krum",
    ),
    "Bulyan": (lambda _n, f: Bulyan(num_malicious_nodes=f), "bulyan"),
    "FedMedian": (lambda _n, _f: FedMedian(), "median"),
    "FedTrimmedAvg": (lambda n, f: FedTrimmedAvg(beta=f / n), "trimmed-mean"),
    "-": (None, "gas(multi-krum)"),
}


def main() -> int:
    """Measure in turn, print one table; write it as JSON where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--byzantine", type=int, default=4)
    parser.add_argument("--width", type=int, default=1000, help="numbers: 1,000 times as many")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    sizes = {"nodes": options.nodes, "num_byzantine": options.byzantine}
    sizes |= {"dim": 1000 * options.width}
    conditions = circumstances(torch.device("cpu")) | {"flwr": version("flwr"), **sizes}
    print(conditions)
    block = f"{'Flower':>9} {'ours':>9} {'with log':>9} {'ratio':>7}"
    print(f"{'ms':31} {'median':37} {'fastest':37} least cpu")
    print(f"{'Flower':14} {'ours':16} {block} {block} {block}")
    federation = Federation(options.nodes, options.width)
    rows = []
    for name in PAIRS:
        row = measure(federation, name, options.byzantine, options.repeats)
        rows.append(row)
        print(line(row), flush=True)
    if options.output:
        write_json(options.output, {"circumstances": conditions, "rows": rows})
    return 0


class Federation:
    """A model, and replies to it that are made before the clock runs."""

    def __init__(self, num_nodes: int, width: int) -> None:
        """Draw the model and one reply per node."""
        shapes = {name: (*rows, width) for name, rows in ROWS.items()}
        draw = np.random.default_rng(0)
        base = {name: draw.normal(0, 0.05, shape) for name, shape in shapes.items()}
        self.model = record_of({name: array.astype(np.float32) for name, array in base.items()})
        self.sent = [
            record_of(
                {
                    name: (array + draw.normal(0, 0.01, array.shape)).astype(np.float32)
                    for name, array in base.items()
                }
            )
            for _ in range(num_nodes)
        ]
        self.grid = HandMadeGrid(range(100, 100 + num_nodes), self.reply)

    def reply(self, message: Message) -> Message:
        """Aggregation as node 100, 101, ... does; some strategies empty what they are given."""
        record = ArrayRecord(dict(self.sent[message.metadata.dst_node_id - 100]))
        metrics = MetricRecord({"num-examples": 10, "loss": 1.0})
        return Message(RecordDict({"arrays": record, "metrics": metrics}), reply_to=message)

    def seconds(self, strategy: Strategy) -> np.ndarray:
        """Run a round; return the time inside the strategy, by the clock and of all cores."""
        start = now()
        messages = strategy.configure_train(1, self.model, ConfigRecord(), self.grid)
        middle = now()
        replies = self.grid.send_and_receive(messages)
        again = now()
        model, _ = strategy.aggregate_train(1, replies)
        end = now()
        if model is None:
            raise RuntimeError(f"{strategy} kept the model: nothing was measured")
        return (middle - start) + (end - again)


def now() -> np.ndarray:
    """Return the time by the clock, and the time that this process has used on all cores."""
    return np.array([time.perf_counter(), time.process_time()])


def measure(federation: Federation, name: str, num_byzantine: int, repeats: int) -> dict[str, Any]:
    """Time Flower's strategy, ours, and ours with its folder, in turn; the first turn is not."""
    make, rule = PAIRS[name]
    num_nodes = len(federation.sent)
    assumed = 0 if rule == "mean" else num_byzantine
    times: dict[str, list[np.ndarray]] = {"flower": [], "outvote": [], "outvote with log": []}
    for _ in range(repeats + 1):
        if make is not None:
            times["flower"].append(federation.seconds(make(num_nodes, num_byzantine)))
        bare = RobustStrategy(rule, num_byzantine=assumed, audit_dir=None)
        times["outvote"].append(federation.seconds(bare))
        with tempfile.TemporaryDirectory() as folder:
            logging_ = RobustStrategy(rule, num_byzantine=assumed, audit_dir=folder)
            times["outvote with log"].append(federation.seconds(logging_))
            logging_.close()
    counted = {key: np.array(values[1:]) * 1e3 for key, values in times.items() if values}
    return {
        "flower": name,
        "rule": rule,
        "repeats": repeats,
        "milliseconds": {key: round(median(each[:, 0]), 1) for key, each in counted.items()},
        "fastest": {key: round(each[:, 0].min(), 1) for key, each in counted.items()},
        "least cpu": {key: round(each[:, 1].min(), 1) for key, each in counted.items()},
    }


def line(row: dict[str, Any]) -> str:
    """Return a row of the table."""
    cells = []
    for kind in ("milliseconds", "fastest", "least cpu"):
        found = row[kind]
        flower, ours = found.get("flower"), found["outvote"]
        cells.append(f"{flower:9.1f}" if flower else " " * 9)
        cells.append(f"{ours:9.1f} {found['outvote with log']:9.1f}")
        cells.append(f"{ours / flower:6.2f}x" if flower else " " * 7)
    return f"{row['flower']:14} {row['rule']:16} {' '.join(cells)}"


if __name__ == "__main__":
    sys.exit(main())
