"""Networks by name."""

from collections.abc import Callable
from threading import Lock

import torch
from torch import nn

from outvote.errors import check_kind, closest
from outvote.models.networks import (
    Shape,
    alexnet,
    leaf_cnn,
    leaf_cnn_small,
    mlp,
    resnet18,
    small_cnn,
    squeezenet,
)
from outvote.seeding import seed_from

MODELS: dict[str, Callable[..., nn.Module]] = {
    "alexnet": alexnet,
    "squeezenet": squeezenet,
    "resnet18": resnet18,
    "leaf-cnn": leaf_cnn,
    "leaf-cnn-small": leaf_cnn_small,
    "small-cnn": small_cnn,
    "mlp": mlp,
}

_LENT = Lock()
"""All threads share torch's generator: two at once would draw from each other's seeds."""


def make_model(
    name: str,
    *,
    num_classes: int,
    image_shape: Shape | None = None,
    seed: int | None = None,
) -> nn.Module:
    """Build a network; its first weights are a function of the seed alone (None: a fresh one).

    `image_shape` is (height, width, channels), by default that of the data the network was made
    for.

    >>> sum(p.numel() for p in make_model("alexnet", num_classes=10).parameters())
    2472266
    """
    if name not in MODELS:
        raise ValueError(f"unknown model {name!r}; {closest(name, list(MODELS))}")
    check_kind("num_classes", num_classes, int)
    if num_classes < 2:
        raise ValueError(f"num_classes must be at least 2, got {num_classes}.")
    shape = () if image_shape is None else (image_shape,)
    # torch's layers draw from the global generator: lent for a moment, and put back as it was.
    with _LENT, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed_from(seed))
        return MODELS[name](num_classes, *shape)
