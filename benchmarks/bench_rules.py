"""How fast the rules are, in units of ``X.mean(0)``, and against a straightforward loop.

python benchmarks/bench_rules.py                    everything on the CPU
python benchmarks/bench_rules.py --device cuda -o benchmarks/results/rules-gpu.json
python benchmarks/bench_rules.py --device cuda --clients 200 --rules median "gas(dnc)"
python benchmarks/bench_rules.py --device cuda --large -o benchmarks/results/rules-large-gpu.json
"""

import argparse
import subprocess
import sys
from pathlib import Path

import torch
from straightforward import add_scores, gas_multi_krum
from timing import circumstances, medians, peak_extra_bytes, write_json
from torch import Tensor

import outvote as ov

DIM = 2_472_266
GAS_SPECS = (
    "gas(multi-krum, num_groups=1000)",
    "gas(multi-krum, num_groups=100000)",
    "gas(median, num_groups=1000)",
    "gas(rbtm, num_groups=1000)",
)
GPU_ONLY = ("gas(multi-krum, num_groups=1000000)",)
PLAIN_SPECS = ("median", "trimmed-mean", "meamed", "krum", "multi-krum", "rfa", "bulyan")
LARGE_SPECS = ("gas(multi-krum, num_groups=1000)", "gas(median, num_groups=1000)")
LARGE_CLIENTS, LARGE_DIM = 50, 100_000_000
LOOP_SAMPLE = 1500


