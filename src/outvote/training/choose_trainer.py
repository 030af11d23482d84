"""How the clients of a model train: the fastest way that is plain PyTorch's up to rounding."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.utils._pytree import tree_leaves

from outvote.errors import check_choice
from outvote.seeding import seeded_generators
from outvote.training.cores import CoresTrainer
from outvote.training.known_layers import NotAcceptedError
from outvote.training.objective import Objective, as_classes, class_axis
from outvote.training.samples import Samples
from outvote.training.sequential import (
    MakeOptimizer,
    SequentialTrainer,
    check_optimizer,
    lent,
    state_of,
)
from outvote.training.stacked_trainer import StackedTrainer
from outvote.training.trainer import Trainer
from outvote.training.vmap_trainer import VmapTrainer

_WAYS: dict[str, Callable[..., Trainer]] = {
    "cores": CoresTrainer,
    "stacked": StackedTrainer,
    "vmap": VmapTrainer,
    "sequential": SequentialTrainer,
}
TRAINERS = ("auto", *_WAYS)
_ON_CPU, _ON_GPU = ("cores", "sequential"), ("stacked", "vmap", "sequential")


def choose_trainer(
    module: nn.Module,
    samples: Samples,
    objective: Objective,
    optimizer: MakeOptimizer | None = None,
    precision: str = "float32",
    name: str = "auto",
) -> Trainer:
    """Return the trainer of a model; its `reason` is why no faster one accepts the model.

    "auto": on a CPU, "cores" for known layers; on a GPU, "stacked" for known layers, else "vmap";
    else "sequential", which takes every model.
    """
    check_choice("trainer", name, TRAINERS)
    is_on_cpu = samples.device.type == "cpu"
    if is_on_cpu and precision == "bfloat16":
        raise ValueError("precision bfloat16 is for GPUs, got a CPU; set float32.")
    if optimizer is not None:
        check_optimizer(optimizer, module)
    ways: tuple[str, ...] = (name,)
    if name == "auto":
        ways = _ON_CPU if is_on_cpu else _ON_GPU
    given: tuple[Any, ...] = module, samples, objective, optimizer, precision
    refused: list[tuple[str, NotAcceptedError]] = []
    for way in ways:
        try:
            found = _WAYS[way](*given)
        except NotAcceptedError as error:
            refused.append((way, error))
        else:
            found.reason = "; ".join(f"not {other}, since {error}" for other, error in refused)
            return found
    (_, reason), *_ = refused
    raise NotAcceptedError(
        f"the trainer {name} cannot train this model, since {reason}; set trainer='auto'."
    ) from reason


def try_model(
    module: nn.Module,
    samples: Samples,
    objective: Objective,
    optimizer: MakeOptimizer | None = None,
    *,
    num_classes: int | None = None,
) -> None:
    """Compute the loss of a few samples, its gradient and a step; a fault is a ValueError."""
    if any(isinstance(each, UninitializedParameter) for each in module.parameters()):
        raise ValueError("the model has lazy layers; give their sizes, so that weights exist.")
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ValueError("the model has no parameters to train; set requires_grad on some.")
    with _on_few_samples(module, samples) as (inputs, targets), torch.enable_grad():
        try:
            outputs = module(*inputs)
        except Exception as error:
            shapes = ", ".join(f"{each.dtype} {list(each.shape)}" for each in inputs)
            raise ValueError(
                f"the model cannot take a batch of {len(targets)} samples ({shapes}): "
                f"{_first_line(error)}; change the model or the samples."
            ) from error
        if objective.loss is None:
            _check_outputs(outputs, targets, num_classes)
        loss = _loss(objective, outputs, targets)
        loss.backward()
        objective.measure(outputs, targets)
        if optimizer is not None:
            _check_optimizer(optimizer, module)


def is_random(module: nn.Module, samples: Samples) -> bool:
    """Return whether the outputs of a model in training depend on the seed, as with dropout."""
    found = []
    for seed in range(2):
        with _on_few_samples(module, samples, seed) as (inputs, _), torch.no_grad():
            outputs = tree_leaves(module(*inputs))
            found.append([each.clone() for each in outputs if isinstance(each, Tensor)])
    return not all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@contextmanager
def _on_few_samples(
    module: nn.Module, samples: Samples, seed: int = 0
) -> Iterator[tuple[tuple[Tensor, ...], Tensor]]:
    """Let a model train on a batch for a while, which leaves nothing behind."""
    device = samples.device
    index = torch.arange(max(2, len(samples)), device=device).remainder(len(samples))
    weights, buffers = state_of(module)
    weights, buffers = weights.to(device, samples.dtype), buffers.to(device)
    with seeded_generators(seed, device), lent(module, weights, buffers):
        module.train()
        yield samples.inputs(index), samples.targets[index]


def _check_outputs(outputs: Any, targets: Tensor, num_classes: int | None) -> None:
    """Refuse outputs that the default loss cannot compare with the targets."""
    if not isinstance(outputs, Tensor):
        raise ValueError(  # noqa: TRY004  (what a function returns is a value)
            f"the model must return a tensor, got {type(outputs).__name__}; pass loss= for other "
            "outputs."
        )
    if num_classes is None:
        if outputs.shape != targets.shape:
            raise ValueError(
                f"the outputs of the model must have the shape of the targets, "
                f"{list(targets.shape)}, got {list(outputs.shape)}; change one of them, or pass "
                "loss=."
            )
        return
    is_last = outputs.shape[:-1] == targets.shape
    if outputs.dim() > 2 and is_last and outputs.shape[2:] == targets.shape[1:]:
        raise ValueError(
            f"the outputs {list(outputs.shape)} may have the classes as axis 1 or as the last one; "
            "pass loss= to settle it, or change the shape."
        )
    logits, _ = as_classes(outputs, targets)
    if class_axis(outputs, targets) is None:
        raise ValueError(
            f"the model must return one number per class for every target, "
            f"{[*targets.shape, num_classes]}, got {list(outputs.shape)}; change the model, or "
            "pass loss=."
        )
    if logits.shape[1] < num_classes:
        raise ValueError(
            f"the targets have {num_classes} classes, and the model has outputs for "
            f"{logits.shape[1]}; give it {num_classes}."
        )


def _loss(objective: Objective, outputs: Any, targets: Tensor) -> Tensor:
    try:
        loss: Any = objective(outputs, targets)
    except Exception as error:
        raise ValueError(f"the loss failed on a batch: {_first_line(error)}.") from error
    if not isinstance(loss, Tensor) or loss.numel() != 1 or loss.dim() > 0:
        found = f"the shape {list(loss.shape)}" if isinstance(loss, Tensor) else repr(loss)
        raise ValueError(f"the loss must return one number (a tensor without axes), got {found}.")
    if not loss.requires_grad:
        raise ValueError(
            "the loss does not depend on the parameters of the model; compute it from its outputs."
        )
    return loss


def _check_optimizer(optimizer: MakeOptimizer, model: nn.Module) -> None:
    try:
        made = check_optimizer(optimizer, model)
    except (TypeError, ValueError) as error:
        raise ValueError(str(error)) from error
    except Exception as error:
        raise ValueError(f"optimizer(parameters) failed: {_first_line(error)}.") from error
    try:
        made.step()
    except Exception as error:
        raise ValueError(f"the optimiser cannot take a step: {_first_line(error)}.") from error


def _first_line(error: Exception) -> str:
    text = next(iter(str(error).splitlines()), "").rstrip(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
