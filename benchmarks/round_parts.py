"""Where the time of a round goes: any suite, a few rounds, the parts of a round one by one.

python benchmarks/round_parts.py smoke --rounds 5
python benchmarks/round_parts.py table1-cifar100 --part main --attack lie --device cuda

What follows the suite goes to `outvote bench`. Medians over the rounds after the first two, in
which kernels are compiled; a GPU is waited for after every part, so the sum is more than a round
takes. Each stack of runs has its own first rounds: run one stack at a time.
"""

import argparse
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from outvote.cli import main as outvote
from outvote.engine import aggregate_step
from outvote.engine import round as rounds
from outvote.training.sequential import SequentialTrainer
from outvote.training.stacked_trainer import StackedTrainer

PARTS = ("sample_participants", "local_updates", "attack", "aggregate", "apply_update", "record")
NUM_FIRST = 2
Times = dict[str, list[float]]


def main() -> int:
    """Run the rounds and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("suite")
    parser.add_argument("--rounds", type=int, default=10)
    options, others = parser.parse_known_args()
    times: Times = defaultdict(list)
    for name in PARTS:
        _time(rounds, name, times, lambda _, name=name: name)
    rule_label = lambda given: f"  apply {given[0].runs[given[4][0]].rule}"  # noqa: E731
    _time(aggregate_step, "ask_rule", times, rule_label)
    for trainer in (SequentialTrainer, StackedTrainer):
        _time(trainer, "evaluate", times, lambda _: "  evaluate")
    with tempfile.TemporaryDirectory() as folder:
        words = ["bench", options.suite, "--seeds", "1", "--no-weights", "-o", folder]
        code = outvote([*words, "--set", f"rounds={options.rounds}", *others])
    for name in sorted(times, key=_rank):
        late = times[name][_num_skipped(times, name) :]
        if late:
            print(f"{name:60} {1000 * median(late):9.2f} ms   {len(late):4} times")
    return int(code or 0)


def _time(owner: Any, name: str, times: Times, label: Callable[[tuple[Any, ...]], str]) -> None:
    """Measure how long a function takes."""
    plain = getattr(owner, name)

    def timed(*given: Any, **named: Any) -> Any:
        start = _now()
        found = plain(*given, **named)
        times[label(given)].append(_now() - start)
        return found

    setattr(owner, name, timed)


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def _num_skipped(times: Times, name: str) -> int:
    """Return how many calls belong to the first rounds."""
    return NUM_FIRST * len(times[name]) // max(1, len(times["local_updates"]))


def _rank(name: str) -> tuple[int, str]:
    """Order the parts of a part below it."""
    above = {"  apply": "aggregate", "  evaluate": "record"}
    part = next((above[start] for start in above if name.startswith(start)), name)
    return PARTS.index(part), name.strip() if name != part else ""


if __name__ == "__main__":
    sys.exit(main())
