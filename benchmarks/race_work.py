"""The race's work: data, model and clock that every contestant shares, and the process of one.

A contestant is a module with a function ``run(work, clock)`` that trains the federation, calls
``clock.tick()`` after every round and returns the final state of the network or its accuracy; a
process that is not the first of several returns None. `race.py` starts a contestant as
``python race_work.py MODULE WORK.json RESULT.json``.
"""

import importlib
import json
import sys
import time
from dataclasses import asdict, dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import outvote as ov
from outvote.data import load

DATA = "fashion-mnist-small"


@dataclass(frozen=True, kw_only=True)
class Work:
    """What every contestant trains. All clients are honest and take part in every round."""

    model: str = "mlp"
    rule: str = "trimmed-mean"
    device: str = "cpu"
    threads: int = 1
    """Of torch, in every process."""
    processes: int = 1
    """For contestants that can use several."""
    clients: int = 20
    assumed_byzantine: int = 4
    samples: int = 6000
    epochs: int = 1
    batch_size: int = 64
    learning_rate: float = 0.05
    momentum: float = 0.5
    weight_decay: float = 1e-4
    warm_up: int = 2
    """Rounds before the clock runs."""
    rounds: int = 8
    """Rounds by the clock. One more follows: some contestants evaluate the last one."""
    runs: int = 8
    """Federations side by side, for the contestant that can."""

    @property
    def all_rounds(self) -> int:
        """How many rounds are trained."""
        return self.warm_up + self.rounds + 1

    def network(self) -> nn.Module:
        """Return the network, with the same first weights for everyone."""
        return ov.make_model(self.model, num_classes=10, seed=0)

    def optimizer(self, network: nn.Module) -> torch.optim.Optimizer:
        """Return a client's optimiser."""
        settings = {"momentum": self.momentum, "weight_decay": self.weight_decay}
        return torch.optim.SGD(network.parameters(), lr=self.learning_rate, **settings)


@dataclass(frozen=True)
class Data:
    """Normalised images as float32, channels first, and who owns which."""

    images: Tensor
    labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    parts: list[np.ndarray]

    def part(self, client: int) -> tuple[Tensor, Tensor]:
        """Return the samples of a client."""
        return self.images[self.parts[client]], self.labels[self.parts[client]]


@cache
def load_data(samples: int, clients: int) -> Data:
    """Load the first samples of the embedded data, split at random and evenly."""
    found = load(DATA)

    def scaled(images: np.ndarray) -> Tensor:
        values = (torch.from_numpy(images).float() / 255 - found.mean[0]) / found.std[0]
        return values.movedim(-1, 1).contiguous()

    labels = torch.from_numpy(found.train_labels[:samples]).long()
    parts = [np.asarray(part) for part in ov.partition_iid(labels, num_clients=clients, seed=0)]
    tests = torch.from_numpy(found.test_labels).long()
    return Data(
        scaled(found.train_images[:samples]), labels, scaled(found.test_images), tests, parts
    )


@torch.no_grad()
def accuracy(work: Work, state: dict[str, Tensor]) -> float:
    """Return the share of the test images that a network classifies correctly."""
    data, network = load_data(work.samples, work.clients), work.network()
    network.load_state_dict(state)
    network.eval()
    return float((network(data.test_images).argmax(1) == data.test_labels).float().mean())


@dataclass
class Clock:
    """Takes the time after every round."""

    device: str
    times: list[float] = field(default_factory=list)

    def tick(self) -> None:
        """Note that a round has ended."""
        if self.device == "cuda":
            torch.cuda.synchronize()
        self.times.append(time.perf_counter())

    def seconds(self, work: Work) -> list[float]:
        """Return the seconds of each round by the clock."""
        if len(self.times) != work.all_rounds:
            raise RuntimeError(f"{work.all_rounds} rounds must end, got {len(self.times)}.")
        kept = self.times[work.warm_up - 1 : work.warm_up + work.rounds]
        return [after - before for before, after in pairwise(kept)]


def read_work(text: str) -> Work:
    """Read what a contestant is to train."""
    return Work(**json.loads(text))


def write_work(work: Work) -> str:
    """Return the text that `read_work` reads."""
    return json.dumps(asdict(work))


def run_contestant(module: str, work: Work) -> dict[str, Any] | None:
    """Train the work and return what was measured; None if another process of several does."""
    torch.set_num_threads(work.threads)
    contestant = importlib.import_module(module)
    clock = Clock(work.device)
    outcome = contestant.run(work, clock)
    if outcome is None:
        return None
    reached = outcome if isinstance(outcome, float) else accuracy(work, outcome)
    factor = getattr(contestant, "num_federations", lambda _: 1)(work)
    return {
        "seconds": clock.seconds(work),
        "samples": work.samples * work.epochs * factor,
        "federations": factor,
        "accuracy": reached,
        "differs": contestant.DIFFERS,
        "rule": getattr(contestant, "RULE", work.rule),
        "versions": contestant.versions(),
    }


def main() -> None:
    """Run one contestant and write its result."""
    module, work, target = sys.argv[1:]
    found = run_contestant(module, read_work(Path(work).read_text()))
    if found is not None:
        Path(target).write_text(json.dumps(found))


if __name__ == "__main__":
    # The contestants import this file under its name.
    importlib.import_module("race_work").main()
