"""What LIE's two sides do to a network with ReLUs: accuracy, and how many units are active.

python benchmarks/lie_sides.py
python benchmarks/lie_sides.py -o benchmarks/results/lie-sides.json

AlexNet on CIFAR-10 as in the paper's Table 1, but two local epochs. Five clients are drawn in every
round; in place of the last two stands LIE, and the mean of all five is the update. Four federations
see the same clients: without a lie, with LIE against and along the standard deviation, and with a
shift of the same size whose signs are drawn anew for every coordinate.
"""

import argparse
import copy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from timing import circumstances, write_json
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, parameters_to_vector, vector_to_parameters

import outvote as ov
from outvote.data import load

NUM_CLIENTS, NUM_SAMPLED, NUM_BYZANTINE = 50, 5, 2
NUM_EPOCHS, BATCH, NUM_TESTED, SEED = 2, 64, 2000, 0

Lie = Callable[[Tensor, int], Tensor]


def against(honest: Tensor, _: int) -> Tensor:
    """LIE as this library has it."""
    return torch.as_tensor(ov.LIE()(honest, num_byzantine=NUM_BYZANTINE))


def along(honest: Tensor, _: int) -> Tensor:
    """LIE on the other side of the honest mean."""
    return torch.as_tensor(ov.LIE(sign=1)(honest, num_byzantine=NUM_BYZANTINE))


def scattered(honest: Tensor, number: int) -> Tensor:
    """As large a shift, without a common sign."""
    mean = honest.mean(dim=0)
    signs = torch.randint(0, 2, mean.shape, generator=torch.Generator().manual_seed(number)) * 2 - 1
    return (mean + signs * (along(honest, number)[0] - mean)).expand(NUM_BYZANTINE, -1)


ATTACKS: dict[str, Lie | None] = {
    "none": None,
    "against": against,
    "along": along,
    "random signs": scattered,
}


class Federation:
    """One model, and what its clients make of it."""

    def __init__(self, lie: Lie | None) -> None:
        """Begin with the same weights, whatever the lie."""
        self.lie = lie
        self.model = ov.make_model("alexnet", num_classes=10, input_shape=(32, 32, 3), seed=SEED)

    def run_round(self, clients: list[tuple[Tensor, Tensor]], number: int) -> None:
        """Train the clients, replace the last ones by attackers, take a step along the mean."""
        before = parameters_to_vector(self.model.parameters()).detach()
        honest = clients if self.lie is None else clients[:-NUM_BYZANTINE]
        sent = torch.stack([before - self.learn(*each, number) for each in honest])
        if self.lie is not None:
            sent = torch.cat([sent, self.lie(sent, number)])
        vector_to_parameters(before - sent.mean(dim=0), self.model.parameters())

    def learn(self, images: Tensor, labels: Tensor, number: int) -> Tensor:
        """Return the weights of a client after its epochs."""
        model = copy.deepcopy(self.model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5, weight_decay=1e-4)
        generator = torch.Generator().manual_seed(number)
        for _ in range(NUM_EPOCHS):
            for batch in torch.randperm(len(labels), generator=generator).split(BATCH):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
                clip_grad_norm_(model.parameters(), 2.0)
                optimizer.step()
        return parameters_to_vector(model.parameters()).detach()

    @torch.no_grad()
    def look(self, images: Tensor, labels: Tensor) -> dict[str, Any]:
        """Return the accuracy, and the share of active units after each ReLU."""
        active: list[float] = []
        hooks = [
            layer.register_forward_hook(
                lambda *seen: active.append(float((seen[2] > 0).float().mean()))
            )
            for layer in self.model.modules()
            if isinstance(layer, nn.ReLU)
        ]
        accuracy = float((self.model(images).argmax(dim=1) == labels).float().mean())
        for hook in hooks:
            hook.remove()
        return {"accuracy": round(accuracy, 4), "active": [round(share, 3) for share in active]}


def random_images(number: int) -> SimpleNamespace:
    """Return random images of the shape of CIFAR-10's, to try the script."""
    draw = np.random.default_rng(SEED)
    images = draw.integers(0, 256, (number, 32, 32, 3), dtype=np.uint8)
    labels = np.arange(number) % 10
    found = {"train_images": images, "train_labels": labels, "mean": [0.5] * 3, "std": [0.5] * 3}
    return SimpleNamespace(**found, test_images=images[:100], test_labels=labels[:100])


def main() -> int:
    """Run all federations round by round, print the outcome of each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--random", type=int, help="so many random images instead of CIFAR-10")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    data = load("cifar10") if options.random is None else random_images(options.random)
    mean, std = (torch.tensor(values) for values in (data.mean, data.std))

    def samples(images: np.ndarray, labels: np.ndarray) -> tuple[Tensor, Tensor]:
        scaled = (torch.from_numpy(images).float() / 255 - mean) / std
        return scaled.permute(0, 3, 1, 2).contiguous(), torch.from_numpy(labels)

    owned = ov.partition_dirichlet(data.train_labels, num_clients=NUM_CLIENTS, beta=0.5, seed=SEED)
    tested = samples(data.test_images[:NUM_TESTED], data.test_labels[:NUM_TESTED])
    federations = {name: Federation(lie) for name, lie in ATTACKS.items()}
    random, rows = np.random.default_rng(SEED), []
    for number in range(1, options.rounds + 1):
        drawn = random.choice(NUM_CLIENTS, NUM_SAMPLED, replace=False)
        clients = [samples(data.train_images[owned[k]], data.train_labels[owned[k]]) for k in drawn]
        for name, federation in federations.items():
            federation.run_round(clients, number)
            rows.append({"round": number, "lie": name, **federation.look(*tested)})
            print(
                f"{number:3} {name:13} {100 * rows[-1]['accuracy']:5.1f} %",
                rows[-1]["active"],
                flush=True,
            )
    if options.output:
        conditions = circumstances(torch.device("cpu"))
        write_json(options.output, {"circumstances": conditions, "rows": rows})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
