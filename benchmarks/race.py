"""The same federated work in outvote, plain PyTorch, ByzFL, Flower's simulation and pfl-research.

python benchmarks/race.py                         on the CPU; `make race`
python benchmarks/race.py --model small-cnn -o race.json
python benchmarks/race.py --device cuda --no-install --contestants outvote outvote-runs plain

Everyone trains the same network from the same weights on the same clients: the embedded
Fashion-MNIST images, one epoch a round in batches of 64, SGD with momentum, the trimmed mean.
Nothing is evaluated while the clock runs. Every contestant runs in a process of its own, in an
environment of its own under build/race, and in turn with the others. A contestant that may use one
core or several is measured in both ways, and the table shows the faster one. One that cannot run
has a row with the reason. The result is also written to build/race/<date>-race-<device>.json, or to
the file named by -o.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from byzfl_side import VERSION as BYZFL
from race_work import Work, write_work
from timing import circumstances, write_json

HERE = Path(__file__).parent
ENVIRONMENTS = HERE.parent / "build" / "race"
PINS = HERE.parent / "constraints-dev.txt"
SHARED_PINS = ("torch", "numpy")
# A network that nobody else is in: Ray and torchrun listen on every interface. Those who are left
# at the end are ended.
ALONE = ("unshare", "-rn", "--pid", "--fork", "--kill-child", "--mount-proc")
WITH_LOOPBACK = ("sh", "-c", 'ip link set lo up && exec "$@"', "sh")
SIMILAR = 0.04
"""Accuracies after a few rounds differ by so much from seed to seed."""
Way = tuple[int, int]
"""Threads of a process, and processes."""


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """Who takes part, and what it needs."""

    module: str
    imports: tuple[str, ...] = ()
    install: tuple[str, ...] = ()
    """What pip is given. It must not bring another torch."""
    pins: tuple[str, ...] | None = None
    """The pins of constraints-dev.txt that hold; None: all."""
    has_one_process: bool = True
    has_processes: bool = False
    launcher: tuple[str, ...] = ()
    """What starts several processes, with the number of them at the end."""

    def ways(self, cores: int, device: str) -> list[Way]:
        """Return the ways of using the cores."""
        one = [(cores, 1)] if device == "cuda" else [(threads, 1) for threads in {1, cores}]
        several = [(1, cores)] if cores > 1 or not self.has_one_process else []
        return (one if self.has_one_process else []) + (several if self.has_processes else [])


CONTESTANTS = {
    "outvote": Contestant(module="race_outvote"),
    "outvote-runs": Contestant(module="race_outvote_runs"),
    "plain": Contestant(module="race_plain"),
    "byzfl": Contestant(
        module="race_byzfl", imports=("byzfl",), install=("--no-deps", f"byzfl=={BYZFL}")
    ),
    "flower": Contestant(
        module="race_flower",
        imports=("flwr", "ray"),
        install=("flwr[simulation]",),
        has_one_process=False,
        has_processes=True,
    ),
    "pfl": Contestant(
        module="race_pfl",
        imports=("pfl",),
        install=("pfl[pytorch]",),
        pins=SHARED_PINS,  # It wants older attrs and absl-py.
        has_processes=True,
        launcher=("-m", "torch.distributed.run", "--master-addr", "127.0.0.1", "--nproc-per-node"),
    ),
}


class CannotRunError(Exception):
    """Why a contestant has no result."""


def main() -> int:
    """Run the race, print one table, and write a result file."""
    options = parse(sys.argv[1:])
    torch.set_num_threads(options.cores)
    work = work_of(options)
    conditions = circumstances(torch.device(options.device)) | {"cores": options.cores}
    conditions |= {"load": os.getloadavg()[0], "wait_policy": "passive"}
    print(conditions)
    print(asdict(work))
    race = Race(work, options)
    rows = race.run()
    print(table(rows, work))
    print(notes(rows))
    content = {"circumstances": conditions | {"load_after": os.getloadavg()[0]}}
    content |= {"command": " ".join(["race.py", *sys.argv[1:]]), "work": asdict(work)}
    date = str(conditions["date"]).partition(" ")[0]
    output = options.output or ENVIRONMENTS / f"{date}-race-{options.device}.json"
    write_json(output, content | {"rows": rows, "measured": race.measured})
    print(f"written to {output}")
    return 0


def parse(words: list[str]) -> argparse.Namespace:
    """Read the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument(
        "--contestants", nargs="+", choices=list(CONTESTANTS), default=list(CONTESTANTS)
    )
    parser.add_argument("--model", default="mlp", help="a network of outvote for 28 x 28 pixels")
    parser.add_argument("--rule", choices=["trimmed-mean", "mean"], default="trimmed-mean")
    parser.add_argument("--rounds", type=int, default=8, help="by the clock, after two others")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--samples", type=int, default=6000, help="of all clients together")
    parser.add_argument("--runs", type=int, default=8, help="federations of outvote-runs")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--limit", type=float, default=300, help="seconds for one process")
    parser.add_argument("--no-install", action="store_true", help="use what can be imported")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args(words)
    if options.samples < options.clients:
        parser.error(f"--samples must be at least --clients ({options.clients}).")
    return options


