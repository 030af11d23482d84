"""Clients of any network trained side by side, by torch.func."""

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim import Optimizer
from torch.utils._pytree import tree_map

from outvote.errors import check_choice
from outvote.ops.precision import products_in
from outvote.ops.sgd import TINY, take_step
from outvote.training.batches import Batches
from outvote.training.dropout import Masks, step_key
from outvote.training.gpu_memory import how_many_fit, in_chunks
from outvote.training.local_sgd import LocalSGD
from outvote.training.objective import Objective, Score
from outvote.training.samples import Samples
from outvote.training.sequential import (
    EVALUATED_AT_ONCE,
    MakeOptimizer,
    check_optimizer,
    scale_rates,
)
from outvote.training.stacked_model import ALIGNED
from outvote.training.stacked_trainer import PRECISIONS
from outvote.training.strata import Strata
from outvote.training.trainer import ClientTask, LocalUpdates, count_samples, keep_idle
from outvote.training.vmap_convolution import use_products

# Optimisers that treat every number on its own, with one count of steps: one of them on the stacked
# parameters of many models does what one for each model does.
ELEMENTWISE: tuple[type[Optimizer], ...] = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.RMSprop,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
    torch.optim.Adamax,
    torch.optim.ASGD,
    torch.optim.Rprop,
)
# On a CPU: how many numbers the models trained at once have.
VALUES_ON_CPU = 1 << 25
FEW_SAMPLES = 4


