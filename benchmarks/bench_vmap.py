"""Training alone: a user-written CNN by vmap, beside the fast path and one client after the other.

python benchmarks/bench_vmap.py --device cuda -o results.json

The CNN has the shape of the library's AlexNet. The fast path trains the library's own; the others
train a plain module with a forward method, which the fast path does not know. The samples are
random images of 32 x 32 pixels; with --ragged the last batch of every client has another size.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from timing import circumstances, write_json
from torch import Tensor, nn
from torch.nn import functional as F

import outvote as ov
from outvote.training.batches import Batches
from outvote.training.local_sgd import LocalSGD
from outvote.training.samples import ByteImages
from outvote.training.sequential import SequentialTrainer
from outvote.training.stacked_trainer import StackedTrainer
from outvote.training.trainer import ClientTask, Trainer
from outvote.training.vmap_trainer import VmapTrainer

BATCH_SIZE = 64
WAYS = ("stacked", "vmap", "vmap-grouped", "sequential")


class UserCNN(nn.Module):
    """What a researcher would write: the shape of `outvote.models.networks.alexnet`."""

    def __init__(self) -> None:
        """Make the layers."""
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 11, stride=4, padding=5)
        self.conv2 = nn.Conv2d(64, 192, 5, padding=2)
        self.conv3 = nn.Conv2d(192, 384, 3, padding=1)
        self.conv4 = nn.Conv2d(384, 256, 3, padding=1)
        self.conv5 = nn.Conv2d(256, 256, 3, padding=1)
        self.head = nn.Linear(256, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits."""
        hidden = F.max_pool2d(F.relu(self.conv1(images)), 2)
        hidden = F.max_pool2d(F.relu(self.conv2(hidden)), 2)
        hidden = F.relu(self.conv3(hidden))
        hidden = F.relu(self.conv4(hidden))
        hidden = F.max_pool2d(F.relu(self.conv5(hidden)), 2)
        return self.head(hidden.flatten(1))


def main() -> None:
    """Measure the trainers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--steps", type=int, default=2, help="of every client")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--few", type=int, default=60, help="clients of the two slow ways")
    parser.add_argument("--ragged", action="store_true", help="last batches of random sizes")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    device = torch.device(options.device)
    result = {"circumstances": circumstances(device), "settings": vars(options).copy()}
    del result["settings"]["output"]
    result["images_per_second"] = speeds = {}
    bench = Bench(options, device)
    for way in options.ways:
        found = bench.measure(way)
        speeds[way] = found["images_per_second"]
        result.setdefault("rows", []).append(found)
        print(found, flush=True)
        if options.output is not None:
            write_json(options.output, result)
    for way in speeds.keys() & {"stacked", "sequential"}:
        if "vmap" in speeds:
            print(f"vmap / {way}: {speeds['vmap'] / speeds[way]:.2f}")


class Bench:
    """Random images on the device, and tasks for all clients."""

    def __init__(self, options: argparse.Namespace, device: torch.device) -> None:
        """Draw the images and the batches."""
        self.options, self.device = options, device
        generator = torch.Generator().manual_seed(0)
        number = options.images
        images = torch.randint(256, (number, 32, 32, 3), generator=generator, dtype=torch.uint8)
        labels = torch.randint(10, (number,), generator=generator)
        half = (0.5, 0.5, 0.5)
        self.samples = ByteImages(images, labels, mean=half, std=half, device=device)
        self.tasks = [
            ClientTask(run, self.batches(generator))
            for run in range(options.runs)
            for _ in range(options.clients)
        ]

    def batches(self, generator: torch.Generator) -> Batches:
        """Draw the batches of a client."""
        num_steps = self.options.steps
        sizes = [BATCH_SIZE] * num_steps
        index = torch.randint(self.options.images, (num_steps, BATCH_SIZE), generator=generator)
        if self.options.ragged:
            sizes[-1] = int(torch.randint(1, BATCH_SIZE + 1, (), generator=generator))
            index[-1, sizes[-1] :] = -1
        return Batches(index, sizes)

    def measure(self, way: str) -> dict[str, object]:
        """Return the median speed of one way, after a warm-up."""
        torch.cuda.empty_cache()
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        trainer, module = self.trainer(way)
        tasks = self.tasks[: self.options.few] if way in WAYS[2:] else self.tasks
        vector = nn.utils.parameters_to_vector(module.parameters()).detach()
        weights = vector.expand(self.options.runs, -1).to(self.device).contiguous()
        buffers = torch.empty(self.options.runs, 0, dtype=torch.float64, device=self.device)

        def work() -> object:
            return trainer.train(weights, buffers, tasks, LocalSGD(), 0.1)

        seconds = [self.seconds(work) for _ in range(1 + self.options.repeats)][1:]
        num_images = sum(task.batches.num_samples for task in tasks)
        peak = torch.cuda.max_memory_allocated() / 2**30 if self.device.type == "cuda" else None
        return {
            "way": way,
            "models": len(tasks),
            "models_at_once": getattr(trainer, "_num_models", None),
            "seconds": seconds,
            "gibibytes": peak,
            "images_per_second": num_images / median(seconds),
        }

    def trainer(self, way: str) -> tuple[Trainer, nn.Module]:
        """Return the trainer of a way, and the network that it trains."""
        precision = self.options.precision
        if way == "stacked":
            module = ov.make_model("alexnet", num_classes=10, seed=0)
            return StackedTrainer(module, self.samples, precision=precision), module
        module = UserCNN()
        if way == "sequential":
            return SequentialTrainer(module, self.samples, precision=precision), module
        has_products = way == "vmap"
        return (
            VmapTrainer(module, self.samples, precision=precision, has_products=has_products),
            module,
        )

    def seconds(self, work: Callable[[], object]) -> float:
        """Return the time of one round of training."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start


if __name__ == "__main__":
    main()