def main() -> None:
    """Measure and print one table; write it as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dim", type=int, help=f"default: {DIM}, or with --large {LARGE_DIM}")
    parser.add_argument("--clients", type=int, nargs="+", help="default: 50 5, or with --large 50")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--only", default="", help="measure the rules whose text has this in it")
    parser.add_argument("--no-memory", action="store_true", help="do not measure memory")
    parser.add_argument("--rules", nargs="+", default=[], help="measure these rules, and no loop")
    parser.add_argument("--large", action="store_true", help="gas, and its passes one by one")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--memory", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory:
        spec, kind, num_clients, dim, on = options.memory
        print_memory(spec, kind, int(num_clients), int(dim), torch.device(on))
        return
    device = torch.device(options.device)
    options.dim = options.dim or (LARGE_DIM if options.large else DIM)
    options.clients = options.clients or ([LARGE_CLIENTS] if options.large else [50, 5])
    rows: list[dict[str, object]] = []
    print(circumstances(device))
    for num_clients in options.clients:
        if options.large:
            rows += measure_some(
                list(LARGE_SPECS), num_clients, options.dim, options.repeats, device
            )
            continue
        if options.rules:
            rows += measure_some(options.rules, num_clients, options.dim, options.repeats, device)
            continue
        rows += measure(num_clients, options, device)
    if options.output:
        write_json(options.output, {"circumstances": circumstances(device), "rows": rows})


def measure(num_clients: int, options: argparse.Namespace, device: torch.device) -> list[dict]:
    """Measure all rules for one number of clients."""
    dim, repeats, only = options.dim, options.repeats, options.only
    num_byzantine = num_clients // 5
    inputs = make_inputs(num_clients, num_byzantine, dim, device)
    X = inputs["random"]
    specs = GAS_SPECS + (GPU_ONLY if device.type == "cuda" else ()) + PLAIN_SPECS
    jobs = {("mean", "random"): lambda: X.mean(dim=0)}
    for kind, matrix in inputs.items():
        for spec in specs if kind == "random" else GAS_SPECS:
            rule = ov.make_rule(spec)
            num_assumed = min(num_byzantine, rule.max_byzantine(num_clients))
            jobs[spec, kind] = lambda rule=rule, m=matrix, f=num_assumed: rule(m, num_byzantine=f)
    loop = ("loop over 1000 groups", "random")
    if only:
        jobs = {key: job for key, job in jobs.items() if key[0] == "mean" or only in key[0]}
        return print_rows(medians(jobs, repeats, device), {}, num_clients, dim)
    jobs[loop] = lambda: gas_multi_krum(X, 1000, num_byzantine)
    seconds = medians(jobs, repeats, device)
    large = ("loop over 100000 groups (scaled from a sample)", "random")
    seconds[large] = loop_of_many(X, 100_000, num_byzantine, device)
    memory = {
        key: extra_memory(key[0], key[1], num_clients, dim, device)
        for key in jobs
        if key[0] in GAS_SPECS and not options.no_memory
    }
    rows = print_rows(seconds, memory, num_clients, dim)
    for groups, slow in ((1000, loop), (100_000, large)):
        fast = seconds[f"gas(multi-krum, num_groups={groups})", "random"]
        print(f"n={num_clients:<3} p={groups}: {seconds[slow] / fast:.1f} x faster than the loop")
    return rows


def measure_some(
    specs: list[str], num_clients: int, dim: int, repeats: int, device: torch.device
) -> list[dict]:
    """Measure some rules, on random gradients alone."""
    num_byzantine = num_clients // 5
    generator = torch.Generator(device).manual_seed(0)
    X = torch.randn(num_clients, dim, generator=generator, device=device)
    jobs = {("mean", "random"): lambda: X.mean(dim=0)}
    for spec in specs:
        rule = ov.make_rule(spec)
        num_assumed = min(num_byzantine, rule.max_byzantine(num_clients))
        jobs[spec, "random"] = lambda rule=rule, f=num_assumed: rule(X, num_byzantine=f)
    return print_rows(medians(jobs, repeats, device), {}, num_clients, dim)


def print_rows(seconds: dict, memory: dict, num_clients: int, dim: int) -> list[dict]:
    """Print one line per measurement and return what a result file keeps."""
    mean = seconds["mean", "random"]
    rows = []
    for key, value in seconds.items():
        extra = memory.get(key)
        row = {"clients": num_clients, "dim": dim, "job": key[0], "input": key[1]}
        row |= {"milliseconds": round(value * 1e3, 3), "times_mean": round(value / mean, 2)}
        row["extra_memory_times_input"] = None if extra is None else round(extra, 2)
        rows.append(row)
        print(
            f"n={num_clients:<3} {key[0]:48s} {key[1]:9s} {value * 1e3:10.2f} ms "
            f"{value / mean:8.1f} x mean" + ("" if extra is None else f"  +{extra:.2f} x input"),
            flush=True,
        )
    return rows


def extra_memory(spec: str, kind: str, num_clients: int, dim: int, device: torch.device) -> float:
    """Return the peak of extra memory in units of the input, seen in a process of its own."""
    words = [spec, kind, str(num_clients), str(dim), str(device)]
    measured = subprocess.run(
        [sys.executable, __file__, "--memory", *words], capture_output=True, text=True, check=True
    )
    return float(measured.stdout.split()[-1])


def print_memory(spec: str, kind: str, num_clients: int, dim: int, device: torch.device) -> None:
    """Print the peak of extra memory of one call, after one on a small input."""
    num_byzantine = num_clients // 5
    matrix = make_inputs(num_clients, num_byzantine, dim, device)[kind].clone()
    rule = ov.make_rule(spec)
    rule(matrix[:, :1000].contiguous(), num_byzantine=num_byzantine)
    extra = peak_extra_bytes(lambda: rule(matrix, num_byzantine=num_byzantine), device)
    print(extra / (matrix.numel() * 4))


def make_inputs(
    num_clients: int, num_byzantine: int, dim: int, device: torch.device
) -> dict[str, Tensor]:
    """Return random gradients, and the same with colluding attackers (LIE: identical rows)."""
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(num_clients, dim, generator=generator).to(device)
    colluding = X.clone()
    honest = X[num_byzantine:]
    colluding[:num_byzantine] = honest.mean(dim=0) - 1.5 * honest.std(dim=0)
    return {"random": X, "colluding": colluding}


def loop_of_many(X: Tensor, num_groups: int, num_byzantine: int, device: torch.device) -> float:
    """Time the loop on a sample of many groups and scale it to all of them."""
    groups = torch.randperm(X.shape[1], device=device).chunk(num_groups)
    sample = list(groups[:LOOP_SAMPLE])
    job = {"loop": lambda: add_scores(X, sample, num_byzantine)}
    return medians(job, 3, device)["loop"] * len(groups) / len(sample)


if __name__ == "__main__":
    main()
