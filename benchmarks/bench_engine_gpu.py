"""The simulator on a GPU, with real CIFAR-10 and the paper's settings.

python benchmarks/bench_engine_gpu.py throughput --data FOLDER   60 runs side by side, images/s
python benchmarks/bench_engine_gpu.py curve --data FOLDER        mean, all clients honest, by round
python benchmarks/bench_engine_gpu.py plain --data FOLDER        the same in plain loops

FOLDER holds CIFAR-10 in any form that `outvote data list` names.
"""

import argparse
import copy
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch
from timing import circumstances, write_json

import outvote as ov
from outvote.data import load
from outvote.engine.aggregate_step import aggregate
from outvote.engine.attack_step import attack
from outvote.engine.federation import make_federation
from outvote.engine.local_updates import local_updates
from outvote.engine.participants import sample_participants
from outvote.engine.record import record
from outvote.engine.reference import ReferenceRun
from outvote.engine.run_stack import Run, RunStack, State
from outvote.engine.server_step import apply_update
from outvote.engine.simulation import first_state, make_run_stack, simulate
from outvote.training.local_sgd import LocalSGD
from outvote.training.samples import ByteImages
from outvote.training.stacked_trainer import StackedTrainer

RULES = ("multi-krum", "bulyan", "median", "rfa", "dnc(removal_factor=4)", "rbtm")
ATTACKS = ("bit-flip", "lie", "min-max", "min-sum", "ipm")
# The paper's column for CIFAR-10.
PAPER = LocalSGD(learning_rate=0.1, momentum=0.5, weight_decay=1e-4, max_norm=2.0, num_epochs=5)


def main() -> None:
    """Run one of the three."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["throughput", "curve", "plain"])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--precision", nargs="+", default=["tf32"])
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    device = torch.device("cuda")
    found = load("cifar10", folder=options.data)
    info = {"mean": found.mean, "std": found.std, "device": device}
    data = Data(
        ByteImages(found.train_images, found.train_labels, **info),
        ByteImages(found.test_images, found.test_labels, **info),
        found.train_labels,
    )
    result = {"circumstances": circumstances(device), "what": options.what}
    work = {"throughput": throughput, "curve": curve, "plain": plain}[options.what]
    for rows in work(data, options):
        result["rows"] = rows
        write_json(options.output, result)


class Data:
    """Real images on the device."""

    def __init__(self, train: ByteImages, test: ByteImages, labels: object) -> None:
        """Keep them together."""
        self.train, self.test, self.labels = train, test, labels

    def run(self, rule: str, attack: str, seed: int, fraction: float) -> Run:
        """Return one federation of 50 clients; 5 take part in a round."""
        parts = ov.partition_dirichlet(self.labels, num_clients=50, beta=0.5, seed=seed)
        return Run(
            federation=make_federation(parts, fraction=fraction, seed=seed),
            attack=ov.make_attack(attack),
            rule=ov.make_rule(rule),
            seed=seed,
            num_sampled=5,
        )

    def stack(self, runs: list[Run], precision: str) -> tuple[RunStack, State]:
        """Return the runs at their start."""
        modules = [ov.make_model("alexnet", num_classes=10, seed=run.seed) for run in runs]
        stack = make_run_stack(
            modules[0], self.train, self.test, runs, training=PAPER, num_classes=10
        )
        trainer = StackedTrainer(modules[0], self.train, precision)
        return replace(stack, trainer=trainer), first_state(modules, self.train)


def throughput(data: Data, options: argparse.Namespace):  # noqa: ANN201
    """Run rounds of 60 runs: 12 rules under 5 attacks, evaluated in every round."""
    rules = [*RULES, *(f"gas({rule})" for rule in RULES)]
    runs = [data.run(r, a, seed, 0.2) for r in rules for seed, a in enumerate(ATTACKS)]
    rows = []
    for precision in options.precision:
        stack, state = data.stack(runs, precision)
        for _ in range(options.rounds + 2):
            seconds, num_images, state = timed_round(stack, state)
            total = sum(seconds.values())
            row = {"precision": precision, "round": state.round, "images": num_images}
            row |= {"seconds": total, "images_per_second": num_images / total}
            row |= {"parts": seconds, "gibibytes": torch.cuda.max_memory_allocated() / 2**30}
            rows.append(row)
            print(precision, {k: round(v, 3) for k, v in seconds.items()}, row["images_per_second"])
            yield rows
        speeds = [r["images_per_second"] for r in rows if r["precision"] == precision][2:]
        print(precision, "median of the last rounds:", round(median(speeds)), "images/s")


def timed_round(stack: RunStack, state: State) -> tuple[dict[str, float], int, State]:
    """Run a round as `engine/round.py` does, with a clock after every step."""
    seconds: dict[str, float] = defaultdict(float)

    def timed(name: str, work, *given, **named):  # noqa: ANN001, ANN002, ANN003, ANN202
        torch.cuda.synchronize()
        start = time.perf_counter()
        result = work(*given, **named)
        torch.cuda.synchronize()
        seconds[name] += time.perf_counter() - start
        return result

    participants = timed("sample", sample_participants, stack, state.round + 1)
    updates = timed("train", local_updates, stack, state, participants)
    sent, attack_states = timed("attack", attack, stack, state, participants, updates)
    found = timed("aggregate", aggregate, stack, state, participants, updates, sent)
    after = timed("apply", apply_update, stack, state, updates, found, attack_states)
    given = (stack, state, after, participants, updates, found)
    timed("record", record, *given, is_evaluated=True)
    return dict(seconds), int(updates.num_samples.sum()), after


def curve(data: Data, options: argparse.Namespace):  # noqa: ANN201
    """Train by the mean with honest clients only, all seeds side by side."""
    runs = [data.run("mean", "none", seed, 0.0) for seed in options.seeds]
    stack, state = data.stack(runs, options.precision[0])
    rows = []
    start = time.perf_counter()
    for step in simulate(stack, state, options.rounds):
        accuracies = [record.accuracy for record in step.records]
        rows.append({"round": step.state.round, "seeds": options.seeds, "accuracy": accuracies})
        rows[-1] |= {"precision": options.precision[0], "seconds": time.perf_counter() - start}
        if step.state.round % 10 == 0:
            print(rows[-1], flush=True)
            yield rows
    yield rows


def plain(data: Data, options: argparse.Namespace):  # noqa: ANN201
    """The same in plain loops of PyTorch."""
    rows = []
    for seed in options.seeds:
        run = data.run("mean", "none", seed, 0.0)
        model = ov.make_model("alexnet", num_classes=10, seed=seed).cuda()
        reference = ReferenceRun(
            run=run,
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
