"""The simulator on a GPU: the paper's four networks end to end, and curves on real CIFAR-10.

python benchmarks/bench_engine_gpu.py networks -o FILE             12 rules under LIE, random images
python benchmarks/bench_engine_gpu.py networks --runs 60 -o FILE   the same with five seeds
python benchmarks/bench_engine_gpu.py curve --data FOLDER -o FILE  mean, all honest, by round
python benchmarks/bench_engine_gpu.py plain --data FOLDER -o FILE  the same in plain loops

FOLDER holds CIFAR-10 in any form that `outvote data list` names. The random images have the shapes
and numbers of CIFAR-10, CIFAR-100, the LEAF subset of FEMNIST (18 of 395 writers take part) and 12
classes of Tiny-ImageNet; settings are the paper's. Everything of a round is counted, with
evaluation. Times are medians of the rounds after the second; the first two are listed by
themselves. Each round has the seconds that processors worked for it, and the megabytes it read
from a disk; `before` is the same for `built`.
"""

import argparse
import copy
import resource
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from timing import circumstances, write_json
from torch import nn
from torch.profiler import ProfilerActivity, profile

import outvote as ov
from outvote.data import load
from outvote.engine import round as rounds
from outvote.engine.federation import make_federation
from outvote.engine.reference import ReferenceRun
from outvote.engine.run_stack import Run, RunStack, State
from outvote.engine.simulation import FittingRounds, first_state, make_run_stack, simulate
from outvote.training.local_sgd import LocalSGD
from outvote.training.samples import ByteImages

BASES = ("multi-krum", "bulyan", "median", "rfa(num_iterations=3)", "dnc(removal_factor=4)", "rbtm")
RULES = (*BASES, *(f"gas({rule})" for rule in BASES))
PARTS = {
    "sample_participants": "sampling",
    "local_updates": "training",
    "attack": "attack",
    "aggregate": "rules",
    "apply_update": "server",
    "record": "evaluation",
}
# The paper's column for CIFAR-10.
PAPER = LocalSGD(learning_rate=0.1, momentum=0.5, weight_decay=1e-4, max_norm=2.0, num_epochs=5)


@dataclass(frozen=True)
class Setting:
    """One network of the paper and the shape of its data."""

    shape: tuple[int, int, int]
    num_classes: int
    num_train: int
    num_test: int
    num_clients: int
    num_sampled: int
    training: LocalSGD
    spread: float = 0.0
    """By how much the numbers of samples of clients differ from their mean, at most."""


SETTINGS = {
    "alexnet": Setting((32, 32, 3), 10, 50_000, 10_000, 50, 5, PAPER),
    "squeezenet": Setting((32, 32, 3), 100, 50_000, 10_000, 50, 5, replace(PAPER, num_epochs=1)),
    "leaf-cnn": Setting(
        (28, 28, 1),
        62,
        54_496,
        6_253,
        395,
        18,
        replace(PAPER, num_epochs=1, learning_rate=0.5),
        spread=0.5,
    ),
    "resnet18": Setting(
        (64, 64, 3),
        12,
        6_000,
        600,
        50,
        5,
        replace(PAPER, num_epochs=1, momentum=0.9, batch_size=128),
    ),
}


