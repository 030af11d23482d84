"""How the clients of a model train: the fastest of three ways that the model allows."""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from outvote.errors import check_choice
from outvote.training.objective import Objective
from outvote.training.samples import Samples
from outvote.training.sequential import MakeOptimizer, SequentialTrainer
from outvote.training.stacked_model import StackedModel
from outvote.training.stacked_trainer import StackedTrainer
from outvote.training.trainer import Trainer
from outvote.training.vmap_trainer import VmapTrainer

TRAINERS = ("auto", "stacked", "vmap", "sequential")
# Both sides of the comparison are computed in float64.
TOLERANCE = 1e-9


def choose_trainer(
    module: nn.Module,
    samples: Samples,
    objective: Objective,
    optimizer: MakeOptimizer | None = None,
    precision: str = "float32",
    name: str = "auto",
) -> Trainer:
    """Return the trainer of a model; its `name` is that of the way, its `reason` why it was chosen.

    On a CPU clients train one after the other. On a GPU all train at once: in a hand-written
    program where all layers are known to it, else by vmap, else one after the other. `name` asks
    for one of them.
    """
    check_choice("trainer", name, TRAINERS)
    if samples.device.type == "cpu" and precision == "bfloat16":
        raise ValueError("precision bfloat16 is for GPUs, got a CPU; set float32.")
    job = _Job(module, samples, objective, optimizer, precision)
    sequential = job.sequential()
    if name == "sequential" or (name == "auto" and samples.device.type == "cpu"):
        return sequential
    ways = ("stacked", "vmap") if name == "auto" else (name,)
    reasons: list[str] = []
    for way in ways:
        found = job.stacked() if way == "stacked" else job.vmapped(sequential)
        if not isinstance(found, str):
            found.reason = "; ".join(reasons)
            return found
        reasons.append(found)
    if name != "auto":
        raise ValueError(f"trainer {name} cannot train this model: {reasons[0]}; set auto.")
    # The first reason is only why the fastest way is not possible.
    sequential.reason = reasons[-1]
    return sequential


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    """What is to be trained."""

    module: nn.Module
    samples: Samples
    objective: Objective
    optimizer: MakeOptimizer | None
    precision: str

    def sequential(self) -> SequentialTrainer:
        """Return the trainer that every model can have; refuse a model that does not fit."""
        found = SequentialTrainer(
            self.module, self.samples, self.objective, self.optimizer, self.precision
        )
        try:
            is_random = found.is_random
        except (RuntimeError, TypeError, IndexError, AttributeError) as error:
            raise ValueError(
                "the model and the loss must take the training samples and their targets, got "
                f"{type(error).__name__}: {_first_line(error)}"
            ) from error
        found.reason = _RANDOM if is_random else ""
        return found

    def vmapped(self, sequential: SequentialTrainer) -> VmapTrainer | str:
        """Return the trainer by vmap, or why there is none."""
        if sequential.is_random:
            return _RANDOM
        reason = ""
        # Some operations of torch refuse the memory layout of products.
        for has_products in (True, False):
            try:
                found = VmapTrainer(
                    self.module,
                    self.samples,
                    self.objective,
                    self.optimizer,
                    self.precision,
                    has_products=has_products,
                )
                found.trial()
            except Exception as error:  # noqa: BLE001  (any failure of the model under vmap)
                reason = f"vmap cannot run it ({_first_line(error)})"
            else:
                return found
        return reason

    def stacked(self) -> StackedTrainer | str:
        """Return the hand-stacked trainer, or why there is none."""
        reason = self._not_default()
        if reason:
            return reason
        try:
            found = StackedTrainer(self.module, self.samples, self.precision)
        except TypeError as error:
            return f"the fast path {_first_line(error).partition(';')[0].rstrip('.')}"
        return found if self._is_same(found.model) else "the fast path gives other outputs"

    def _not_default(self) -> str:
        """Return what the fast path does not know, apart from layers."""
        parameters = list(self.module.named_parameters(remove_duplicate=False))
        inputs = self.samples.inputs(_two(self.samples))
        if self.optimizer is not None:
            return "the fast path knows no optimiser but local SGD"
        if self.objective.has_test_loss or self.samples.targets.dim() != 1:
            return "the fast path knows no loss but cross entropy with one class per sample"
        if not all(parameter.requires_grad for _, parameter in parameters):
            return "the fast path knows no frozen parameters"
        if len({id(parameter) for _, parameter in parameters}) < len(parameters):
            return "the fast path knows no tied parameters"
        if len(inputs) != 1 or not inputs[0].is_floating_point():
            return "the fast path takes one array of floating-point samples"
        return ""

    @torch.no_grad()
    def _is_same(self, model: StackedModel) -> bool:
        """Return whether the stacked model has the outputs of the module, for two samples."""
        plain = copy.deepcopy(self.module).to("cpu", torch.float64).eval()
        weights = nn.utils.parameters_to_vector(plain.parameters()).unsqueeze(0)
        none = torch.empty(0, dtype=torch.float64)
        buffers = torch.cat([none, *(b.flatten().double() for b in plain.buffers())]).unsqueeze(0)
        index = _two(self.samples)
        batch = self.samples.batch(index).to("cpu", torch.float64)
        expected = plain(self.samples.inputs(index)[0].to("cpu", torch.float64))
        try:
            found = model.forward(
                model.views(model.pack(weights)),
                batch.unsqueeze(0),
                buffers=[slot.read(buffers) for slot in model.buffer_slots],
            )[0]
        except (RuntimeError, IndexError):
            return False
        return found.shape == expected.shape and bool(
            torch.allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE)
        )


_RANDOM = "the model draws random numbers in its forward pass, other than by layers of dropout"


def _two(samples: Samples) -> Tensor:
    return torch.arange(2, device=samples.device).remainder(len(samples))


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
