"""How the clients of a model train: the fastest of three ways that the model allows."""

import copy
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from outvote.errors import check_choice
from outvote.ops.precision import products_in
from outvote.training.batches import Batches
from outvote.training.local_sgd import LocalSGD
from outvote.training.objective import Objective
from outvote.training.samples import ArraySamples, Samples
from outvote.training.sequential import FlatModel, MakeOptimizer, SequentialTrainer
from outvote.training.stacked_model import StackedModel
from outvote.training.stacked_trainer import StackedTrainer
from outvote.training.trainer import ClientTask, Trainer
from outvote.training.vmap_trainer import VmapTrainer, prefers_products

TRAINERS = ("auto", "stacked", "vmap", "sequential")
# Both sides of the comparison are computed in float64.
TOLERANCE = 1e-9
# Some models compute in float32 whatever they are given.
FLOAT32_TOLERANCE = 1e-4
# Models with more parameters are compared after one step only.
MANY_PARAMETERS = 1_000_000
NUM_COMPARED = 4


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
    for one of them. A model that draws from global generators or changes its attributes in its
    forward pass always trains one client after the other: each starts from the same attributes,
    with generators of its own seed.

    A parameter that the loss does not depend on gets no weight decay, as in torch.
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
        found: StackedTrainer | VmapTrainer | str = sequential.reason
        if not found:
            found = job.stacked() if way == "stacked" else job.vmapped(sequential)
        if not isinstance(found, str):
            found.reason = "; ".join([*reasons, *filter(None, [found.reason])])
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
            trial = found.trial
        except (RuntimeError, TypeError, IndexError, AttributeError) as error:
            raise ValueError(
                "the model and the loss must take the training samples and their targets, got "
                f"{type(error).__name__}: {_first_line(error)}"
            ) from error
        found.reason = _RANDOM if trial.random else ""
        if trial.changed and not found.reason:
            names = ", ".join(trial.changed[:3])
            found.reason = f"the model changes attributes in its forward pass ({names})"
        return found

    def vmapped(self, sequential: SequentialTrainer) -> VmapTrainer | str:
        """Return the trainer by vmap, or why there is none."""
        reason = _unlike_torch(self.module)
        if reason:
            return reason
        unused = sequential.trial.unused
        # Some operations of torch refuse the memory layout of products.
        for has_products in dict.fromkeys([prefers_products(self.samples.device), False]):
            try:
                found = VmapTrainer(
                    self.module,
                    self.samples,
                    self.objective,
                    self.optimizer,
                    self.precision,
                    has_products=has_products,
                    unused=unused,
                )
                found.trial()
                is_same = _Comparison(self, has_products, unused).is_same()
            except TypeError as error:
                reason = _first_line(error).partition(";")[0]
            except Exception as error:  # noqa: BLE001  (any failure of the model under vmap)
                reason = f"vmap cannot run it ({_first_line(error)})"
            else:
                if is_same:
                    return found
                reason = _OTHER
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


