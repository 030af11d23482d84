"""Clients trained one by one, each on one core: the fastest way without a GPU."""

import copy
import inspect
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from random import Random
from threading import Lock, local
from typing import Any, TypeVar, final
from weakref import finalize

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from outvote import forked
from outvote.errors import OutvoteWarning
from outvote.ops.precision import products_in
from outvote.ops.threads import mapped, may_share
from outvote.training.dropout import (
    OUTSIDE_TORCH,
    Masks,
    RandomCalls,
    kept_generators,
    seed_generators,
    step_key,
)
from outvote.training.layer_chain import ALIGNMENT, LayerChain, make_chain
from outvote.training.local_sgd import TINY, LocalSGD
from outvote.training.objective import Objective, Score
from outvote.training.samples import ArraySamples, ByteImages, Samples
from outvote.training.strata import Strata
from outvote.training.trainer import ClientTask, LocalUpdates, count_samples, mapped_labels
from outvote.training.workers import MOST_BYTES, Sizes, Workers, WorkersEnded

EVALUATED_AT_ONCE = 512
NUM_TRIALS = 5
SECONDS_BEFORE_WORKERS = 0.25
"""Processes are forked when a trainer has trained for so long: short jobs end sooner without."""
BYTES_AT_ONCE = 2 << 20
"""Batches are made at once up to this size, which fits into a cache."""
MOST_FAILURES = 3
"""After so many failures of its processes a trainer has no more of them."""
Result = TypeVar("Result")
MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]


# What every module has: its parameters, buffers, parts and hooks, and whether it trains.
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))


