"""Clients of any network trained side by side, by torch.func."""

import inspect
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
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
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from outvote.errors import check_choice
from outvote.ops.process import products_in
from outvote.ops.sgd import TINY, take_step
from outvote.seeding import seeded_generators, states_outside_torch
from outvote.training.batches import Batches
from outvote.training.dropout import Masks
from outvote.training.gpu_memory import how_many_fit, in_chunks
from outvote.training.known_layers import NotAcceptedError, check_no_hooks
from outvote.training.local_sgd import LocalSGD
from outvote.training.objective import Objective, Score, Strata
from outvote.training.samples import Samples
from outvote.training.sequential import (
    EVALUATED_AT_ONCE,
    MakeOptimizer,
    check_optimizer,
    copy_of,
    scale_rates,
    state_of,
)
from outvote.training.stacked_model import ALIGNED
from outvote.training.stacked_trainer import PRECISIONS
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
    """Trains the clients of all runs side by side, for any network that vmap can run.

    The graph of a call is that of every model in it, since vmap refuses control flow by values. A
    call in which a parameter has no gradient is an error, so that none takes a step that plain
    PyTorch does not take. The network's own parameters are NaN: what does not come from
    `functional_call` cannot stay unseen.
    """

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
    ) -> None:
        """Take the network, the training samples, the loss, and what makes a client's optimiser.

        Without `optimizer`, clients train by local SGD. `precision` is that of the products;
        "float32" means the precision of the samples, with TF32 off. `has_products` computes
        convolutions as batched products, else as torch does; None: what is faster on the device,
        if the network runs that way. Refuse a network that vmap cannot run.
        """
        check_choice("precision", precision, PRECISIONS)
        check_no_hooks(module)
        if optimizer is not None:
            _check_elementwise(optimizer, module)
        self.samples = samples
        self.objective = objective or Objective()
        self.optimizer = optimizer
        self.precision = precision
        self.reason = ""
        self._num_models: int | None = None
        if has_products is None and samples.device.type == "cuda":
            try:
                self._take(module, has_products=True)
            except NotAcceptedError:  # Some operations refuse the memory layout of products.
                self._take(module, has_products=False)
        else:
            self._take(module, has_products=bool(has_products))

    def _take(self, module: nn.Module, *, has_products: bool) -> None:
        """Copy a network, and try the copy."""
        try:
            self.module = copy_of(module).to(self.samples.device, self.samples.dtype)
        except Exception as error:
            raise NotAcceptedError(f"it cannot be copied ({_first_line(error)})") from error
        start = state_of(self.module)
        self.masks = Masks(self.module)
        self.trained = [p for p in self.module.parameters() if p.requires_grad]
        """What the caller's optimiser is made of."""
        for part in self.module.modules():
            if type(part) is nn.Embedding and _has_padding_alone(part):
                part.forward = _padded(part)  # type: ignore[method-assign, assignment]
        if self.precision == "bfloat16":
            _normalise_in_float32(self.module)
        transposed = use_products(self.module) if has_products else set()
        self.layout = Layout(self.module, transposed)
        with torch.no_grad():
            for own in (*self.module.parameters(), *self.module.buffers()):
                if own.is_floating_point():
                    own.fill_(math.nan)
        try:
            self._try(*start)
        except NotAcceptedError:
            raise
        except Exception as error:
            raise NotAcceptedError(f"vmap cannot run it ({_first_line(error)})") from error

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
        try:
            _, fitted = in_chunks(lambda k: work(order[k], learning_rate), len(order), size)
        except NotAcceptedError as error:
            text = f"{error}, as that of the first did; set trainer='sequential'."
            raise RuntimeError(text) from error
        if fitted < size:
            self._num_models = fitted
        return LocalUpdates(
            gradients=gradients, losses=losses, buffers=after, num_samples=count_samples(tasks)
        )

    def _try(self, weights: Tensor, buffers: Tensor) -> None:
        """Train and evaluate two models on a few samples; refuse what vmap does otherwise."""
        index = torch.arange(FEW_SAMPLES).remainder(len(self.samples)).expand(1, -1)
        task = ClientTask(0, Batches(index, [FEW_SAMPLES]))
        weights, buffers = weights.expand(2, -1), buffers.expand(2, -1)
        with seeded_generators(0, self.samples.device), _OtherGradients():
            before = states_outside_torch()
            chunk = _Chunk(self, weights, buffers, [task, task])
            chunk.train(LocalSGD(), 0.0)
            self.evaluate(weights, buffers, _Few(self.samples, FEW_SAMPLES))
            if states_outside_torch() != before:
                raise NotAcceptedError("it draws from a generator of Python or NumPy")
        if not chunk.losses.isfinite().all():
            raise NotAcceptedError(
                "a loss is not finite: it may use parameters that are no attributes of their layers"
            )

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
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of every model on its own batch, and the buffers after it."""

        def loss(
            own: dict[str, Tensor],
            state: dict[str, Tensor],
            given: tuple[Tensor, ...],
            wanted: Tensor,
        ) -> tuple[Tensor, dict[str, Tensor]]:
            outputs, now = self._call(own, state, given)
            return self.objective(outputs, wanted), now

        return vmap(loss)(parameters, buffers, inputs, targets)

    def _call(
        self,
        parameters: dict[str, Tensor],
        buffers: dict[str, Tensor],
        inputs: tuple[Tensor, ...],
    ) -> tuple[Any, dict[str, Tensor]]:
        """Run one model; return its outputs, and its buffers afterwards."""
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

        with products_in(self.precision, weights.device), _forms_for_vmap(weights.device):
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
        outputs, _ = vmap(self._call, (0, 0, None))(parameters, buffers, inputs)
        num_runs = len(next(iter(parameters.values())))
        return torch.stack(
            [
                self.objective.measure(
                    tree_map(lambda values, k=run: values[k], outputs), targets, tally(run, index)
                )
                for run in range(num_runs)
            ]
        )


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


def _has_padding_alone(layer: nn.Embedding) -> bool:
    others = layer.max_norm is not None or layer.scale_grad_by_freq or layer.sparse
    return layer.padding_idx is not None and not others


def _padded(layer: nn.Embedding) -> Callable[[Tensor], Tensor]:
    """Return an embedding whose padding gets no gradient from it; vmap leaves this out."""
    assert layer.padding_idx is not None
    padding = layer.padding_idx

    def forward(index: Tensor) -> Tensor:
        found = F.embedding(index, layer.weight)
        is_padding = torch.eq(index, padding).unsqueeze(-1)
        return torch.where(is_padding, found.detach(), found)

    return forward


@contextmanager
def _forms_for_vmap(device: torch.device) -> Iterator[None]:
    """Leave out the fused forms of attention that vmap does not know; do not warn of slow ones."""
    saved = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with (
            sdpa_kernel(SDPBackend.MATH) if device.type == "cpu" else nullcontext(),
            warnings.catch_warnings(),
        ):
            warnings.filterwarnings("ignore", "There is a performance drop")
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(saved)


class _OtherGradients(TorchFunctionMode):
    """Refuses what vmap computes otherwise than torch, and without an error."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Look at calls of embeddings: vmap leaves their settings out of the gradient."""
        named = kwargs or {}
        if func in (F.embedding, F.embedding_bag):
            given = inspect.signature(func).bind(*args, **named).arguments
            for setting in ("padding_idx", "max_norm", "scale_grad_by_freq", "sparse"):
                if given.get(setting) not in (None, False):
                    raise NotAcceptedError(f"vmap leaves out {setting} of an embedding")
        return func(*args, **named)


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
        self.generators = [
            torch.Generator(self.device).manual_seed(task.seed)
            for task in (tasks if trainer.masks.is_needed else ())
        ]
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
        with products_in(self.trainer.precision, device), _forms_for_vmap(device):
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
        inputs, targets = self._batch(group, rows)
        packed = (self.weights if self.copy is None else self.copy)[rows]
        parameters = {name: values.detach() for name, values in self.layout.views(packed).items()}
        slots = [slot for slot in self.layout.slots if not slot.is_frozen]
        leaves = [parameters[slot.name].requires_grad_() for slot in slots]
        buffers = {name: values[rows] for name, values in self.buffers.items()}
        with torch.enable_grad():
            losses, now = self.trainer.losses(parameters, buffers, inputs, targets)
            found: tuple[Tensor | None, ...]
            found = torch.autograd.grad(losses.sum(), leaves, allow_unused=True)
        gradients = self.step_gradients[: len(group.models)]
        for slot, gradient in zip(slots, found, strict=True):
            if gradient is None:
                raise NotAcceptedError(f"the loss of a batch does not depend on {slot.name}")
            slot.view(gradients).copy_(gradient)
        for name, values in now.items():
            self.buffers[name][rows] = values.detach()
        self.losses[rows] += losses.detach().double()
        return gradients

    def _batch(self, group: "_Group", rows: slice | Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        """Return the arguments and the targets of some models."""
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
        if self.generators:
            self.trainer.masks.generators = [self.generators[model] for model in group.models]
        return inputs, targets

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
        _put_stacked(self.optimizer, stacked)
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


def _check_elementwise(optimizer: MakeOptimizer, module: nn.Module) -> None:
    """Refuse an optimiser that may treat the models of a stack otherwise than each alone."""
    made = check_optimizer(optimizer, module)
    own = {id(parameter) for parameter in module.parameters()}
    if type(made) not in ELEMENTWISE:
        raise NotAcceptedError(f"the optimiser {type(made).__name__} is not one of torch's own")
    if made._optimizer_step_pre_hooks or made._optimizer_step_post_hooks:
        raise NotAcceptedError("the optimiser has hooks")
    if any(id(each) not in own for group in made.param_groups for each in group["params"]):
        raise NotAcceptedError("the optimiser has other parameters than the model's")


def _put_stacked(optimizer: Optimizer, stacked: dict[nn.Parameter, nn.Parameter]) -> None:
    """Replace the parameters of an optimiser, which may already have states, by stacked ones."""
    for group in optimizer.param_groups:
        group["params"] = [stacked[own] for own in group["params"]]
    states: dict[Any, Any] = dict(optimizer.state)
    optimizer.state.clear()
    for own, state in states.items():
        optimizer.state[stacked[own]] = {
            name: _repeated(value, own, stacked[own]) if name != "step" else value
            for name, value in state.items()
        }


def _repeated(value: Any, own: nn.Parameter, stacked: nn.Parameter) -> Any:
    """Return a state of one model for all models, if it has one number per number of its own."""
    if not isinstance(value, Tensor) or value.shape != own.shape:
        return value
    return torch.empty_like(stacked, dtype=value.dtype).copy_(value.expand_as(stacked)).detach()


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