class VmapTrainer:
    """Trains the clients of all runs side by side, for any network that vmap can run."""

    name = "vmap"

    def __init__(
        self,
        module: nn.Module,
        samples: Samples,
        objective: Objective | None = None,
        optimizer: MakeOptimizer | None = None,
        precision: str = "float32",
        *,
        has_products: bool | None = None,
        unused: Iterable[str] = (),
    ) -> None:
        """Take the network, the training samples, the loss, and what makes a client's optimiser.

        Without `optimizer`, clients train by local SGD. `precision` is that of the products;
        "float32" means the precision of the samples, with TF32 off. `has_products` computes
        convolutions as batched products, else as torch does; None: what is faster on the device.
        `unused` are the parameters that the loss does not depend on: as in torch they take no
        step, not even one of weight decay.
        """
        check_choice("precision", precision, PRECISIONS)
        self.module = copy.deepcopy(module).to(samples.device, samples.dtype)
        self.samples = samples
        self.objective = objective or Objective()
        self.optimizer = optimizer
        self.precision = precision
        self.reason = ""
        self.masks = Masks(self.module)
        self.trained = [p for p in self.module.parameters() if p.requires_grad]
        """What the caller's optimiser is made of."""
        for name in unused:
            self.module.get_parameter(name).requires_grad_(False)
        for part in self.module.modules():
            if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.momentum is None:
                part.forward = _cumulative(part, part.forward)  # type: ignore[method-assign, assignment]
            if type(part) is nn.Embedding and part.padding_idx is not None:
                part.forward = _padded(part, part.forward)  # type: ignore[method-assign, assignment]
        if precision == "bfloat16":
            _normalise_in_float32(self.module)
        if has_products is None:
            has_products = prefers_products(samples.device)
        transposed = use_products(self.module) if has_products else set()
        self.layout = Layout(self.module, transposed)
        self._num_models: int | None = None
        if optimizer is not None:
            made = check_optimizer(optimizer, module)
            if type(made) not in ELEMENTWISE:
                raise TypeError(
                    f"vmap does not know the optimiser {type(made).__name__}; known are "
                    f"{', '.join(kind.__name__ for kind in ELEMENTWISE)}."
                )

    def train(
        self,
        weights: Tensor,
        buffers: Tensor,
        tasks: Sequence[ClientTask],
        training: LocalSGD,
        learning_rate: float,
    ) -> LocalUpdates:
        """Train one model per task, from ``weights [runs, dim]``, as many at once as fit."""
        # Tasks with most steps first: the models that still train are then a prefix.
        lengths = [(task.batches.num_steps, task.batches.num_samples) for task in tasks]
        gradients = weights.new_empty(len(tasks), weights.shape[1])
        after = buffers.new_empty(len(tasks), buffers.shape[1])
        losses = torch.zeros(len(tasks), dtype=torch.float64)
        trained = keep_idle(buffers, tasks, gradients, after)
        order = sorted(trained, key=lambda k: lengths[k], reverse=True)

        def work(numbers: list[int], rate: float) -> None:
            chunk = _Chunk(self, weights, buffers, [tasks[k] for k in numbers])
            chunk.train(training, rate)
            gradients[numbers] = chunk.gradients()
            after[numbers] = chunk.write_buffers()
            losses[numbers] = chunk.mean_losses()

        longest = order[:1]
        if self._num_models is None and longest:
            self._num_models = self._how_many(lambda: work(longest, 0.0), weights)
        size = self._num_models or max(1, len(order))
        with warnings.catch_warnings():
            # The trial reports it.
            warnings.filterwarnings("ignore", "There is a performance drop")
            _, fitted = in_chunks(lambda part: work(order[part], learning_rate), len(order), size)
        if fitted < size:
            self._num_models = fitted
        return LocalUpdates(
            gradients=gradients, losses=losses, buffers=after, num_samples=count_samples(tasks)
        )

    def trial(self) -> None:
        """Train and evaluate two models on a few samples; raise what torch raises.

        Operations that vmap runs model by model become part of `reason`.
        """
        weights = nn.utils.parameters_to_vector(self.module.parameters()).detach().expand(2, -1)
        none = weights.new_empty(0, dtype=torch.float64)
        parts = [buffer.flatten().double() for buffer in self.module.buffers()]
        buffers = torch.cat([none, *parts]).expand(2, -1)
        index = torch.arange(FEW_SAMPLES).remainder(len(self.samples)).expand(1, -1)
        task = ClientTask(0, Batches(index, [FEW_SAMPLES]))
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            _Chunk(self, weights, buffers, [task, task]).train(LocalSGD(), 0.0)
            few = _Few(self.samples, FEW_SAMPLES)
            self.evaluate(weights, buffers, few)
        slow = {str(each.message).partition("rule for ")[2].partition(".")[0] for each in heard}
        if slow - {""}:
            self.reason = f"vmap runs {', '.join(sorted(slow - {''}))} model by model"

    @torch.no_grad()
    def optimizer_steps(self, weights: Tensor, gradients: Tensor) -> Tensor:
        """Return ``weights [models, dim]`` after steps of the caller's optimiser.

        It takes them along given ``gradients [steps, models, dim]``.
        """
        none = weights.new_zeros(len(weights), sum(b.numel() for b in self.module.buffers()))
        nothing = Batches(torch.empty(0, 1, dtype=torch.int64), [])
        tasks = [ClientTask(run, nothing) for run in range(len(weights))]
        training = LocalSGD(max_norm=None)
        chunk = _Chunk(self, weights, none, tasks)
        optimizer = _Optimizer(chunk, training, training.learning_rate_at(1))
        for each in gradients:
            optimizer.gradients.copy_(self.layout.pack(each))
            optimizer.step(len(weights))
        return self.layout.unpack(chunk.weights)

    def outputs(self, weights: Tensor, buffers: Tensor, inputs: tuple[Tensor, ...]) -> Any:
        """Return the outputs of some models for the same inputs, as they are evaluated."""
        self.module.eval()
        parameters = self.layout.views(self.layout.pack(weights))
        state = self.layout.read_buffers(buffers)
        device = weights.device
        with (
            torch.no_grad(),
            products_in(self.precision, device),
            _attention_for_vmap(device),
            warnings.catch_warnings(),
        ):
            warnings.filterwarnings("ignore", "There is a performance drop")
            return vmap(self._call, (0, 0, None, None))(parameters, state, inputs, None)[0]

    def _how_many(self, work: Callable[[], object], weights: Tensor) -> int:
        if weights.device.type == "cuda":
            work()  # The first call also allocates what the libraries of the GPU keep.
        fits = how_many_fit(lambda _: work(), weights.device, several=1)
        return max(1, VALUES_ON_CPU // weights.shape[1]) if fits is None else fits

    def losses(
        self,
        parameters: dict[str, Tensor],
        buffers: dict[str, Tensor],
        inputs: tuple[Tensor, ...],
        targets: Tensor,
        keys: Tensor | None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of every model on its own batch, and the buffers after it."""

        def loss(
            own: dict[str, Tensor],
            state: dict[str, Tensor],
            given: tuple[Tensor, ...],
            wanted: Tensor,
            key: Tensor | None,
        ) -> tuple[Tensor, dict[str, Tensor]]:
            outputs, now = self._call(own, state, given, key)
            return self.objective(outputs, wanted), now

        in_dims = (0, 0, 0, 0, None if keys is None else 0)
        found, now = vmap(loss, in_dims)(parameters, buffers, inputs, targets, keys)
        return found.flatten(), now

    def _call(
        self,
        parameters: dict[str, Tensor],
        buffers: dict[str, Tensor],
        inputs: tuple[Tensor, ...],
        key: Tensor | None,
    ) -> tuple[Any, dict[str, Tensor]]:
        """Run one model; return its outputs, and its buffers afterwards."""
        if key is not None:
            self.masks.begin(key)
        values = {**parameters, **buffers}
        if self.precision == "bfloat16":
            inputs = tuple(_narrowed(each) for each in inputs)
        outputs = functional_call(self.module, values, inputs)
        if self.precision == "bfloat16":
            outputs = tree_map(_widened, outputs)
        return outputs, {name: values[name] for name in buffers}

    def narrow(self, packed: Tensor) -> Tensor:
        """Return packed weights in the precision of the products."""
        return packed.to(torch.bfloat16) if self.precision == "bfloat16" else packed

    @torch.no_grad()
    def evaluate(
        self, weights: Tensor, buffers: Tensor, samples: Samples, strata: Strata | None = None
    ) -> list[Score]:
        """Evaluate the model of each run on some samples; with `strata`, count by stratum too."""
        self.module.eval()
        parts = torch.arange(len(samples), device=samples.device).split(EVALUATED_AT_ONCE)

        def total(runs: slice, indices: Sequence[Tensor]) -> Tensor:
            parameters = self.layout.views(self.narrow(self.layout.pack(weights[runs])))
            statistics = self.layout.read_buffers(buffers[runs])
            num_runs = len(weights[runs])
            none = weights.new_empty(num_runs, 0, dtype=torch.float64)
            counts = none if strata is None else strata.zeros(num_runs)

            def tally(run: int, index: Tensor) -> Callable[[Tensor], object] | None:
                return strata and partial(strata.add_correct, counts[run], index)

            found = [
                self._measure(parameters, statistics, samples, index, tally) for index in indices
            ]
            return torch.cat([torch.stack(found).sum(dim=0), counts], dim=1).cpu()

        with products_in(self.precision, weights.device), _attention_for_vmap(weights.device):
            fits = self._how_many(lambda: total(slice(0, 1), parts[:1]), weights)
            totals, _ = in_chunks(lambda runs: total(runs, parts), len(weights), fits)
        return [self.objective.score(row) for row in torch.cat(totals)]

    def _measure(
        self,
        parameters: dict[str, Tensor],
        buffers: dict[str, Tensor],
        samples: Samples,
        index: Tensor,
        tally: Callable[[int, Tensor], Callable[[Tensor], object] | None],
    ) -> Tensor:
        """Return what `Objective.measure` returns for some samples, one row per run."""
        targets = samples.targets[index]
        inputs = samples.inputs(index)
        outputs, _ = vmap(self._call, (0, 0, None, None))(parameters, buffers, inputs, None)
        num_runs = len(next(iter(parameters.values())))
        return torch.stack(
            [
                self.objective.measure(
                    tree_map(lambda values, k=run: values[k], outputs), targets, tally(run, index)
                )
                for run in range(num_runs)
            ]
        )


def prefers_products(device: torch.device) -> bool:
    """Return whether convolutions are faster as batched products than as torch's grouped ones."""
    return device.type == "cuda"


def _narrowed(values: Tensor) -> Tensor:
    return values.bfloat16() if values.is_floating_point() else values


def _widened(values: Any) -> Any:
    is_narrow = isinstance(values, Tensor) and values.dtype == torch.bfloat16
    return values.float() if is_narrow else values


def _normalise_in_float32(module: nn.Module) -> None:
    """Let batch normalisation work in the precision of its running statistics."""
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._NormBase):
            part.register_forward_pre_hook(lambda _, inputs: tuple(v.float() for v in inputs))
            part.register_forward_hook(lambda _, inputs, output: output.bfloat16())


def _cumulative(layer: Any, original: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return batch normalisation with the mean of all batches as its statistics.

    torch reads the number of batches as a Python number, which differs from model to model.
    """

    def forward(values: Tensor) -> Tensor:
        if not layer.training or layer.running_mean is None:
            return original(values)
        mean, variance = torch.zeros_like(layer.running_mean), torch.ones_like(layer.running_var)
        weight, bias = layer.weight, layer.bias
        found = F.batch_norm(values, mean, variance, weight, bias, True, 1.0, layer.eps)
        layer.num_batches_tracked.add_(1)
        share = (1 / layer.num_batches_tracked.double()).to(mean.dtype)
        layer.running_mean.lerp_(mean, share)
        layer.running_var.lerp_(variance, share)
        return found

    return forward


def _padded(
    layer: nn.Embedding, original: Callable[[Tensor], Tensor]
) -> Callable[[Tensor], Tensor]:
    """Return an embedding whose padding gets no gradient from it; vmap leaves this out."""
    assert layer.padding_idx is not None
    padding = layer.padding_idx

    def forward(index: Tensor) -> Tensor:
        found = original(index)
        is_padding = torch.eq(index, padding).unsqueeze(-1)
        return torch.where(is_padding, found.detach(), found)

    return forward


@contextmanager
def _attention_for_vmap(device: torch.device) -> Iterator[None]:
    """Leave out the fused forms of attention that vmap does not know."""
    saved = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH) if device.type == "cpu" else nullcontext():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(saved)


@final
class _Few:
    """The first of some samples."""

    def __init__(self, samples: Samples, num_samples: int) -> None:
        self.samples = samples
        self.targets = samples.targets[:num_samples]
        self.device, self.dtype = samples.device, samples.dtype

    def __len__(self) -> int:
        return len(self.targets)

    def inputs(self, index: Tensor, moves: Tensor | None = None) -> tuple[Tensor, ...]:
        return self.samples.inputs(index, moves)

    def batch(self, index: Tensor, moves: Tensor | None = None) -> Tensor:
        return self.samples.batch(index, moves)


@dataclass(frozen=True, slots=True)
class _Slot:
    """The position and layout of a parameter."""

    name: str
    start: int
    """In the vector of a model."""
    packed_start: int
    shape: torch.Size
    is_frozen: bool
    is_transposed: bool
    """Whether it is packed as ``[height, width, channels, filters]``: the layout of products."""

    def read(self, vectors: Tensor) -> Tensor:
        """Return it from ``vectors [models, dim]``."""
        return vectors[:, self.start : self.start + self.shape.numel()].view(-1, *self.shape)

    def view(self, packed: Tensor) -> Tensor:
        """Return a view of it in ``packed [models, packed_dim]``, in the shape that it has."""
        values = packed[:, self.packed_start : self.packed_start + self.shape.numel()]
        if not self.is_transposed:
            return values.view(-1, *self.shape)
        filters, channels, high, wide = self.shape
        return values.view(-1, high, wide, channels, filters).permute(0, 4, 3, 1, 2)


class Layout:
    """The parameters and buffers of a network as vectors, and packed for training.

    Packed, the parameters that train come first, and each one starts at an aligned address.
    """

    def __init__(self, module: nn.Module, transposed: set[int]) -> None:
        """Read a network; `transposed` are the ids of weights in the layout of products."""
        self.slots: list[_Slot] = []
        self.dim = self.packed_dim = 0
        starts = {}
        for name, parameter in module.named_parameters():
            starts[name] = self.dim
            self.dim += parameter.numel()
        named = sorted(module.named_parameters(), key=lambda pair: not pair[1].requires_grad)
        for name, parameter in named:
            is_frozen = not parameter.requires_grad
            self.slots.append(
                _Slot(
                    name,
                    starts[name],
                    self.packed_dim,
                    parameter.shape,
                    is_frozen,
                    id(parameter) in transposed,
                )
            )
            self.packed_dim += -(-parameter.numel() // ALIGNED) * ALIGNED
        frozen = [slot.packed_start for slot in self.slots if slot.is_frozen]
        self.num_training = min(frozen, default=self.packed_dim)
        """How many packed numbers train."""
        self.buffers = [(name, b.shape, b.dtype) for name, b in module.named_buffers()]

    def pack(self, vectors: Tensor) -> Tensor:
        """Copy the parameters of ``vectors [models, dim]`` into ``[models, packed_dim]``."""
        packed = vectors.new_zeros(len(vectors), self.packed_dim)
        for slot in self.slots:
            slot.view(packed).copy_(slot.read(vectors))
        return packed

    def views(self, packed: Tensor) -> dict[str, Tensor]:
        """Return one view per packed parameter."""
        return {slot.name: slot.view(packed) for slot in self.slots}

    def unpack(self, packed: Tensor) -> Tensor:
        """Return packed parameters as vectors ``[models, dim]``."""
        vectors = packed.new_empty(len(packed), self.dim)
        for slot in self.slots:
            slot.read(vectors).copy_(slot.view(packed))
        return vectors

    def read_buffers(self, vectors: Tensor) -> dict[str, Tensor]:
        """Return the buffers of ``vectors [models, buffers]``, in their own types."""
        parts = vectors.split([shape.numel() for _, shape, _ in self.buffers], dim=1)
        return {
            name: part.to(dtype, copy=True).view(-1, *shape)
            for (name, shape, dtype), part in zip(self.buffers, parts, strict=True)
        }


class _Chunk:
    """Some tasks, the longest first, and the models that they train."""

    def __init__(
        self, trainer: VmapTrainer, weights: Tensor, buffers: Tensor, tasks: Sequence[ClientTask]
    ) -> None:
        self.trainer = trainer
        self.layout = trainer.layout
        self.tasks = tasks
        self.device = weights.device
        self.runs = torch.tensor([task.run for task in tasks], device=self.device)
        self.before = weights
        self.weights = self.layout.pack(weights[self.runs])
        narrow = trainer.narrow(self.weights)
        self.copy = None if narrow is self.weights else narrow
        self.start: Tensor | None = None
        """With a proximal term: the weights before the first step."""
        self.step_gradients = torch.zeros_like(narrow)
        self.buffers = self.layout.read_buffers(buffers[self.runs])
        self.losses = torch.zeros(len(tasks), dtype=torch.float64, device=self.device)
        self._plan()

    def _plan(self) -> None:
        tasks, device = self.tasks, self.device
        batches = [task.batches for task in tasks]
        self.num_steps = batches[0].num_steps
        width = max(each.index.shape[1] for each in batches)
        index = torch.zeros(len(tasks), self.num_steps, width, dtype=torch.int64)
        for row, each in zip(index, batches, strict=True):
            row[: each.num_steps, : each.index.shape[1]] = each.index
        self.index = index.to(device)
        self.moves = None
        if batches[0].moves is not None:
            moves = torch.zeros(*index.shape, 3, dtype=torch.int8)
            for row, each in zip(moves, batches, strict=True):
                if each.moves is not None:
                    row[: each.num_steps, : each.moves.shape[1]] = each.moves
            self.moves = moves.to(device)
        known = [task.label_map for task in tasks if task.label_map is not None]
        self.label_maps = None
        if known:
            same = torch.arange(len(known[0]))
            maps = [same if task.label_map is None else task.label_map.cpu() for task in tasks]
            self.label_maps = torch.stack(maps).to(device)

    def train(self, training: LocalSGD, learning_rate: float) -> None:
        """Take all steps."""
        self.trainer.module.train()
        device = self.device
        if training.proximal > 0:
            self.start = self.weights.clone()
        with products_in(self.trainer.precision, device), _attention_for_vmap(device):
            if self.trainer.optimizer is None:
                self._train_by_sgd(training, learning_rate)
            else:
                self._train_by_optimizer(training, learning_rate)

    def _train_by_sgd(self, training: LocalSGD, learning_rate: float) -> None:
        """Take the steps of local SGD."""
        velocities = torch.zeros_like(self.weights)
        for group in self._groups():
            rows = _as_rows(group.models, self.device)
            gradients = self._backward(group, rows)
            self._take_step(group.models, gradients, velocities, training, learning_rate)

    def _take_step(
        self,
        models: list[int],
        gradients: Tensor,
        velocities: Tensor,
        training: LocalSGD,
        learning_rate: float,
    ) -> None:
        # Frozen parameters are packed last, and take no step.
        num = self.layout.num_training
        start = 0
        for rows in _runs(models):
            end = start + rows.stop - rows.start
            self.add_proximal(rows, gradients[start:end, :num], training.proximal)
            take_step(
                self.weights[rows, :num],
                gradients[start:end, :num],
                velocities[rows, :num],
                None if self.copy is None else self.copy[rows, :num],
                training,
                learning_rate,
            )
            start = end

    @torch.no_grad()
    def add_proximal(self, rows: slice, gradients: Tensor, factor: float) -> None:
        """Add the gradient of FedProx's term: how far the weights are from the first ones."""
        if self.start is not None:
            far = self.weights[rows] - self.start[rows]
            gradients.add_(far[:, : gradients.shape[1]], alpha=factor)

    def _groups(self) -> Iterator["_Group"]:
        """Return all steps, those with full batches before those with smaller ones.

        A model whose next batch is not full waits until that is so for all models: the calls for
        smaller batches are then as few as there are sizes in an epoch.
        """
        sizes = [task.batches.sizes for task in self.tasks]
        full = max((size for own in sizes for size in own), default=0)
        done = [0] * len(sizes)
        while any(step < len(own) for step, own in zip(done, sizes, strict=True)):
            by_size: dict[int, list[int]] = {}
            for model, step in enumerate(done):
                if step < len(sizes[model]):
                    by_size.setdefault(sizes[model][step], []).append(model)
            if full in by_size:
                by_size = {full: by_size[full]}
            for size, models in sorted(by_size.items()):
                yield _Group(models, [done[model] for model in models], size)
                for model in models:
                    done[model] += 1

    def _train_by_optimizer(self, training: LocalSGD, learning_rate: float) -> None:
        """Take the steps of the caller's optimiser, which counts them for all models at once."""
        optimizer = _Optimizer(self, training, learning_rate)
        for step in range(self.num_steps):
            sizes = [t.batches.sizes[step] for t in self.tasks if t.batches.num_steps > step]
            for size in sorted(set(sizes)):
                models = [model for model, own in enumerate(sizes) if own == size]
                rows = _as_rows(models, self.device)
                gradients = self._backward(_Group(models, [step] * len(models), size), rows)
                optimizer.gradients[rows] = gradients.to(optimizer.gradients.dtype)
            optimizer.step(len(sizes))
        optimizer.end()

    def _backward(self, group: "_Group", rows: slice | Tensor) -> Tensor:
        """Return the gradients of some models in one step, packed."""
        inputs, targets, keys = self._batch(group, rows)
        packed = (self.weights if self.copy is None else self.copy)[rows]
        parameters = {name: values.detach() for name, values in self.layout.views(packed).items()}
        slots = [slot for slot in self.layout.slots if not slot.is_frozen]
        leaves = [parameters[slot.name].requires_grad_() for slot in slots]
        buffers = {name: values[rows] for name, values in self.buffers.items()}
        with torch.enable_grad():
            losses, now = self.trainer.losses(parameters, buffers, inputs, targets, keys)
            # A parameter that the loss does not depend on has a gradient of 0.
            found = torch.autograd.grad(
                losses.sum(), leaves, allow_unused=True, materialize_grads=True
            )
        gradients = self.step_gradients[: len(group.models)]
        for slot, gradient in zip(slots, found, strict=True):
            slot.view(gradients).copy_(gradient)
        for name, values in now.items():
            self.buffers[name][rows] = values.detach()
        self.losses[rows] += losses.detach().double()
        return gradients

    def _batch(
        self, group: "_Group", rows: slice | Tensor
    ) -> tuple[tuple[Tensor, ...], Tensor, Tensor | None]:
        """Return the arguments, the targets and the keys of the masks of some models."""
        samples = self.trainer.samples
        steps = torch.tensor(group.steps, device=self.device)
        at = torch.tensor(group.models, device=self.device), steps, slice(0, group.size)
        index = self.index[at]
        targets = samples.targets[index]
        if self.label_maps is not None:
            flat = targets.flatten(1)
            mapped = self.label_maps[rows].gather(1, flat.clamp(min=0))
            targets = torch.where(flat >= 0, mapped, flat).view_as(targets)
        inputs = samples.inputs(index, None if self.moves is None else self.moves[at])
        chosen = [self.tasks[model] for model in group.models]
        for k, task in enumerate(chosen):
            if task.poison is not None:
                inputs[0][k], targets[k] = task.poison(inputs[0][k], targets[k])
        if not self.trainer.masks.is_needed:
            return inputs, targets, None
        keys = [step_key(t.seed, step) for t, step in zip(chosen, group.steps, strict=True)]
        return inputs, targets, torch.tensor(keys, device=self.device)

    def gradients(self) -> Tensor:
        """Return the weights before training minus those after, ``[tasks, dim]``."""
        return self.before[self.runs].sub_(self.layout.unpack(self.weights))

    def write_buffers(self) -> Tensor:
        """Return the buffers as vectors of float64."""
        none = self.losses.new_empty(len(self.tasks), 0)
        parts = [v.reshape(len(none), -1).double() for v in self.buffers.values()]
        return torch.cat([none, *parts], dim=1)

    def mean_losses(self) -> Tensor:
        """Return the mean loss over the steps of each task."""
        steps = torch.tensor([task.batches.num_steps for task in self.tasks], dtype=torch.float64)
        return self.losses.cpu() / steps.clamp(min=1)


@dataclass(frozen=True, slots=True)
class _Group:
    """Models that take a step together: their next batches have one size."""

    models: list[int]
    steps: list[int]
    """Which of its steps each model takes."""
    size: int


def _runs(models: list[int]) -> list[slice]:
    """Return models, in ascending order, as slices: their views need no copy."""
    starts = [k for k, model in enumerate(models) if k == 0 or models[k - 1] != model - 1]
    ends = [*starts[1:], len(models)]
    return [slice(models[a], models[b - 1] + 1) for a, b in zip(starts, ends, strict=True)]


def _as_rows(models: list[int], device: torch.device) -> slice | Tensor:
    runs = _runs(models)
    return runs[0] if len(runs) == 1 else torch.tensor(models, device=device)


class _Optimizer:
    """Steps of the caller's optimiser on the stacked parameters of all models.

    It is made from the parameters of one model, which have the shapes that a caller may make groups
    by. Then stacked ones replace them.
    """

    def __init__(self, chunk: _Chunk, training: LocalSGD, learning_rate: float) -> None:
        assert chunk.trainer.optimizer is not None
        self.chunk, self.training = chunk, training
        slots = [slot for slot in chunk.layout.slots if not slot.is_frozen]
        self.gradients = torch.zeros_like(chunk.weights)
        parameters = [nn.Parameter(slot.view(chunk.weights)) for slot in slots]
        for slot, parameter in zip(slots, parameters, strict=True):
            parameter.grad = slot.view(self.gradients)
        self.optimizer = chunk.trainer.optimizer(chunk.trainer.trained)
        plain = dict(chunk.trainer.module.named_parameters())
        stacked = {plain[s.name]: own for s, own in zip(slots, parameters, strict=True)}
        _put_stacked(self.optimizer, stacked, set(chunk.trainer.trained))
        scale_rates(self.optimizer, training, learning_rate)
        self.num_active = len(chunk.tasks)
        self.done: list[tuple[slice, Tensor]] = []
        """The weights of models that trained to their end; the optimiser changes them further."""

    @torch.no_grad()
    def step(self, active: int) -> None:
        """Take one step in the models that still train."""
        chunk = self.chunk
        self._keep(active)
        gradients = self.gradients[:active]
        chunk.add_proximal(slice(active), gradients, self.training.proximal)
        if self.training.max_norm is not None:
            norms = torch.linalg.vector_norm(gradients, dim=1, keepdim=True)
            gradients.mul_((self.training.max_norm / (norms + TINY)).clamp(max=1.0))
        self.optimizer.step()
        if chunk.copy is not None:
            chunk.copy.copy_(chunk.weights)

    def _keep(self, active: int) -> None:
        if active < self.num_active:
            rows = slice(active, self.num_active)
            self.done.append((rows, self.chunk.weights[rows].clone()))
            self.gradients[rows] = 0
            self.num_active = active

    @torch.no_grad()
    def end(self) -> None:
        """Give the models that ended earlier the weights that they had then."""
        for rows, weights in self.done:
            self.chunk.weights[rows] = weights


def _put_stacked(
    optimizer: Optimizer, stacked: dict[nn.Parameter, nn.Parameter], known: set[nn.Parameter]
) -> None:
    """Replace the parameters of an optimiser, which may already have states, by stacked ones.

    Those without a stacked one are left out: the loss does not depend on them.
    """
    for group in optimizer.param_groups:
        if not known.issuperset(group["params"]):
            raise TypeError("vmap does not know an optimiser of other parameters than the model's.")
        group["params"] = [stacked[own] for own in group["params"] if own in stacked]
    states: dict[Any, Any] = dict(optimizer.state)
    optimizer.state.clear()
    for own, state in states.items():
        if own in stacked:
            optimizer.state[stacked[own]] = {
                name: _repeated(value, own, stacked[own]) if name != "step" else value
                for name, value in state.items()
            }


def _repeated(value: Any, own: nn.Parameter, stacked: nn.Parameter) -> Any:
    """Return a state of one model for all models, if it has one number per number of its own."""
    if not isinstance(value, Tensor) or value.shape != own.shape:
        return value
    return torch.empty_like(stacked, dtype=value.dtype).copy_(value.expand_as(stacked)).detach()