@final
class Attributes:
    """The attributes of a network and its parts that are no parameters, buffers or parts.

    A model may change them in its forward pass, such as a count of its calls.
    """

    def __init__(self, module: nn.Module) -> None:
        """Copy them."""
        self._parts = dict(module.named_modules())
        kept = [*self._parts.values(), *module.parameters(), *module.buffers()]
        # Attributes that refer to a part of the model still do so in a copy of them.
        self._kept = {id(each): each for each in kept}
        self._values = self._copy({name: _own(part) for name, part in self._parts.items()})

    def _copy(self, values: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        return copy.deepcopy(values, dict(self._kept))

    def restore(self) -> None:
        """Give them the values that they had."""
        values = self._copy(self._values)
        for name, part in self._parts.items():
            for added in _own(part).keys() - values[name].keys():
                delattr(part, added)
            part.__dict__.update(values[name])

    def changed(self) -> list[str]:
        """Return the names of those that have other values now."""
        found = []
        for name, part in self._parts.items():
            before, now = self._values[name], _own(part)
            for key in before | now:
                if not (key in before and key in now and _is_same(before[key], now[key], 0)):
                    found.append(f"{name}.{key}" if name else key)
        return found


def _own(part: nn.Module) -> dict[str, Any]:
    if isinstance(part, torch.jit.ScriptModule):  # Its attributes are not those of Python.
        return {}
    return {key: value for key, value in vars(part).items() if key not in _OF_EVERY_MODULE}


_DEEPEST = 8


def _is_same(one: Any, other: Any, depth: int) -> bool:
    """Return whether two values are equal; objects are so if their attributes are."""
    if one is other or depth > _DEEPEST:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and one.device == other.device and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    first, second = _parts_of(one), _parts_of(other)
    if first is None:
        # Objects that are equal to none but themselves cannot be compared.
        kind: Any = type(one)
        return kind.__eq__ is object.__eq__ or bool(one == other or one != one)  # noqa: PLR0124  (NaN)
    return first.keys() == second.keys() and all(
        _is_same(first[key], second[key], depth + 1) for key in first
    )


def _parts_of(value: Any) -> Any:
    """Return what a value consists of, by name or position; None: it is compared as a whole."""
    if isinstance(value, dict):
        return value
    if isinstance(value, list | tuple | deque):
        return dict(enumerate(value))
    if isinstance(value, Random | torch.Generator | np.random.Generator):
        return {"state": _state_of(value)}
    if inspect.isroutine(value) or isinstance(value, type):
        return {}
    return getattr(value, "__dict__", None)


def _state_of(generator: Random | torch.Generator | np.random.Generator) -> Any:
    if isinstance(generator, Random):
        return generator.getstate()
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    return generator.bit_generator.state


class FlatModel:
    """A network whose parameters, and their gradients, are views of one vector each."""

    def __init__(
        self,
        module: nn.Module,
        dtype: torch.dtype,
        device: torch.device,
        *,
        unused: Iterable[str] = (),
        has_state: bool = False,
    ) -> None:
        """Copy a network.

        `unused` are the parameters that a loss may not depend on: they take no step where it does
        not, as in torch. With `has_state`, `load` also restores the attributes of the network.
        """
        # Scripted modules note how a copy was made, and their parameters would be no leaves.
        with torch.no_grad():
            self.module = copy.deepcopy(module).to(device, dtype)
        for own, parameter in zip(self.module.parameters(), module.parameters(), strict=True):
            own.requires_grad_(parameter.requires_grad)
        self.masks = Masks(self.module)
        parameters = list(self.module.parameters())
        self.weights = nn.utils.parameters_to_vector(parameters).detach().clone()
        self.gradient = torch.zeros_like(self.weights)
        self.frozen: list[slice] = []
        """Parameters that do not train."""
        start = 0
        for parameter in parameters:
            piece = slice(start, start + parameter.numel())
            parameter.data = self.weights[piece].view_as(parameter)
            parameter.grad = self.gradient[piece].view_as(parameter)
            if not parameter.requires_grad:
                self.frozen.append(piece)
            start += parameter.numel()
        self.velocity = torch.zeros_like(self.weights)
        self.start = self.weights
        self.chain: LayerChain | None = None
        """What computes a gradient without autograd, if the network is simple enough."""
        self._attributes = Attributes(self.module) if has_state else None
        self._watch(frozenset(unused))

    def _watch(self, unused: frozenset[str]) -> None:
        """Note which of some parameters get a gradient in a step."""
        self.watched: list[tuple[slice, nn.Parameter]] = []
        self._has_gradient: set[int] = set()
        start = 0
        for name, parameter in self.module.named_parameters():
            if name in unused and parameter.requires_grad:
                self.watched.append((slice(start, start + parameter.numel()), parameter))
                parameter.register_post_accumulate_grad_hook(
                    lambda own: self._has_gradient.add(id(own))
                )
            start += parameter.numel()

    @torch.no_grad()
    def load(self, weights: Tensor, buffers: Tensor) -> None:
        """Take the weights and running statistics of a model."""
        if self._attributes is not None:
            self._attributes.restore()
        self.weights.copy_(weights)
        self.start = weights
        self.velocity.zero_()
        start = 0
        for buffer in self.module.buffers():
            buffer.copy_(buffers[start : start + buffer.numel()].view_as(buffer))
            start += buffer.numel()

    def buffers(self) -> Tensor:
        """Return the running statistics as one vector."""
        parts = [buffer.flatten().double() for buffer in self.module.buffers()]
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.float64)

    def begin(self) -> None:
        """Begin a step: no parameter has a gradient."""
        self.gradient.zero_()
        self._has_gradient.clear()

    def without_gradient(self) -> list[tuple[slice, nn.Parameter]]:
        """Return the watched parameters that the loss of this step does not depend on."""
        return [pair for pair in self.watched if id(pair[1]) not in self._has_gradient]

    @torch.no_grad()
    def clip(self, training: LocalSGD) -> None:
        """Add the gradient of the proximal term, and clip the gradient."""
        if training.proximal > 0:
            self.gradient.add_(self.weights - self.start, alpha=training.proximal)
        if training.max_norm is not None:
            scale = training.max_norm / (self.gradient.norm() + TINY)
            self.gradient.mul_(scale.clamp(max=1.0))

    @torch.no_grad()
    def step(self, training: LocalSGD, learning_rate: float) -> None:
        """Take one step along the clipped gradient.

        As in torch, a parameter that the loss of the step does not depend on keeps its value:
        without a gradient there is no weight decay either.
        """
        gradient = self.gradient
        gradient.add_(self.weights, alpha=training.weight_decay)
        for piece in self.frozen:
            gradient[piece] = 0
        unused = [piece for piece, _ in self.without_gradient()]
        kept = [(self.weights[piece].clone(), self.velocity[piece].clone()) for piece in unused]
        self.velocity.mul_(training.momentum).add_(gradient)
        self.weights.sub_(self.velocity, alpha=learning_rate)
        for piece, (weights, velocity) in zip(unused, kept, strict=True):
            self.weights[piece], self.velocity[piece] = weights, velocity

    def step_by(self, optimizer: Optimizer) -> None:
        """Let an optimiser take a step; it does not see parameters without a gradient."""
        unused = [(parameter, parameter.grad) for _, parameter in self.without_gradient()]
        for parameter, _ in unused:
            parameter.grad = None
        optimizer.step()
        for parameter, gradient in unused:
            parameter.grad = gradient


