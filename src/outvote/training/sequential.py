"""Clients trained one by one, each on one core: the fastest way without a GPU."""

import copy
import inspect
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from threading import local
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from outvote.precision import products_in
from outvote.threads import mapped
from outvote.training.dropout import Masks, RandomCalls, step_key
from outvote.training.local_sgd import TINY, LocalSGD
from outvote.training.objective import Objective, Score
from outvote.training.samples import Samples
from outvote.training.trainer import ClientTask, LocalUpdates, count_samples, mapped_labels

EVALUATED_AT_ONCE = 512
MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]


class FlatModel:
    """A network whose parameters, and their gradients, are views of one vector each."""

    def __init__(self, module: nn.Module, dtype: torch.dtype, device: torch.device) -> None:
        """Copy a network."""
        self.module = copy.deepcopy(module).to(device, dtype)
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

    @torch.no_grad()
    def load(self, weights: Tensor, buffers: Tensor) -> None:
        """Take the weights and running statistics of a model."""
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
        """Take one step along the clipped gradient."""
        gradient = self.gradient
        gradient.add_(self.weights, alpha=training.weight_decay)
        for piece in self.frozen:
            gradient[piece] = 0
        self.velocity.mul_(training.momentum).add_(gradient)
        self.weights.sub_(self.velocity, alpha=learning_rate)


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
        self._is_random: bool | None = None
        self._own = local()

    def train(
        self,
        weights: Tensor,
        buffers: Tensor,
        tasks: Sequence[ClientTask],
        training: LocalSGD,
        learning_rate: float,
    ) -> LocalUpdates:
        """Train one model per task, from ``weights [runs, dim]``."""
        gradients = weights.new_empty(len(tasks), weights.shape[1])
        after = buffers.new_empty(len(tasks), buffers.shape[1])
        losses = torch.empty(len(tasks), dtype=torch.float64)

        def work(number: int) -> None:
            task, model = tasks[number], self._model()
            start = weights[task.run]
            model.load(start, buffers[task.run])
            losses[number] = self._train(model, task, training, learning_rate)
            torch.sub(start, model.weights, out=gradients[number])
            after[number] = model.buffers()

        # The longest tasks first: none of them is left for the end.
        order = sorted(range(len(tasks)), key=lambda k: -tasks[k].batches.num_samples)
        with self._products():
            if self.is_random:
                self._one_after_another(work, tasks)
            else:
                mapped(work, order, weights.device, on_one_core=True)
        return LocalUpdates(
            gradients=gradients, losses=losses, buffers=after, num_samples=count_samples(tasks)
        )

    @property
    def is_random(self) -> bool:
        """Whether the network or the loss draws from torch's own generators as it trains."""
        if self._is_random is None:
            self._is_random = bool(self.trial())
        return self._is_random

    def trial(self) -> list[str]:
        """Compute the loss of two samples; return the operations that draw random numbers."""
        model = FlatModel(self.module, self.samples.dtype, self.samples.device)
        model.module.train()
        index = torch.zeros(2, dtype=torch.int64, device=self.samples.device)
        model.masks.begin(index)
        calls = RandomCalls()
        with torch.no_grad(), self._kept_generators(), calls:
            outputs = model.module(*self.samples.inputs(index))
            loss: Any = self.objective(outputs, self.samples.targets[index])
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            got = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise ValueError(
                f"loss must return a tensor with one number for a batch, got {got}; take the mean."
            )
        return calls.names

    def _one_after_another(self, work: Callable[[int], None], tasks: Sequence[ClientTask]) -> None:
        """Train in one thread, with torch's own generators seeded for each client."""
        with self._kept_generators():
            for number, task in enumerate(tasks):
                torch.manual_seed(task.seed)  # noqa: TID251  (the model draws from it, restored)
                work(number)

    def _kept_generators(self) -> AbstractContextManager[None]:
        device = self.samples.device
        return torch.random.fork_rng([device] if device.type == "cuda" else [])

    @torch.enable_grad()
    def _train(
        self, model: FlatModel, task: ClientTask, training: LocalSGD, learning_rate: float
    ) -> float:
        model.module.train()
        optimizer = self._optimizer(model, training, learning_rate)
        total = torch.zeros((), dtype=torch.float64, device=self.samples.device)
        for step, size in enumerate(task.batches.sizes):
            index = task.batches.index[step, :size].to(self.samples.device)
            moves = None if task.batches.moves is None else task.batches.moves[step, :size]
            targets = self.samples.targets[index]
            if task.label_map is not None:
                targets = mapped_labels(targets, task.label_map.to(targets.device))
            first, *others = self.samples.inputs(index, moves)
            if task.poison is not None:
                first, targets = task.poison(first, targets)
            model.gradient.zero_()
            if model.masks.is_needed:
                model.masks.begin(torch.tensor(step_key(task.seed, step), device=index.device))
            loss = self.objective(model.module(first, *others), targets)
            loss.backward()
            model.clip(training)
            if optimizer is None:
                model.step(training, learning_rate)
            else:
                optimizer.step()
            total += loss.detach()
        return float(total) / max(1, task.batches.num_steps)

    def _optimizer(
        self, model: FlatModel, training: LocalSGD, learning_rate: float
    ) -> Optimizer | None:
        """Make a client's optimiser; its own learning rate follows the schedule of `training`."""
        if self.optimizer is None:
            return None
        made = self.optimizer([p for p in model.module.parameters() if p.requires_grad])
        scale_rates(made, training, learning_rate)
        return made

    def evaluate(self, weights: Tensor, buffers: Tensor, samples: Samples) -> list[Score]:
        """Evaluate the model of each run on some samples."""

        def work(run: int) -> Score:
            # Each thread has its own gradient mode: it is set where the work is done.
            with torch.no_grad():
                model = self._model()
                model.load(weights[run], buffers[run])
                model.module.eval()
                total = torch.zeros(4, dtype=torch.float64, device=samples.device)
                for index in torch.arange(len(samples)).split(EVALUATED_AT_ONCE):
                    outputs = model.module(*samples.inputs(index))
                    total += self.objective.measure(outputs, samples.targets[index])
                return self.objective.score(total)

        with self._products():
            return mapped(work, range(len(weights)), weights.device, on_one_core=True)

    def _products(self) -> AbstractContextManager[None]:
        device = self.samples.device
        return nullcontext() if device.type == "cpu" else products_in(self.precision, device)

    def _model(self) -> FlatModel:
        model: FlatModel | None = getattr(self._own, "model", None)
        if model is None:
            model = self._own.model = FlatModel(
                self.module, self.samples.dtype, self.samples.device
            )
        return model


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
