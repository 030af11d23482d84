"""How the clients of a model train: the fastest way that is plain PyTorch's up to rounding."""

from collections.abc import Callable
from typing import Any

from torch import nn

from outvote.errors import check_choice
from outvote.training.cores import CoresTrainer
from outvote.training.known_layers import NotAcceptedError
from outvote.training.objective import Objective
from outvote.training.samples import Samples
from outvote.training.sequential import MakeOptimizer, SequentialTrainer, check_optimizer
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
