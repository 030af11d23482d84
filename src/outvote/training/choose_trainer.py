"""How the clients of a model train: the fastest of three ways that the model allows."""

import torch
from torch import nn

from outvote.errors import check_choice
from outvote.training.objective import Objective
from outvote.training.samples import Samples
from outvote.training.sequential import MakeOptimizer, SequentialTrainer
from outvote.training.stacked_trainer import StackedTrainer
from outvote.training.trainer import Trainer

TRAINERS = ("auto", "stacked", "vmap", "sequential")


def choose_trainer(
    module: nn.Module,
    samples: Samples,
    objective: Objective,
    optimizer: MakeOptimizer | None = None,
    precision: str = "float32",
    name: str = "auto",
) -> Trainer:
    """Return the trainer of a model: on a CPU one client after the other, on a GPU all at once."""
    check_choice("trainer", name, TRAINERS)
    if samples.device.type == "cpu" and precision == "bfloat16":
        raise ValueError("precision bfloat16 is for GPUs, got a CPU; set float32.")
    is_on_cpu = samples.device == torch.device("cpu")
    if name == "sequential" or (name == "auto" and is_on_cpu):
        return SequentialTrainer(module, samples, objective, optimizer)
    return StackedTrainer(module, samples, precision)
