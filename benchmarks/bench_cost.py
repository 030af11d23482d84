"""How the cost of GAS grows with clients, coordinates and groups, and which step takes it.

python benchmarks/bench_cost.py                       one thread of a CPU, processor time
python benchmarks/bench_cost.py --device cuda -o benchmarks/results/cost-gpu.json
python benchmarks/bench_cost.py --tables benchmarks/results/2026-11-16-cost-cpu.json

Slopes are those of a line through log(time) by log(size): 1 is linear, 2 quadratic, 0 constant. On
a CPU times are processor time of one thread, which a busy machine disturbs less than a clock; on a
GPU, which is waited for after every step, they are that of a clock.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from timing import circumstances, write_json

import outvote as ov
from outvote.rules import gas
from outvote.rules.client_matrix import ClientMatrix
from outvote.rules.groups import Groups

RULES = ("multi-krum", "bulyan", "median", "rfa", "dnc", "trimmed-mean")
AXES = {"clients": "n", "dim": "d", "groups": "p"}
STEPS: dict[str, tuple[Any, str]] = {
    "split": (Groups, "of"),
    "base rule": (gas, "compute_weighted"),
    "scores": (ClientMatrix, "total_distances_to"),
    "average": (ClientMatrix, "vector"),
}
"""What the steps of the paper are in the code; values of groups are read by the first that asks."""


def main() -> None:
    """Measure, print tables, and write a result file where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 20, 40, 80])
    parser.add_argument("--dim", type=int, nargs="+", default=[50_000, 100_000, 200_000, 400_000])
    parser.add_argument("--groups", type=int, nargs="+", default=[10, 100, 1000, 10_000, 100_000])
    parser.add_argument("--middle", type=int, nargs=3, default=[20, 200_000, 1000])
    parser.add_argument("--rules", nargs="+", default=list(RULES))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tables", type=Path, help="print the tables of a result file, and end")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    if options.tables:
        print(tables(json.loads(options.tables.read_text())))
        return
    device = torch.device(options.device)
    if device.type == "cpu":
        torch.set_num_threads(1)
    middle = dict(zip(AXES, options.middle, strict=True))
    rows = []
    for rule in options.rules:
        for axis in AXES:
            values = getattr(options, axis)
            sizes = [{**middle, axis: value} for value in values]
            found = [
                measure(rule, device=device, repeats=options.repeats, **each) for each in sizes
            ]
            rows.append({"rule": rule, "axis": axis, "values": values, "milliseconds": found})
    content: dict[str, Any] = {
        "circumstances": {**circumstances(device), "time": kind_of_time(device)},
        "middle": middle,
        "rows": rows,
    }
    print(content["circumstances"])
    print(tables(content))
    if options.output:
        write_json(options.output, content)


def kind_of_time(device: torch.device) -> str:
    """Return which time is measured."""
    return "processor time, one thread" if device.type == "cpu" else "clock, after every step"


def measure(
    rule: str, *, clients: int, dim: int, groups: int, device: torch.device, repeats: int
) -> dict[str, float]:
    """Return the milliseconds of GAS around a rule, of its steps and of the rule alone."""
    generator = torch.Generator(device).manual_seed(0)
    gradients = torch.randn(clients, dim, generator=generator, device=device)
    alone, gas = ov.make_rule(rule), ov.make_rule(f"gas({rule}, num_groups={groups})")
    f = clients // 5
    calls = {
        "rule alone": lambda: alone(
            gradients, num_byzantine=min(f, alone.max_byzantine(clients)), seed=0
        ),
        "gas": lambda: gas(gradients, num_byzantine=f, seed=0),
    }
    times: dict[str, list[float]] = {}
    for name, call in calls.items():
        call()
        for _ in range(repeats):
            with step_times(device) as steps:
                seconds = timed(call, device)
            own = {name: seconds} | (_with_rest(steps, seconds) if name == "gas" else {})
            for key, value in own.items():
                times.setdefault(key, []).append(value)
    return {key: round(1e3 * median(own), 3) for key, own in times.items()}


def _with_rest(steps: dict[str, float], seconds: float) -> dict[str, float]:
    """Add what belongs to no step: norms, checks, and the sum over the groups."""
    return {**steps, "rest": max(0.0, seconds - sum(steps.values()))}


def timed(call: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of one call."""
    start = _now(device)
    call()
    return _now(device) - start


def _now(device: torch.device) -> float:
    if device.type == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


@contextmanager
def step_times(device: torch.device) -> Iterator[dict[str, float]]:
    """Measure the steps of all calls inside; a step within another counts for the outer one."""
    found = dict.fromkeys(STEPS, 0.0)
    is_inside = False

    def wrapped(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            nonlocal is_inside
            if is_inside:
                return plain(*given, **named)
            is_inside, start = True, _now(device)
            try:
                return plain(*given, **named)
            finally:
                is_inside = False
                found[name] += _now(device) - start

        return call

    kept = {}
    for name, (owner, attribute) in STEPS.items():
        kept[name] = owner.__dict__[attribute]
        is_of_class = isinstance(kept[name], classmethod)
        new = wrapped(name, kept[name].__func__ if is_of_class else kept[name])
        setattr(owner, attribute, classmethod(new) if is_of_class else new)
    try:
        yield found
    finally:
        for name, (owner, attribute) in STEPS.items():
            setattr(owner, attribute, kept[name])


def slope(sizes: Sequence[float], times: Sequence[float]) -> float:
    """Return the slope of the line through log(time) by log(size)."""
    x, y = np.log(np.asarray(sizes, float)), np.log(np.maximum(np.asarray(times, float), 1e-6))
    return float(np.polyfit(x, y, 1)[0]) if len(sizes) > 1 else 0.0


def tables(content: dict[str, Any]) -> str:
    """Return the tables of a result file: slopes, times by p, and steps at the middle sizes."""
    middle, by_rule = content["middle"], {}
    for row in content["rows"]:
        by_rule.setdefault(row["rule"], {})[row["axis"]] = row
    heads = [f"slope in {letter}" for letter in AXES.values()]
    lines = [
        ["rule inside", *heads, *(f"rule alone, {head}" for head in heads[:2])],
        ["---", *("---:" for _ in range(5))],
    ]
    for rule, axes in by_rule.items():
        own = [_slope_of(axes[axis], "gas") for axis in AXES]
        lines.append(
            [rule, *own, *(_slope_of(axes[axis], "rule alone") for axis in list(AXES)[:2])]
        )
    names = ["gas", *STEPS, "rest", "rule alone"]
    sizes = f"n = {middle['clients']}, d = {middle['dim']:,}, p = {middle['groups']:,}"
    steps = [[f"milliseconds, {sizes}", *names], ["---", *("---:" for _ in names)]]
    for rule, axes in by_rule.items():
        row = axes["groups"]
        if middle["groups"] in row["values"]:
            found = row["milliseconds"][row["values"].index(middle["groups"])]
            steps.append([rule, *(f"{found[name]:.1f}" for name in names)])
    values = next(iter(by_rule.values()))["groups"]["values"]
    by_p = [["milliseconds of gas", *(f"p = {each:,}" for each in values)]]
    by_p.append(["---", *("---:" for _ in values)])
    for rule, axes in by_rule.items():
        by_p.append([rule, *(f"{each['gas']:.1f}" for each in axes["groups"]["milliseconds"])])
    return "\n\n".join(_markdown(each) for each in (lines, by_p, steps))


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _slope_of(row: dict[str, Any], name: str) -> str:
    return f"{slope(row['values'], [each[name] for each in row['milliseconds']]):.2f}"


if __name__ == "__main__":
    main()
