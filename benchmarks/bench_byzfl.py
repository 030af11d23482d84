"""Our rules beside ByzFL's: time, in units of ``X.mean(0)`` too, and whether the results agree.

python benchmarks/bench_byzfl.py                    both on the CPU, in one process, in turn
python benchmarks/bench_byzfl.py --clients 5 --dim 100000 -o benchmarks/results/byzfl.json

The first call makes an environment for ByzFL under build/; without a network nothing is measured.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from byzfl_side import PAIRS, VERSION, Pair, is_inside, load_aggregators, make_environment, python
from timing import circumstances, write_json
from torch import Tensor

import outvote as ov

DIM = 2_472_266
TOLERANCE = 1e-5
HEAD = (
    f"{'':5} {'rule':61} {'outvote':>9} {'ByzFL':>10} {'ratio':>7} {'x mean':>7} {'x mean':>7}"
    f"   {'fastest of each':>19}   difference"
)


def main() -> int:
    """Enter ByzFL's environment, measure, print one table; write it as JSON where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dim", type=int, default=DIM)
    parser.add_argument("--clients", type=int, nargs="+", default=[50, 5])
    parser.add_argument("--repeats", type=int, default=5, help="at most; slow rules get fewer")
    parser.add_argument("--seconds", type=float, default=6, help="a rule's time for repeats")
    parser.add_argument("--only", default="", help="measure the rules whose text has this in it")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    if not is_inside():
        return enter()
    cpu = torch.device("cpu")
    conditions = circumstances(cpu) | {"byzfl": VERSION}
    print(conditions)
    print(HEAD, flush=True)
    byzfl = load_aggregators()
    rows = []
    for num_clients in options.clients:
        X = torch.randn(num_clients, options.dim, generator=torch.Generator().manual_seed(0))
        for pair in PAIRS:
            if num_clients <= pair.max_clients and options.only in pair.ours(num_clients, 1):
                row = measure(pair, byzfl, X, options.repeats, options.seconds)
                rows.append(row)
                print(line(row), flush=True)
    print(summary(rows))
    if options.output:
        write_json(options.output, {"circumstances": conditions, "rows": rows})
    return 0


def enter() -> int:
    """Run this script again where ByzFL is; say so if it cannot be had."""
    reason = make_environment()
    if reason is not None:
        print(f"byzfl {VERSION} could not be installed, nothing measured: {reason}")
        return 0
    return subprocess.run([python(), *sys.argv], check=False).returncode


def measure(pair: Pair, byzfl: Any, X: Tensor, repeats: int, budget: float) -> dict[str, Any]:
    """Measure one rule of ours, ByzFL's and the mean in turn, on the same gradients."""
    num_clients, num_byzantine = len(X), len(X) // 5
    if num_clients >= 10 and pair.dim_share > 1:
        X = X[:, : X.shape[1] // pair.dim_share].contiguous()
    text = pair.ours(num_clients, num_byzantine)
    rule = ov.make_rule(text)
    num_assumed = min(num_byzantine, rule.max_byzantine(num_clients))
    # The first calls are not timed; they set the number of repeats.
    start = time.perf_counter()
    X.mean(dim=0)
    ours = rule(X, num_byzantine=num_assumed)
    theirs = pair.theirs(byzfl, num_byzantine)(X.clone() if pair.changes_input else X)
    affordable = int(budget / (time.perf_counter() - start))
    compared: dict[str, Any] = {"largest_difference": difference(ours, theirs)}
    if pair.is_same and compared["largest_difference"] > TOLERANCE:
        # ByzFL keeps the float64 of numpy (not of torch): its float64 result shows which is off.
        exact = torch.from_numpy(pair.theirs(byzfl, num_byzantine)(X.double().numpy()))
        to_exact = {"outvote": difference(ours, exact), "byzfl": difference(theirs, exact)}
        compared["difference_to_byzfl_in_float64"] = to_exact
        del exact
    del ours, theirs
    seconds: dict[str, list[float]] = {"mean": [], "outvote": [], "byzfl": []}
    for _ in range(min(repeats, max(2, affordable))):
        seconds["mean"].append(timed(lambda X: X.mean(dim=0), X))
        seconds["outvote"].append(timed(lambda X: rule(X, num_byzantine=num_assumed), X))
        given = X.clone() if pair.changes_input else X
        seconds["byzfl"].append(timed(pair.theirs(byzfl, num_byzantine), given))
        del given
    middle = {name: median(values) for name, values in seconds.items()}
    return {
        "clients": num_clients,
        "num_byzantine": num_byzantine,
        "dim": X.shape[1],
        "rule": text,
        "repeats": len(seconds["mean"]),
        "milliseconds": {name: round(value * 1e3, 3) for name, value in middle.items()},
        "fastest": {name: round(min(values) * 1e3, 3) for name, values in seconds.items()},
        "times_faster": round(middle["byzfl"] / middle["outvote"], 2),
        "times_mean": {
            name: round(middle[name] / middle["mean"], 2) for name in ("outvote", "byzfl")
        },
        "same_definition": pair.is_same,
        **compared,
    }


def timed(job: Callable[[Tensor], object], X: Tensor) -> float:
    """Return the seconds that a job takes."""
    start = time.perf_counter()
    job(X)
    return time.perf_counter() - start


def difference(vector: Tensor, reference: Tensor) -> float:
    """Return the largest difference, relative to the largest value of the reference."""
    largest = (vector - reference).abs().max() / reference.abs().max()
    return float(f"{largest.item():.3g}")


def line(row: dict[str, Any]) -> str:
    """Return a row of the table."""
    milliseconds, fastest, times = row["milliseconds"], row["fastest"], row["times_mean"]
    verdict = f"{row['largest_difference']:.0e}"
    to_exact = row.get("difference_to_byzfl_in_float64")
    if to_exact:
        verdict += f" (to ByzFL in float64: {to_exact['outvote']:.0e}, {to_exact['byzfl']:.0e})"
    if not row["same_definition"]:
        verdict += ", not defined alike"
    smaller = "" if row["dim"] == DIM else f"  d={row['dim']}"
    return (
        f"n={row['clients']:<3} {row['rule']:61} {milliseconds['outvote']:9.1f} "
        f"{milliseconds['byzfl']:10.1f} {row['times_faster']:6.1f}x {times['outvote']:7.1f} "
        f"{times['byzfl']:7.1f}   {fastest['outvote']:8.1f} {fastest['byzfl']:10.1f}   "
        f"{verdict}{smaller}"
    )


def summary(rows: list[dict[str, Any]]) -> str:
    """Name the rules that are slower than ByzFL's, and those that differ and should not."""
    slower, different = [], []
    for row in rows:
        name = f"{row['rule']} (n={row['clients']})"
        if row["times_faster"] < 1:
            slower.append(name)
        to_exact = row.get("difference_to_byzfl_in_float64")
        if to_exact and to_exact["outvote"] > TOLERANCE:
            different.append(name)
    return (
        f"slower than ByzFL: {', '.join(slower) or 'none'}\n"
        f"farther than {TOLERANCE:.0e} from ByzFL, and from ByzFL in float64: "
        f"{', '.join(different) or 'none'}"
    )


if __name__ == "__main__":
    sys.exit(main())
