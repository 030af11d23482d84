"""More runs than fit into a GPU at once: `simulate` cuts the stack by itself, and no run is lost.

python benchmarks/too_many_runs.py [--runs 60] [--clients 18] [--samples 200] [--device cuda]
"""

import argparse
import time
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import outvote as ov

RULES = ("mean", "median", "multi-krum", "gas(multi-krum)", "gas(median)", "rfa")


class LeafCNN(nn.Module):
    """A user-written network of the shape of LEAF's CNN."""

    def __init__(self, width: int = 2048) -> None:
        """Make the layers."""
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 5, padding=2), nn.Conv2d(32, 64, 5, padding=2)
        self.hidden, self.out = nn.Linear(64 * 7 * 7, width), nn.Linear(width, 62)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits."""
        images = F.max_pool2d(F.relu(self.conv1(images)), 2)
        images = F.max_pool2d(F.relu(self.conv2(images)), 2)
        return self.out(F.relu(self.hidden(images.flatten(1))))


def main() -> None:
    """Simulate two rounds on random images, and print how it went."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--clients", type=int, default=18)
    parser.add_argument("--samples", type=int, default=200, help="of every client")
    parser.add_argument("--width", type=int, default=2048, help="of the hidden layer")
    parser.add_argument("--rules", nargs="+", default=list(RULES))
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    random = np.random.default_rng(0)
    number = options.clients * options.samples
    images = random.integers(0, 256, (number, 28, 28, 1), dtype=np.uint8)
    labels = np.arange(len(images)) % 62
    start = time.perf_counter()
    runs = ov.simulate(
        partial(LeafCNN, options.width),
        (images, labels),
        (images[:2000], labels[:2000]),
        num_clients=options.clients,
        byzantine=options.clients // 6,
        rules=options.rules,
        attacks=["lie", "ipm"],
        seeds=range(max(1, options.runs // (2 * len(options.rules)))),
        rounds=2,
        device=options.device,
        precision="bfloat16" if options.device.startswith("cuda") else "float32",
        progress=True,
    )
    seconds = time.perf_counter() - start
    outcomes = sorted({run.status.outcome for run in runs})
    is_on_gpu = options.device.startswith("cuda")
    peak = torch.cuda.max_memory_allocated() / 2**30 if is_on_gpu else float("nan")
    print(f"{len(runs)} runs {outcomes} in {seconds:.1f} s, {peak:.1f} GiB at most")


if __name__ == "__main__":
    main()