def work_of(options: argparse.Namespace) -> Work:
    """Return what everyone trains."""
    return Work(
        model=options.model,
        rule=options.rule,
        device=options.device,
        clients=options.clients,
        assumed_byzantine=options.clients // 5,
        samples=options.samples,
        rounds=options.rounds,
        runs=options.runs,
    )


class Race:
    """Contestants that take turns, each in its ways."""

    def __init__(self, work: Work, options: argparse.Namespace) -> None:
        """Nothing is measured yet."""
        self.work, self.options = work, options
        self.measured: list[dict[str, Any]] = []
        self.reasons: dict[tuple[str, Way], str] = {}

    def run(self) -> list[dict[str, Any]]:
        """Repeat everything; return one row per contestant."""
        options, pythons, entries = self.options, {}, []
        for name in options.contestants:
            ways = CONTESTANTS[name].ways(options.cores, options.device)
            try:
                pythons[name] = find_python(name, is_installing=not options.no_install)
                entries += [(name, way) for way in ways]
            except CannotRunError as error:
                self.reasons[name, ways[0]] = str(error)
        for repeat in range(options.repeats):
            # Another one begins each time: a machine may slow down or speed up.
            start = repeat % max(1, len(entries))
            for name, way in entries[start:] + entries[:start]:
                if (name, way) not in self.reasons:
                    self.measure(name, way, pythons[name], repeat)
        return [self.row(name) for name in options.contestants]

    def measure(self, name: str, way: Way, python: str, repeat: int) -> None:
        """Run one contestant in one way, or keep why it failed."""
        work = replace(self.work, threads=way[0], processes=way[1])
        about = {"contestant": name, "threads": way[0], "processes": way[1], "repeat": repeat}
        try:
            found = execute(CONTESTANTS[name], work, python, self.options.limit)
        except CannotRunError as error:
            self.reasons[name, way] = str(error)
            print(f"{name} {way}: {error}", flush=True)
            return
        self.measured.append(about | found | {"samples_per_second": speed(found)})
        print(f"{name:13} {way} {speed(found):12,.0f} samples/s", flush=True)

    def row(self, name: str) -> dict[str, Any]:
        """Return what the table shows of a contestant: its fastest way."""
        own = [each for each in self.measured if each["contestant"] == name]
        ways = {(each["threads"], each["processes"]) for each in own}
        groups = [
            [each for each in own if (each["threads"], each["processes"]) == way] for way in ways
        ]
        if not groups:
            reasons = [text for (who, _), text in self.reasons.items() if who == name]
            return {"contestant": name, "reason": reasons[0]}
        best = max(groups, key=lambda group: median(each["samples_per_second"] for each in group))
        speeds = [each["samples_per_second"] for each in best]
        rounds = best[0]["federations"] / best[0]["samples"]
        return {
            "contestant": name,
            "versions": best[0]["versions"],
            "differs": best[0]["differs"],
            "rule": best[0]["rule"],
            "threads": best[0]["threads"],
            "processes": best[0]["processes"],
            "repeats": len(best),
            "samples_per_second": median(speeds),
            "slowest_and_fastest": [min(speeds), max(speeds)],
            "rounds_per_second": median(speeds) * rounds,
            "accuracy": median(each["accuracy"] for each in best),
        }


def find_python(name: str, *, is_installing: bool) -> str:
    """Return an interpreter that has what a contestant needs; make one where that is allowed."""
    contestant = CONTESTANTS[name]
    if all(importlib.util.find_spec(package) for package in contestant.imports):
        return sys.executable
    made = ENVIRONMENTS / name
    python = str(made / "bin" / "python")
    if has_imports(python, contestant.imports):
        return python
    if not is_installing:
        raise CannotRunError(f"not installed: {', '.join(contestant.imports)}")
    install(contestant, made)
    return python


def has_imports(python: str, packages: tuple[str, ...]) -> bool:
    """Return whether an interpreter is there and finds the packages."""
    code = "import sys, importlib.util as u; sys.exit(not all(map(u.find_spec, sys.argv[1:])))"
    try:
        done = subprocess.run([python, "-c", code, *packages], capture_output=True, check=False)
    except OSError:
        return False
    return done.returncode == 0