class _Comparison:
    """Vmap beside plain PyTorch: two models, on a few samples of their own."""

    def __init__(self, job: _Job, has_products: bool, unused: list[str]) -> None:
        self.job, self.has_products, self.unused = job, has_products, unused
        size = sum(parameter.numel() for parameter in job.module.parameters())
        self.num_steps = 1 if size > MANY_PARAMETERS else 2

    def is_same(self) -> bool:
        """Return whether both take the same steps."""
        if self.job.optimizer is not None and not self._steps_are_same():
            return False
        try:
            return self._is_same_in(torch.float64)
        except _NotPossibleError:
            return self._is_same_in(self.job.samples.dtype)

    def _is_same_in(self, dtype: torch.dtype) -> bool:
        job, few = self.job, self._few(dtype)
        weights, buffers = self._start(few)
        plain = SequentialTrainer(job.module, few, job.objective, _sgd)
        try:
            expected = plain.train(weights, buffers, self._tasks(), _STEPS, 0.1)
        except Exception as error:
            raise _NotPossibleError(f"it does not compute in {dtype}") from error
        other = self._vmapped(few, _sgd)
        found = other.train(weights, buffers, self._tasks(), _STEPS, 0.1)
        is_exact = plain.trial.dtypes.isdisjoint(_NARROW)
        tolerance = TOLERANCE if is_exact else FLOAT32_TOLERANCE
        return (
            _is_close(found.gradients, expected.gradients, tolerance)
            and _is_close(found.buffers, expected.buffers, tolerance)
            and self._has_same_outputs(other, few, (weights, buffers), tolerance)
        )

    def _few(self, dtype: torch.dtype) -> Samples:
        """Return samples from all parts of the data set."""
        samples, num = self.job.samples, 2 * self.num_steps * NUM_COMPARED
        index = torch.arange(num, device=samples.device) * (len(samples) - 1) // max(1, num - 1)
        device = samples.device if samples.device.type in ("cpu", "cuda") else torch.device("cpu")
        return ArraySamples(
            samples.inputs(index), samples.targets[index], device=device, dtype=dtype
        )

    def _tasks(self) -> list[ClientTask]:
        index = torch.arange(2 * self.num_steps * NUM_COMPARED).view(-1, 2, NUM_COMPARED)
        sizes = [NUM_COMPARED] * self.num_steps
        return [ClientTask(k, Batches(index[:, k], sizes), seed=k) for k in range(2)]

    def _start(self, few: Samples) -> tuple[Tensor, Tensor]:
        """Return the weights and buffers of two models that differ a little."""
        module = self.job.module
        row = nn.utils.parameters_to_vector(module.parameters()).detach()
        row = row.to(few.device, few.dtype)
        none = row.new_empty(0, dtype=torch.float64)
        parts = [b.flatten().to(few.device, torch.float64) for b in module.buffers()]
        return torch.stack([row, 1.01 * row]), torch.cat([none, *parts]).repeat(2, 1)

    def _vmapped(self, few: Samples, optimizer: MakeOptimizer | None) -> VmapTrainer:
        return VmapTrainer(
            self.job.module,
            few,
            self.job.objective,
            optimizer,
            has_products=self.has_products,
            unused=self.unused,
        )

    def _has_same_outputs(
        self, other: VmapTrainer, few: Samples, start: tuple[Tensor, Tensor], tolerance: float
    ) -> bool:
        """Return whether models that are evaluated have the same outputs."""
        inputs = few.inputs(torch.arange(NUM_COMPARED, device=few.device))
        found = tree_leaves(other.outputs(*start, inputs))
        model = FlatModel(self.job.module, few.dtype, few.device)
        for k, (weights, buffers) in enumerate(zip(*start, strict=True)):
            model.load(weights, buffers)
            with torch.no_grad(), products_in("float32", few.device):
                expected = tree_leaves(model.module.eval()(*inputs))
            for mine, own in zip(found, expected, strict=True):
                if isinstance(own, Tensor) and not _is_close(mine[k], own, tolerance):
                    return False
        return True

    def _steps_are_same(self) -> bool:
        """Return whether the optimiser takes the same steps along drawn gradients.

        Those of the model may be tiny and differ by their rounding errors, which Adam makes large.
        """
        job, few = self.job, self._few(torch.float64)
        weights, _ = self._start(few)
        generator = torch.Generator(weights.device).manual_seed(0)
        drawn = torch.empty(self.num_steps, *weights.shape, dtype=weights.dtype, device=few.device)
        drawn.normal_(generator=generator)
        is_unused = [
            torch.full((p.numel(),), name in self.unused)
            for name, p in job.module.named_parameters()
        ]
        fixed = torch.cat(is_unused).to(weights.device)
        plain = SequentialTrainer(job.module, few, job.objective, job.optimizer)
        expected = plain.optimizer_steps(weights, drawn) - weights
        found = self._vmapped(few, job.optimizer).optimizer_steps(weights, drawn) - weights
        expected[:, fixed] = 0
        return _is_close(found, expected, TOLERANCE)


class _NotPossibleError(Exception):
    """The model does not compute in float64."""


def _is_close(found: Tensor, expected: Tensor, tolerance: float) -> bool:
    """Return whether all differences are small beside the largest number."""
    if found.shape != expected.shape:
        return False
    if not expected.numel() or torch.equal(found, expected):
        return True
    found, expected = found.double(), expected.double()
    largest = float(expected.nan_to_num(0, 0, 0).abs().max())
    return bool(
        torch.allclose(found, expected, rtol=tolerance, atol=tolerance * largest, equal_nan=True)
    )


def _sgd(parameters: Iterable[nn.Parameter]) -> Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.5, weight_decay=0.01)


def _unlike_torch(module: nn.Module) -> str:
    """Return which settings of layers vmap leaves out without an error."""
    for part in module.modules():
        if isinstance(part, nn.Embedding | nn.EmbeddingBag):
            if part.max_norm is not None:
                return f"{_OTHER} (max_norm of {type(part).__name__})"
            if part.scale_grad_by_freq:
                return f"{_OTHER} (scale_grad_by_freq of {type(part).__name__})"
    return ""


_STEPS = LocalSGD(learning_rate=0.1, max_norm=None)
_NARROW = {torch.float32, torch.bfloat16, torch.float16}
_OTHER = "vmap gives other results than plain PyTorch"
_RANDOM = "the model draws random numbers in its forward pass, other than by layers of dropout"


def _two(samples: Samples) -> Tensor:
    return torch.arange(2, device=samples.device).remainder(len(samples))


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