@final
@dataclass(frozen=True, slots=True)
class Trial:
    """What a network and its loss do besides computing numbers from a batch."""

    random: list[str]
    """What draws from the global generators of torch, Python and NumPy."""
    changed: list[str]
    """The attributes that the forward pass changes."""
    unused: list[str]
    """The parameters that the loss does not depend on."""
    dtypes: set[torch.dtype]
    """The types of all results of operations."""


class SequentialTrainer:
    """Trains client after client."""

    name = "sequential"

    def __init__(
        self,
        module: nn.Module,
        samples: Samples,
        objective: Objective | None = None,
        optimizer: MakeOptimizer | None = None,
        precision: str = "float32",
    ) -> None:
        """Take the network, the training samples, the loss, and what makes a client's optimiser.

        Without `optimizer`, clients train by local SGD. `precision` is that of products on a GPU.
        """
        self.module = module
        self.samples = samples
        self.objective = objective or Objective()
        self.optimizer = optimizer
        self.precision = precision
        if optimizer is not None:
            check_optimizer(optimizer, module)
        self.reason = ""
        self._own = local()
        self._seconds = 0.0
        self._forked: Workers | None = None
        self._num_failures = 0
        self._is_free = Lock()

    def train(
        self,
        weights: Tensor,
        buffers: Tensor,
        tasks: Sequence[ClientTask],
        training: LocalSGD,
        learning_rate: float,
    ) -> LocalUpdates:
        """Train one model per task, from ``weights [runs, dim]``."""
        found = self._trained_by_workers(weights, buffers, tasks, training, learning_rate)
        if found is not None:
            return found
        began = time.perf_counter()
        gradients = weights.new_empty(len(tasks), weights.shape[1])
        after = buffers.new_empty(len(tasks), buffers.shape[1])
        losses = torch.empty(len(tasks), dtype=torch.float64)

        def work(number: int) -> None:
            task = tasks[number]
            losses[number] = self._train_one(
                task,
                weights[task.run],
                buffers[task.run],
                training,
                learning_rate,
                gradients[number],
                after[number],
            )

        # The longest tasks first: none of them is left for the end.
        order = sorted(range(len(tasks)), key=lambda k: -tasks[k].batches.num_samples)
        with self._products():
            if self.is_random:
                self._one_after_another(work, [task.seed for task in tasks])
            else:
                mapped(work, order, weights.device, on_one_core=True)
        self._seconds += time.perf_counter() - began
        return LocalUpdates(
            gradients=gradients, losses=losses, buffers=after, num_samples=count_samples(tasks)
        )

    def _train_one(
        self,
        task: ClientTask,
        weights: Tensor,
        buffers: Tensor,
        training: LocalSGD,
        learning_rate: float,
        gradient: Tensor,
        after: Tensor,
    ) -> float:
        """Train one client; fill its gradient and its buffers, return its loss."""
        model = self._model()
        model.load(weights, buffers)
        loss = self._train(model, task, training, learning_rate)
        torch.sub(weights, model.weights, out=gradient)
        after.copy_(model.buffers())
        return loss

    def _trained_by_workers(
        self,
        weights: Tensor,
        buffers: Tensor,
        tasks: Sequence[ClientTask],
        training: LocalSGD,
        learning_rate: float,
    ) -> LocalUpdates | None:
        """Train in forked processes; None: threads must do it, which gives the same bits.

        What fails in a process is repeated in threads: there an error is the model's own.
        """
        sizes = Sizes(len(weights), len(tasks), weights.shape[1], buffers.shape[1], weights.dtype)
        is_wanted = self._seconds >= SECONDS_BEFORE_WORKERS and self._num_failures < MOST_FAILURES
        if not (is_wanted and self._may_fork(tasks, sizes)) or not self._is_free.acquire(False):
            return None
        try:
            workers = self._workers(sizes.num_bytes)
            return workers.train(weights, buffers, tasks, training, learning_rate)
        except (WorkersEnded, OSError) as error:
            self._num_failures += 1
            self._forked = None
            if self._num_failures == MOST_FAILURES:
                warnings.warn(
                    f"clients train in threads from now on, more slowly and with the same results: "
                    f"processes failed {MOST_FAILURES} times ({error})",
                    OutvoteWarning,
                    stacklevel=2,
                )
            return None
        except BaseException:
            self._forked = None
            raise
        finally:
            self._is_free.release()

    def _may_fork(self, tasks: Sequence[ClientTask], sizes: Sizes) -> bool:
        """Return whether processes may train: no code of a user runs, whose effects would be lost.

        Fewer than two tasks, or very large networks, do not profit. Where there is a GPU, autograd
        has threads for it after the first backward pass, and does not work in a forked process.
        """
        return (
            forked.IS_POSSIBLE
            and not torch.cuda.is_available()
            and len(tasks) > 1
            and sizes.num_bytes <= MOST_BYTES
            and self.samples.device.type == "cpu"
            and isinstance(self.samples, ByteImages | ArraySamples)
            and may_share()
            and all(task.poison is None for task in tasks)
            and self._is_plain
            and not self.is_random
        )

    def _workers(self, num_bytes: int) -> Workers:
        num_workers = torch.get_num_threads()
        found = self._forked
        if found is None or found.num_workers != num_workers or found.num_bytes < num_bytes:
            if found is not None:
                found.close()
            found = self._forked = Workers(num_workers, num_bytes, self._train_one, self._warm_up)
            finalize(self, found.close)
        return found

    def _warm_up(self) -> None:
        """Train on a batch: a process that cannot do so is not used."""
        model = self._model()
        if model.chain is not None:
            (inputs,) = self.samples.inputs(self._two())
            model.chain.loss(inputs, self.samples.targets[self._two()])
            return
        with torch.enable_grad():
            self._trial_loss(model).backward()

    @property
    def is_random(self) -> bool:
        """Whether the network or the loss draws from the global generators."""
        return bool(self.trial.random)

    @cached_property
    def trial(self) -> Trial:
        """What the network and the loss did with two samples, in training and in evaluation.

        Other threads may draw from the generators of Python and NumPy meanwhile. Code of torch and
        of this library does not; that of users is tried again.
        """
        for _ in range(NUM_TRIALS):
            found = self._try_once()
            foreign = [name for name in found.random if name in OUTSIDE_TORCH]
            if foreign and self._is_known_code():
                return replace(found, random=[name for name in found.random if name not in foreign])
            if not foreign or len(foreign) < len(found.random):
                return found
        return found

    def _is_known_code(self) -> bool:
        """Return whether no code of a user runs in the forward pass and the loss."""
        kinds = {type(part).__module__.partition(".")[0] for part in self.module.modules()}
        return self.objective.loss is None and kinds <= {"torch", "outvote"}

    def _try_once(self) -> Trial:
        names = [name for name, _ in self.module.named_parameters()]
        model = FlatModel(self.module, self.samples.dtype, self.samples.device, unused=names)
        attributes, calls = Attributes(model.module), RandomCalls()
        unused: set[nn.Parameter] = set()
        # What already differs from a copy of itself cannot be compared.
        unclear = attributes.changed()
        with self._kept_generators(), self._products(), calls:
            with torch.enable_grad():
                loss = self._trial_loss(model)
                if loss.requires_grad:
                    loss.backward()
                    unused = {parameter for _, parameter in model.without_gradient()}
            changed = attributes.changed()
            with torch.no_grad():
                model.module.eval()(*self.samples.inputs(self._two()))
        return Trial(
            random=calls.names,
            changed=[
                name
                for name in dict.fromkeys([*changed, *attributes.changed()])
                if name not in unclear
            ],
            unused=[name for name, own in model.module.named_parameters() if own in unused],
            dtypes=calls.dtypes,
        )

    def _two(self) -> Tensor:
        return torch.zeros(2, dtype=torch.int64, device=self.samples.device)

    def _trial_loss(self, model: FlatModel) -> Tensor:
        model.module.train()
        index = self._two()
        model.masks.begin(index)
        outputs = model.module(*self.samples.inputs(index))
        loss: Any = self.objective(outputs, self.samples.targets[index])
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            got = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise ValueError(
                f"loss must return a tensor with one number for a batch, got {got}; take the mean."
            )
        return loss

    def _one_after_another(
        self, work: Callable[[int], Result], seeds: Sequence[int]
    ) -> list[Result]:
        """Work in one thread, with the global generators seeded for each client."""
        found = []
        with self._kept_generators():
            for number, seed in enumerate(seeds):
                seed_generators(seed)
                found.append(work(number))
        return found

    def _kept_generators(self) -> AbstractContextManager[None]:
        return kept_generators(self.samples.device)

    @torch.enable_grad()
    def _train(
        self, model: FlatModel, task: ClientTask, training: LocalSGD, learning_rate: float
    ) -> float:
        model.module.train()
        optimizer = self._optimizer(model, training, learning_rate)
        total = torch.zeros((), dtype=torch.float64, device=self.samples.device)
        for step, (targets, inputs) in enumerate(self._batches(task)):
            loss = self._loss(model, task, step, inputs, targets)
            model.clip(training)
            if optimizer is None:
                model.step(training, learning_rate)
            else:
                model.step_by(optimizer)
            total += loss.detach()
        return float(total) / max(1, task.batches.num_steps)

    def _loss(
        self,
        model: FlatModel,
        task: ClientTask,
        step: int,
        inputs: tuple[Tensor, ...],
        targets: Tensor,
    ) -> Tensor:
        """Return the loss of a batch; its gradient is that of the model."""
        if model.chain is not None and task.poison is None:
            return model.chain.loss(inputs[0], targets)
        model.begin()
        if model.masks.is_needed:
            key = torch.tensor(step_key(task.seed, step), device=self.samples.device)
            model.masks.begin(key)
        loss = self.objective(model.module(*inputs), targets)
        loss.backward()
        return loss

    def _batches(self, task: ClientTask) -> Iterator[tuple[Tensor, tuple[Tensor, ...]]]:
        """Return the targets and inputs of every step; small batches are made several at once."""
        batches = task.batches
        for steps in self._made_at_once(task):
            sizes = batches.sizes[steps]
            num = sum(sizes)
            moves = batches.moves
            moves = None if moves is None else moves[steps].flatten(0, 1)[:num]
            index = batches.index[steps].flatten()[:num].to(self.samples.device)
            targets = self.samples.targets[index]
            if task.label_map is not None:
                targets = mapped_labels(targets, task.label_map.to(targets.device))
            inputs = self.samples.inputs(index, moves)
            start = 0
            for size in sizes:
                end = start + size
                own, (first, *others) = targets[start:end], (each[start:end] for each in inputs)
                if task.poison is not None:
                    first, own = task.poison(first, own)
                yield own, (first, *others)
                start = end

    def _made_at_once(self, task: ClientTask) -> Iterator[slice]:
        """Return which steps have their batches made at once: only the last may be a smaller one.

        Code of users gets every batch alone, as it may change it in place.
        """
        full = task.batches.index.shape[1]
        most = 1 if task.poison is not None else self._num_at_once(full)
        start = 0
        for step, size in enumerate(task.batches.sizes):
            is_last = step + 1 == task.batches.num_steps
            if is_last or size < full or step + 1 - start == most:
                yield slice(start, step + 1)
                start = step + 1

    def _num_at_once(self, batch_size: int) -> int:
        """Return how many full batches are made at once.

        Each begins where a tensor of its own would, at a multiple of `ALIGNMENT` bytes: products
        may round by where their factors begin.
        """
        num_bytes = [batch_size * each for each in self._bytes_per_sample]
        if not self._is_plain or any(each % ALIGNMENT for each in num_bytes):
            return 1
        return max(1, BYTES_AT_ONCE // max(1, sum(num_bytes)))

    @cached_property
    def _bytes_per_sample(self) -> list[int]:
        """How large the inputs and the target of a sample are."""
        values = *self.samples.inputs(self._two()), self.samples.targets[self._two()]
        return [each[0].numel() * each.element_size() for each in values]

    @cached_property
    def _is_plain(self) -> bool:
        """Whether no code of a user runs while a client trains."""
        of_all = getattr(nn.modules.module, "_has_any_global_hook", bool)
        has_hooks = of_all() or any(map(_has_hooks, self.module.modules()))
        return self.optimizer is None and self._is_known_code() and not has_hooks

    def _optimizer(
        self, model: FlatModel, training: LocalSGD, learning_rate: float
    ) -> Optimizer | None:
        """Make a client's optimiser; its own learning rate follows the schedule of `training`."""
        if self.optimizer is None:
            return None
        made = self.optimizer([p for p in model.module.parameters() if p.requires_grad])
        scale_rates(made, training, learning_rate)
        return made

    @torch.no_grad()
    def optimizer_steps(self, weights: Tensor, gradients: Tensor) -> Tensor:
        """Return ``weights [models, dim]`` after steps of the caller's optimiser.

        It takes them along given ``gradients [steps, models, dim]``.
        """
        assert self.optimizer is not None
        found = []
        for row, own in zip(weights, gradients.unbind(dim=1), strict=True):
            model = FlatModel(self.module, self.samples.dtype, self.samples.device)
            model.weights.copy_(row)
            optimizer = self.optimizer([p for p in model.module.parameters() if p.requires_grad])
            for gradient in own:
                model.gradient.copy_(gradient)
                optimizer.step()
            found.append(model.weights)
        return torch.stack(found)

    def evaluate(
        self, weights: Tensor, buffers: Tensor, samples: Samples, strata: Strata | None = None
    ) -> list[Score]:
        """Evaluate the model of each run on some samples; with `strata`, count by stratum too."""

        def work(run: int) -> Score:
            # Each thread has its own gradient mode: it is set where the work is done.
            with torch.no_grad():
                model = self._model()
                model.load(weights[run], buffers[run])
                model.module.eval()
                total = torch.zeros(4, dtype=torch.float64, device=samples.device)
                counts = total[:0] if strata is None else strata.zeros()
                for index in torch.arange(len(samples)).split(EVALUATED_AT_ONCE):
                    outputs = model.module(*samples.inputs(index))
                    tally = strata and partial(strata.add_correct, counts, index)
                    total += self.objective.measure(outputs, samples.targets[index], tally)
                return self.objective.score(torch.cat([total, counts]))

        with self._products():
            if self.is_random:
                return self._one_after_another(work, [0] * len(weights))
            return mapped(work, range(len(weights)), weights.device, on_one_core=True)

    def _products(self) -> AbstractContextManager[None]:
        device = self.samples.device
        if device.type == "cpu":
            # A caller's autocast would train in bfloat16.
            return torch.autocast("cpu", enabled=False)
        return products_in(self.precision, device)

    def _model(self) -> FlatModel:
        model: FlatModel | None = getattr(self._own, "model", None)
        if model is None:
            model = self._own.model = FlatModel(
                self.module,
                self.samples.dtype,
                self.samples.device,
                unused=self.trial.unused,
                has_state=bool(self.trial.changed),
            )
            model.chain = self._chain(model.module)
        return model

    def _chain(self, module: nn.Module) -> LayerChain | None:
        """Return what computes gradients without autograd; None: autograd does."""
        inputs = self.samples.inputs(self._two())
        is_simple = self._is_plain and self.objective.is_cross_entropy and len(inputs) == 1
        if not is_simple or self.samples.device.type != "cpu":
            return None
        return make_chain(module, inputs[0], self.samples.targets[self._two()])


def _has_hooks(part: nn.Module) -> bool:
    """Return whether a user added code to a module: hooks, or another forward pass."""
    own = vars(part)
    is_hooked = any(own.get(name) for name in own if name.endswith("_hooks"))
    return is_hooked or "forward" in own


def scale_rates(optimizer: Optimizer, training: LocalSGD, learning_rate: float) -> None:
    """Scale an optimiser's own learning rates by that of the round relative to the first round."""
    first = training.learning_rate_at(1)
    if learning_rate != first and first > 0:
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * (learning_rate / first)


def check_optimizer(optimizer: MakeOptimizer, module: nn.Module) -> Optimizer:
    """Return the optimiser of a network; refuse one that evaluates the loss by itself."""
    made = optimizer([p for p in module.parameters() if p.requires_grad])
    if not isinstance(made, Optimizer):
        raise TypeError(
            f"optimizer must make a torch.optim.Optimizer, got {type(made).__name__}; pass for "
            "example lambda parameters: torch.optim.Adam(parameters, lr=0.001)."
        )
    closure = inspect.signature(type(made).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ValueError(
            f"optimizer must step from gradients alone, got {type(made).__name__}, which needs a "
            "closure; take for example Adam or SGD."
        )
    return made
