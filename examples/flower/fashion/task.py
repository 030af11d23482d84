"""The task: real images of clothes, a small network, and its training."""

from functools import cache

import torch
from flwr.app import UserConfig
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import outvote as ov
from outvote.data import ArrayDataset, load

NUM_CLASSES = 10


def make_network(seed: int) -> nn.Module:
    """Return the network; its first weights are a function of the seed."""
    return ov.make_model("mlp", num_classes=NUM_CLASSES, seed=seed)


def training_images(
    partition_id: int, num_partitions: int, config: UserConfig
) -> tuple[Tensor, Tensor]:
    """Return the images and labels that a node owns."""
    data = load_images()
    parts = ov.partition_dirichlet(
        data.train_labels,
        num_clients=num_partitions,
        beta=float(config["beta"]),
        seed=int(config["seed"]),
    )
    mine = parts[partition_id]
    return _as_input(data.train_images[mine], data), torch.from_numpy(data.train_labels[mine])


def test_images() -> tuple[Tensor, Tensor]:
    """Return the images and labels that the server tests with."""
    data = load_images()
    return _as_input(data.test_images, data), torch.from_numpy(data.test_labels)


@cache
def load_images() -> ArrayDataset:
    """Load the images that are part of outvote; put your own data here."""
    return load("fashion-mnist-small")


def train(model: nn.Module, images: Tensor, labels: Tensor, config: UserConfig) -> float:
    """Train one epoch; return the loss of the last batch."""
    optimiser = torch.optim.SGD(
        model.parameters(), lr=float(config["learning-rate"]), momentum=0.5, weight_decay=1e-4
    )
    batches = DataLoader(
        TensorDataset(images, labels), batch_size=int(config["batch-size"]), shuffle=True
    )
    model.train()
    for some_images, some_labels in batches:
        optimiser.zero_grad()
        loss = F.cross_entropy(model(some_images), some_labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=2.0)
        optimiser.step()
    return loss.item()


@torch.no_grad()
def test(model: nn.Module, images: Tensor, labels: Tensor) -> tuple[float, float]:
    """Return the loss and the accuracy."""
    model.eval()
    answers = model(images)
    is_right = answers.argmax(dim=1) == labels
    return float(F.cross_entropy(answers, labels)), float(is_right.float().mean())


def _as_input(images, data: ArrayDataset) -> Tensor:  # noqa: ANN001
    scaled = torch.from_numpy(images).float().div(255)
    normal = (scaled - torch.tensor(data.mean)) / torch.tensor(data.std)
    return normal.permute(0, 3, 1, 2)  # [images, channels, height, width]
