"""One bad reply among eleven: what Flower's own strategies make of it, and what ours does.

python benchmarks/flower_bad_replies.py
python benchmarks/flower_bad_replies.py -o benchmarks/results/flower-bad-replies.json

Honest nodes send numbers near 1. A cell shows how far from 1 the new model is at most, or what was
raised: that stops the whole federation. The replies are those of the contract tests.
"""

import argparse
import logging
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timing import circumstances, write_json

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from flwr.app import Message
from flwr.app.exception import AppExitException
from flwr.serverapp.strategy import (
    Bulyan,
    FedAvg,
    FedMedian,
    FedTrimmedAvg,
    Krum,
    MultiKrum,
    Strategy,
)

from bad_replies import BAD, HandMadeGrid, arrays_of, record_of, respond_with, run_round
from outvote.flower import RobustStrategy
from outvote.results.audit_log import read_audit

NUM_NODES, NUM_BYZANTINE = 11, 2
# The one that Krum chooses while it is honest: an attacker would be that one.
BAD_NODE = 105
MODEL = {"w": np.zeros((50, 40), np.float32), "b": np.zeros(40, np.float32)}
FLOWER: dict[str, Callable[[], Strategy]] = {
    "FedAvg": FedAvg,
    "Krum": lambda: Krum(num_malicious_nodes=NUM_BYZANTINE),
    "MultiKrum": lambda: MultiKrum(
        num_malicious_nodes=NUM_BYZANTINE, num_nodes_to_select=NUM_NODES - NUM_BYZANTINE
    ),
    "Bulyan": lambda: Bulyan(num_malicious_nodes=NUM_BYZANTINE),
    "FedMedian": FedMedian,
    "FedTrimmedAvg": FedTrimmedAvg,
}
OURS = ("krum", "multi-krum", "bulyan", "median", "trimmed-mean", "gas(multi-krum)")


class EagerBadNode(HandMadeGrid):
    """The bad reply comes first: who arrives when is not for the server to choose."""

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Ask the bad node before all others."""
        order = sorted(messages, key=lambda each: each.metadata.dst_node_id != BAD_NODE)
        return super().send_and_receive(order, timeout=timeout)


def main() -> int:
    """Run every round, print one table; write it as JSON where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kinds", nargs="+", choices=list(BAD), default=list(BAD))
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    conditions = circumstances(torch.device("cpu")) | {"flwr": version("flwr")}
    conditions |= {"nodes": NUM_NODES, "num_byzantine": NUM_BYZANTINE}
    print(conditions)
    columns = [*FLOWER, *(f"outvote {rule}" for rule in OURS)]
    print(" ".join([f"{'':12}", *(f"{name:>26}" for name in columns), "in the log"]))
    rows = []
    for kind in options.kinds:
        row = measure(kind)
        rows.append(row)
        cells = [row["flower"][name] for name in FLOWER] + [row["outvote"][name] for name in OURS]
        print(f"{kind:12}", *(f"{cell:>26}" for cell in cells), row["logged"], flush=True)
    if options.output:
        write_json(options.output, {"circumstances": conditions, "rows": rows})
    return 0


def measure(kind: str) -> dict[str, Any]:
    """Show one kind of bad reply to all strategies."""
    flower = {name: outcome(make(), kind) for name, make in FLOWER.items()}
    ours, logged = {}, ""
    for rule in OURS:
        with tempfile.TemporaryDirectory() as folder:
            strategy = RobustStrategy(rule, num_byzantine=NUM_BYZANTINE, audit_dir=folder, seed=0)
            ours[rule] = outcome(strategy, kind)
            strategy.close()
            (log,) = read_audit(Path(folder))
        (bad,) = [each for each in log.clients if each.client == str(BAD_NODE)]
        logged = f"{bad.standing}: {bad.reason or 'nothing odd'}"
    return {"kind": kind, "flower": flower, "outvote": ours, "logged": logged}


def outcome(strategy: Strategy, kind: str) -> str:
    """Run one round and return its outcome."""
    grid = EagerBadNode(range(100, 100 + NUM_NODES), respond_with(kind, [BAD_NODE]))
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            model, _ = run_round(strategy, grid, record_of(MODEL))
    except (AppExitException, TypeError, ValueError) as error:
        return type(error).__name__
    if model is None:
        return "model kept"
    arrays = arrays_of(model)
    farthest = max(float(np.abs(array - 1).max()) for array in arrays.values())
    changed = {str(array.dtype) for array in arrays.values()} - {"float32"}
    return " ".join([f"{farthest:.3g}", *sorted(changed)])


if __name__ == "__main__":
    sys.exit(main())