def install(contestant: Contestant, folder: Path) -> None:
    """Make an environment that borrows everything that is here, torch above all, and adds to it."""
    here = Path(sysconfig.get_path("purelib"))
    venv.EnvBuilder(clear=True, symlinks=True).create(folder)
    # Not only the folder: what is installed there from a source tree is found as well.
    borrowed = folder / here.relative_to(sys.prefix) / "borrowed.pth"
    borrowed.write_text(f"import site; site.addsitedir({str(here)!r})\n")
    pins = folder / "constraints.txt"
    lines = PINS.read_text().splitlines(keepends=True)
    names = contestant.pins
    kept = [line for line in lines if names is None or line.partition("==")[0] in names]
    pins.write_text("".join(kept))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    pip += ["--python", str(folder / "bin" / "python"), "install", "--quiet", "--retries", "1"]
    words = [*pip, "--timeout", "15", "-c", str(pins), *contestant.install]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CannotRunError(f"cannot be installed: {last_line(done.stderr)}")


def execute(contestant: Contestant, work: Work, python: str, limit: float) -> dict[str, Any]:
    """Run a contestant in a process of its own; return what it measured."""
    with tempfile.TemporaryDirectory() as folder:
        given, result = Path(folder, "work.json"), Path(folder, "result.json")
        given.write_text(write_work(work))
        words = [python, str(HERE / "race_work.py"), contestant.module, str(given), str(result)]
        if work.processes > 1 and contestant.launcher:
            words[1:1] = [*contestant.launcher, str(work.processes)]
        if contestant.has_processes and (work.processes > 1 or not contestant.has_one_process):
            check_namespace()
            words = [*ALONE, *WITH_LOOPBACK, *words]
        try:
            done = subprocess.run(
                words,
                env=environment(work),
                capture_output=True,
                text=True,
                timeout=limit,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise CannotRunError(f"not done after {limit:g} seconds") from None
        if done.returncode != 0 or not result.exists():
            raise CannotRunError(f"failed: {last_line(done.stderr)}")
        return json.loads(result.read_text())


def check_namespace() -> None:
    """Raise unless a network namespace can be made."""
    try:
        subprocess.run([*ALONE, *WITH_LOOPBACK, "true"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        raise CannotRunError("needs a network namespace: unshare -rn") from None


def environment(work: Work) -> dict[str, str]:
    """Return the variables of a contestant's process."""
    paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    threads = str(work.threads)
    # Threads that wait in a loop would take the core from others.
    own = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "OMP_WAIT_POLICY": "passive"}
    return {**os.environ, **own, "PYTHONPATH": os.pathsep.join(paths), "GLOO_SOCKET_IFNAME": "lo"}


def last_line(text: str) -> str:
    """Return the last error of what a program wrote, else its last line, shortened."""
    lines = [line.strip() for line in text.splitlines() if any(map(str.isalpha, line))]
    # A launcher reports below the error, with a banner, that a process failed.
    errors = [line for line in lines if "Error" in line and not line.endswith(":")]
    return (errors or lines or ["no reason was printed"])[-1][:200]


def speed(found: dict[str, Any]) -> float:
    """Return the samples per second of all federations."""
    return found["samples"] * len(found["seconds"]) / sum(found["seconds"])


def table(rows: list[dict[str, Any]], work: Work) -> str:
    """Return the table, as Markdown; the ratio is that of samples per second."""
    ours = next((row for row in rows if row["contestant"] == "outvote"), {})
    head = ["contestant", "rule", "threads x processes", "samples/s (slowest to fastest)"]
    head += ["rounds/s", "outvote / it", "accuracy"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for row in rows:
        name = row["contestant"]
        if "reason" in row:
            lines.append(f"| {name} | {row['reason']} | | | | | |")
            continue
        name = f"{name}, {work.runs} federations" if name == "outvote-runs" else name
        versions = ", ".join(f"{key} {value}" for key, value in row["versions"].items())
        slowest, fastest = row["slowest_and_fastest"]
        first = ours.get("samples_per_second")
        ratio = f"{first / row['samples_per_second']:.2f} x" if first else "-"
        cores = f"{row['threads']} x {row['processes']}"
        lines.append(
            f"| {name} ({versions}) | {row['rule']} | {cores} | {row['samples_per_second']:,.0f} "
            f"({slowest:,.0f} to {fastest:,.0f}) | {row['rounds_per_second']:.2f} | {ratio} | "
            f"{100 * row['accuracy']:.1f} % |"
        )
    return "\n".join(lines)


def notes(rows: list[dict[str, Any]]) -> str:
    """Return what differs, and whether everyone has learned about the same."""
    done = [row for row in rows if "reason" not in row]
    lines = [f"{row['contestant']}: {row['differs']}" for row in done]
    reached = [row["accuracy"] for row in done]
    if reached and max(reached) - min(reached) > SIMILAR:
        low = min(done, key=lambda row: row["accuracy"])["contestant"]
        lines.append(
            f"accuracies differ by more than {100 * SIMILAR:g} points, {low} has the lowest: "
            "train more rounds before comparing speeds"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