def main() -> None:
    """Run one of the three."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["networks", "curve", "plain"])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--networks", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--runs", type=int, default=len(RULES), help="12 rules, more by seeds")
    parser.add_argument("--trainer", default="auto")
    parser.add_argument("--attack", default="lie(z=1.5, sign=1)")
    parser.add_argument("--profile", type=Path, help="a folder for profiles of one round each")
    parser.add_argument("--tiny", action="store_true", help="a few images, to try the script")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    result = {"circumstances": circumstances(torch.device(options.device)), "what": options.what}
    work = {"networks": networks, "curve": curve, "plain": plain}[options.what]
    for rows in work(options):
        result["rows"] = rows
        write_json(options.output, result)


def networks(options: argparse.Namespace):  # noqa: ANN201
    """Run rounds of all rules under one attack, evaluated in every round."""
    rows, compiled = [], Compiled()
    for name in options.networks:
        setting = _tiny(SETTINGS[name]) if options.tiny else SETTINGS[name]
        row = {"network": name, "runs": options.runs, "precision": options.precision}
        try:
            row |= _measure(name, setting, options, compiled)
        except torch.cuda.OutOfMemoryError as error:
            row["error"] = str(error).partition("\n")[0]
        rows.append(row)
        print(
            {k: v for k, v in row.items() if k not in ("rounds", "rules", "parts_by_round")},
            flush=True,
        )
        print("  rules", row.get("rules"), flush=True)
        torch.cuda.empty_cache()
        yield rows


def _measure(
    name: str, setting: Setting, options: argparse.Namespace, compiled: "Compiled"
) -> dict[str, Any]:
    device = torch.device(options.device)
    data = Data.random(setting, device)
    modules = [
        ov.make_model(name, num_classes=setting.num_classes, input_shape=setting.shape, seed=number)
        for number in range(-(-options.runs // len(RULES)))
    ]
    # As sweeps order them: the runs of a rule are neighbours.
    num_seeds = len(modules)
    runs = [
        _run(setting, RULES[k // num_seeds], options.attack, seed=k % num_seeds)
        for k in range(options.runs)
    ]
    started, usage = time.perf_counter(), Usage()
    stack = make_run_stack(
        modules[0],
        data.train,
        data.test,
        runs,
        training=setting.training,
        num_classes=setting.num_classes,
        precision=options.precision if device.type == "cuda" else "float32",
        trainer=options.trainer,
    )
    state = first_state([modules[k % num_seeds] for k in range(options.runs)], data.train)
    _sync(device)
    built = time.perf_counter()
    before = usage.take()
    found, clock, fitting = [], Clock(device), FittingRounds(print)
    compiled.take()
    for number in range(options.rounds):
        is_profiled = options.profile is not None and number == options.rounds - 1
        if is_profiled:
            with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
                state, seconds, num_samples = _round(fitting, stack, state, device)
            options.profile.mkdir(parents=True, exist_ok=True)
            table = profiler.key_averages().table(
                sort_by="self_cuda_time_total", row_limit=45, max_name_column_width=90
            )
            (options.profile / f"{name}-{options.runs}.txt").write_text(table)
        else:
            state, seconds, num_samples = _round(fitting, stack, state, device)
            found.append({"seconds": seconds, "samples": num_samples})
            found[-1] |= {"compiled": compiled.take()} | usage.take()
    with clock:
        for _ in range(2 + (not options.tiny)):
            state, _, num_samples = _round(fitting, stack, state, device)
    parts = {part: median(times[1:] or times) for part, times in clock.times.items()}
    warm = median([each["seconds"] for each in found[2:]] or [found[-1]["seconds"]])
    num_warm = median([each["samples"] for each in found[2:]] or [num_samples])
    return {
        "trainer": stack.trainer.name,
        "built": built - started,
        "before": before,
        "first": [each["seconds"] for each in found[:2]],
        "seconds": warm,
        "samples_per_second": num_warm / warm,
        "training_samples_per_second": num_warm / parts["training"],
        "samples": num_warm,
        "floor_seconds": floor(name, setting, num_warm, options.runs),
        "parts": {PARTS[p]: parts[PARTS[p]] for p in PARTS},
        # Round by round: one that stalls is seen.
        "parts_by_round": {label: clock.times[label] for label in PARTS.values()},
        "compiled_in_parts": compiled.take(),
        "gibibytes": torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else None,
        "rounds": found,
        "rules": {part: 1e3 * value for part, value in parts.items() if part not in PARTS.values()},
    }


# One H200: dense bfloat16 products, and memory counting reads and writes (measured).
PEAK_OPERATIONS, PEAK_BYTES = 989e12, 4.3e12
# Of a parameter in a step: bfloat16 weights read twice, gradients written and read twice, float32
# weights and velocities read and written, the bfloat16 copy written.
BYTES_OF_A_STEP = 28


def floor(name: str, setting: Setting, num_samples: float, num_runs: int) -> dict[str, float]:
    """Return the least seconds of a round: by operations, and by bytes of perfectly fused layers.

    Counted are products alone: their inputs and outputs are read and written once forward and, with
    their gradients, once backward, in bfloat16; other layers would cost nothing. Gradients of
    clients are written once and read once by a rule.
    """
    module = ov.make_model(name, num_classes=setting.num_classes, input_shape=setting.shape)
    counts = {"operations": 0, "inputs": 0, "outputs": 0}

    def count(layer: nn.Module, given: tuple[torch.Tensor, ...], found: torch.Tensor) -> None:
        counts["inputs"] += given[0].numel()
        counts["outputs"] += found.numel()
        counts["operations"] += 2 * found.numel() * layer.weight[0].numel()

    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.register_forward_hook(count)
    height, width, channels = setting.shape
    with torch.no_grad():
        module.eval()(torch.zeros(1, channels, height, width))
    dim = sum(values.numel() for values in module.parameters())
    num_evaluated = num_runs * setting.num_test
    num_models = num_runs * setting.num_sampled
    operations = counts["operations"] * (3 * num_samples + num_evaluated)
    values = 3 * counts["inputs"] + 2 * counts["outputs"]
    bytes_ = 2 * num_samples * values
    bytes_ += 2 * num_evaluated * (counts["inputs"] + counts["outputs"])
    bytes_ += dim * BYTES_OF_A_STEP * num_samples / setting.training.batch_size
    bytes_ += dim * 8 * num_models
    return {"operations": operations / PEAK_OPERATIONS, "bytes": bytes_ / PEAK_BYTES}


def _round(
    fitting: FittingRounds, stack: RunStack, state: State, device: torch.device
) -> tuple[State, float, int]:
    _sync(device)
    start = time.perf_counter()
    state, records = fitting.run(stack, state)
    _sync(device)
    return state, time.perf_counter() - start, sum(record.num_samples for record in records)


def _sync(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


class Compiled:
    """The kernels that Triton compiled, with their times."""

    def __init__(self) -> None:
        """Listen, where Triton is there and reports it."""
        self.names: list[tuple[str, float]] = []
        try:
            from triton import knobs
        except ImportError:
            return
        knobs.compilation.listener = self._listen

    def _listen(self, *, src: Any, times: Any, cache_hit: bool, **_: Any) -> None:
        if not cache_hit:
            seconds = (times.total_lowering + times.ir_initialization + times.store_results) / 1e6
            self.names.append((src.name, seconds))

    def take(self) -> dict[str, Any]:
        """Return what was compiled since the last time: how many, seconds, the slowest."""
        names, self.names = self.names, []
        slowest = sorted(names, key=lambda each: -each[1])[:12]
        return {"number": len(names), "seconds": sum(t for _, t in names), "slowest": slowest}


class Usage:
    """What this process used: a first round may wait for a processor, or for files to be read."""

    def __init__(self) -> None:
        """Begin."""
        self._last = self._now()

    @staticmethod
    def _now() -> dict[str, float]:
        found = resource.getrusage(resource.RUSAGE_SELF)
        processor = found.ru_utime + found.ru_stime
        return {"processor_seconds": processor, "megabytes_read": found.ru_inblock * 512 / 1e6}

    def take(self) -> dict[str, float]:
        """Return what was used since the last time."""
        last, self._last = self._last, self._now()
        return {name: self._last[name] - last[name] for name in last}


class Clock:
    """Measures the parts of rounds; the device is waited for after each."""

    def __init__(self, device: torch.device) -> None:
        """Measure nothing yet."""
        self.device = device
        self.times: dict[str, list[float]] = defaultdict(list)
        self._plain: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> "Clock":
        from outvote.engine import aggregate_step

        for name, label in PARTS.items():
            self._replace(rounds, name, lambda _, label=label: label)
        self._replace(
            aggregate_step, "ask_rule", lambda given: str(given[0].runs[given[4][0]].rule)
        )
        return self

    def __exit__(self, *_: object) -> None:
        for owner, name, plain in self._plain:
            setattr(owner, name, plain)

    def _replace(self, owner: Any, name: str, label: Any) -> None:
        plain = getattr(owner, name)
        self._plain.append((owner, name, plain))

        def timed(*given: Any, **named: Any) -> Any:
            _sync(self.device)
            start = time.perf_counter()
            found = plain(*given, **named)
            _sync(self.device)
            self.times[label(given)].append(time.perf_counter() - start)
            return found

        setattr(owner, name, timed)


def _run(setting: Setting, rule: str, attack: str, seed: int) -> Run:
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(setting.num_train, generator=generator)
    shares = 1 + setting.spread * (2 * torch.rand(setting.num_clients, generator=generator) - 1)
    ends = (shares.cumsum(0) / shares.sum() * setting.num_train).round().long().tolist()
    parts = [order[start:stop] for start, stop in zip([0, *ends], ends, strict=False)]
    return Run(
        federation=make_federation(parts, fraction=0.2, seed=seed),
        attack=ov.make_attack(attack),
        rule=ov.make_rule(rule),
        seed=seed,
        num_sampled=setting.num_sampled,
    )


def _tiny(setting: Setting) -> Setting:
    training = replace(setting.training, num_epochs=1, num_steps=1, batch_size=2)
    return replace(
        setting, num_train=60, num_test=4, num_clients=10, num_sampled=5, training=training
    )


@dataclass(frozen=True)
class Data:
    """Images on the device."""

    train: ByteImages
    test: ByteImages
    labels: Any

    @classmethod
    def random(cls, setting: Setting, device: torch.device) -> "Data":
        """Draw images of the shape of a data set."""
        generator = torch.Generator().manual_seed(0)
        half = (0.5,) * setting.shape[2]
        made = []
        for number in (setting.num_train, setting.num_test):
            size = (number, *setting.shape)
            images = torch.randint(256, size, generator=generator, dtype=torch.uint8)
            labels = torch.randint(setting.num_classes, (number,), generator=generator)
            made.append(ByteImages(images, labels, mean=half, std=half, device=device))
        return cls(made[0], made[1], made[0].labels)

    @classmethod
    def cifar10(cls, options: argparse.Namespace) -> "Data":
        """Read CIFAR-10."""
        found = load("cifar10", folder=options.data)
        info = {"mean": found.mean, "std": found.std, "device": torch.device(options.device)}
        return cls(
            ByteImages(found.train_images, found.train_labels, **info),
            ByteImages(found.test_images, found.test_labels, **info),
            found.train_labels,
        )

    def honest_run(self, seed: int) -> Run:
        """Return a federation of 50 honest clients; 5 take part in a round."""
        parts = ov.partition_dirichlet(self.labels, num_clients=50, beta=0.5, seed=seed)
        return Run(
            federation=make_federation(parts, fraction=0.0, seed=seed),
            attack=ov.make_attack("none"),
            rule=ov.make_rule("mean"),
            seed=seed,
            num_sampled=5,
        )


def curve(options: argparse.Namespace):  # noqa: ANN201
    """Train by the mean with honest clients only, all seeds side by side."""
    data = Data.cifar10(options)
    runs = [data.honest_run(seed) for seed in options.seeds]
    modules: list[nn.Module] = [
        ov.make_model("alexnet", num_classes=10, seed=seed) for seed in options.seeds
    ]
    stack = make_run_stack(
        modules[0],
        data.train,
        data.test,
        runs,
        training=PAPER,
        num_classes=10,
        precision=options.precision,
    )
    rows = []
    start = time.perf_counter()
    for step in simulate(stack, first_state(modules, data.train), options.rounds):
        accuracies = [record.accuracy for record in step.records]
        rows.append({"round": step.state.round, "seeds": options.seeds, "accuracy": accuracies})
        rows[-1] |= {"precision": options.precision, "seconds": time.perf_counter() - start}
        if step.state.round % 10 == 0:
            print(rows[-1], flush=True)
            yield rows
    yield rows


def plain(options: argparse.Namespace):  # noqa: ANN201
    """The same in plain loops of PyTorch."""
    data = Data.cifar10(options)
    rows = []
    for seed in options.seeds:
        model = ov.make_model("alexnet", num_classes=10, seed=seed).to(options.device)
        reference = ReferenceRun(
            run=data.honest_run(seed),
            model=copy.deepcopy(model),
            train=data.train,
            test=data.test,
            training=PAPER,
            num_classes=10,
        )
        for number in range(1, options.rounds + 1):
            start = time.perf_counter()
            accuracy = reference.run_round(number)["accuracy"]
            row = {"round": number, "seed": seed, "accuracy": accuracy}
            rows.append(row | {"seconds": time.perf_counter() - start})
            print(rows[-1], flush=True)
            yield rows


if __name__ == "__main__":
    main()
