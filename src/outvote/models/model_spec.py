"""Networks by name."""

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
from torch import nn

from outvote.errors import check_kind, closest
from outvote.models.networks import (
    alexnet,
    char_transformer,
    gelu_mlp,
    leaf_cnn,
    leaf_cnn_small,
    mlp,
    resnet18,
    small_cnn,
    squeezenet,
)
from outvote.plugins import plugin_names
from outvote.seeding import alone, seed_from
from outvote.user_objects import find_own, is_own

MODELS: dict[str, Callable[..., nn.Module]] = {
    "alexnet": alexnet,
    "squeezenet": squeezenet,
    "resnet18": resnet18,
    "leaf-cnn": leaf_cnn,
    "leaf-cnn-small": leaf_cnn_small,
    "small-cnn": small_cnn,
    "mlp": mlp,
    "gelu-mlp": gelu_mlp,
    "char-transformer": char_transformer,
}
ANY_SHAPE = ("gelu-mlp",)
AXES = {1: "(length,)", 3: "(height, width, channels)"}

"""All threads share torch's generator: two at once would draw from each other's seeds."""


def make_model(
    name: str,
    *,
    num_classes: int,
    input_shape: tuple[int, ...] | None = None,
    seed: int | None = None,
) -> nn.Module:
    """Build a network; its first weights are a function of the seed alone (None: a fresh one).

    `input_shape` is that of a sample, by default of the data that the network was made for:
    (height, width, channels) for images, (features,) for gelu-mlp, (length,) for char-transformer,
    whose classes are the tokens.

    >>> sum(p.numel() for p in make_model("alexnet", num_classes=10).parameters())
    2472266
    """
    check_model_name(name)
    check_kind("num_classes", num_classes, int)
    if num_classes < 2:
        raise ValueError(f"num_classes must be at least 2, got {num_classes}.")
    if is_own_model(name):
        if input_shape is not None:
            raise ValueError(f"{name} is not built in and takes no input_shape; leave it out.")
        return make_own_model(find_own("model", name), num_classes, seed_from(seed))
    shape = () if input_shape is None else (_checked_shape(name, input_shape),)
    # torch's layers draw from the global generator: lent for a moment, and put back as it was.
    with alone(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed_from(seed))
        return MODELS[name](num_classes, *shape)


def check_model_name(name: str) -> None:
    """Refuse a name that is neither built in nor a user's, nor that of a package."""
    if name not in MODELS and not is_own_model(name):
        known = [*MODELS, *plugin_names("model")]
        raise ValueError(f"unknown model {name!r}; {closest(name, known)}")


def is_own_model(name: str) -> bool:
    """Return whether a model is a user's or another package's."""
    return is_own("model", name, MODELS)


def make_own_model(model: Any, num_classes: int | None, seed: int) -> nn.Module:
    """Make a user's network: the module itself, or what a class or function returns.

    A class or function gets `num_classes` if it has a parameter of that name. Its first weights
    are a function of the seed; those of a module are its own.
    """
    if isinstance(model, nn.Module):  # A copy would lose hooks of parameters; trainers restore it.
        return model
    takes = {}
    if num_classes is not None and "num_classes" in signature(model).parameters:
        takes["num_classes"] = num_classes
    with alone(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        try:
            made = model(**takes)
        except TypeError as error:
            raise ValueError(f"the model cannot be made without arguments: {error}.") from error
    if not isinstance(made, nn.Module):
        raise ValueError(  # noqa: TRY004  (what a function returns is a value)
            f"model must be a torch.nn.Module or make one, got {type(made).__name__}."
        )
    return made


def _checked_shape(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a sample, if the network takes samples of so many axes."""
    num_axes = len(signature(MODELS[name]).parameters["input_shape"].default)
    if name not in ANY_SHAPE and len(shape) != num_axes:
        raise ValueError(
            f"{name} takes samples {AXES[num_axes]}, got the shape {tuple(shape)}; choose another "
            "model: outvote list models."
        )
    return tuple(shape)
