"""Clients trained one by one, each on one core: the fastest way without a GPU."""

import copy
from collections.abc import Callable, Iterable, Sequence
from threading import local

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from outvote.threads import mapped
from outvote.training.local_sgd import TINY, LocalSGD
from outvote.training.objective import Objective, Score
from outvote.training.samples import Samples
from outvote.training.trainer import ClientTask, LocalUpdates, count_samples, mapped_labels

EVALUATED_AT_ONCE = 512
MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]


class FlatModel:
    """A network whose parameters, and their gradients, are views of one vector each."""

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        """Copy a network."""
        self.module = copy.deepcopy(module).to(dtype)
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

    def __init__(
        self,
        module: nn.Module,
        samples: Samples,
        objective: Objective | None = None,
        optimizer: MakeOptimizer | None = None,
    ) -> None:
        """Take the network, the training samples, the loss, and what makes a client's optimiser.

        Without `optimizer`, clients train by local SGD.
        """
        self.module = module
        self.samples = samples
        self.objective = objective or Objective()
        self.optimizer = optimizer
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
        mapped(work, order, weights.device, on_one_core=True)
        return LocalUpdates(
            gradients=gradients, losses=losses, buffers=after, num_samples=count_samples(tasks)
        )

    @torch.enable_grad()
    def _train(
        self, model: FlatModel, task: ClientTask, training: LocalSGD, learning_rate: float
    ) -> float:
        model.module.train()
        optimizer = self._optimizer(model, training, learning_rate)
        total = torch.zeros((), dtype=torch.float64, device=self.samples.device)
        for step, size in enumerate(task.batches.sizes):
            index = task.batches.index[step, :size]
            moves = None if task.batches.moves is None else task.batches.moves[step, :size]
            targets = self.samples.targets[index]
            if task.label_map is not None:
                targets = mapped_labels(targets, task.label_map)
            first, *others = self.samples.inputs(index, moves)
            if task.poison is not None:
                first, targets = task.poison(first, targets)
            model.gradient.zero_()
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

        return mapped(work, range(len(weights)), weights.device, on_one_core=True)

    def _model(self) -> FlatModel:
        model: FlatModel | None = getattr(self._own, "model", None)
        if model is None:
            model = self._own.model = FlatModel(self.module, self.samples.dtype)
        return model


def scale_rates(optimizer: Optimizer, training: LocalSGD, learning_rate: float) -> None:
    """Scale an optimiser's own learning rates by that of the round relative to the first round."""
    first = training.learning_rate_at(1)
    if learning_rate != first and first > 0:
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * (learning_rate / first)
