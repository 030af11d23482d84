"""Clients trained one by one, each on one core: the fastest way without a GPU."""

import copy
from collections.abc import Sequence
from threading import local

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from outvote.threads import mapped
from outvote.training.local_sgd import TINY, LocalSGD
from outvote.training.samples import Samples
from outvote.training.trainer import ClientTask, LocalUpdates, count_samples

EVALUATED_AT_ONCE = 512


class FlatModel:
    """A network whose parameters, and their gradients, are views of one vector each."""

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        """Copy a network."""
        self.module = copy.deepcopy(module).to(dtype)
        parameters = list(self.module.parameters())
        self.weights = nn.utils.parameters_to_vector(parameters).detach().clone()
        self.gradient = torch.zeros_like(self.weights)
        start = 0
        for parameter in parameters:
            piece = slice(start, start + parameter.numel())
            parameter.data = self.weights[piece].view_as(parameter)
            parameter.grad = self.gradient[piece].view_as(parameter)
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
    def step(self, training: LocalSGD, learning_rate: float) -> None:
        """Take one step along the gradient."""
        gradient = self.gradient
        if training.proximal > 0:
            gradient.add_(self.weights - self.start, alpha=training.proximal)
        if training.max_norm is not None:
            scale = training.max_norm / (gradient.norm() + TINY)
            gradient.mul_(scale.clamp(max=1.0))
        gradient.add_(self.weights, alpha=training.weight_decay)
        self.velocity.mul_(training.momentum).add_(gradient)
        self.weights.sub_(self.velocity, alpha=learning_rate)


class SequentialTrainer:
    """Trains client after client."""

    def __init__(self, module: nn.Module, samples: Samples) -> None:
        """Take the network and the training samples."""
        self.module = module
        self.samples = samples
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
        total = torch.zeros((), dtype=torch.float64, device=self.samples.images.device)
        for step, size in enumerate(task.batches.sizes):
            index = task.batches.index[step, :size]
            moves = None if task.batches.moves is None else task.batches.moves[step, :size]
            labels = self.samples.labels[index]
            labels = labels if task.label_map is None else task.label_map[labels]
            images = self.samples.batch(index, moves).movedim(-1, 1)
            if task.poison is not None:
                images, labels = task.poison(images, labels)
            model.gradient.zero_()
            loss = F.cross_entropy(model.module(images), labels)
            loss.backward()
            model.step(training, learning_rate)
            total += loss.detach()
        return float(total) / max(1, task.batches.num_steps)

    def count_correct(self, weights: Tensor, buffers: Tensor, samples: Samples) -> Tensor:
        """Return how many samples the model of each run classifies correctly."""

        def work(run: int) -> int:
            # Each thread has its own gradient mode: it is set where the work is done.
            with torch.no_grad():
                model = self._model()
                model.load(weights[run], buffers[run])
                model.module.eval()
                num_correct = 0
                for index in torch.arange(len(samples)).split(EVALUATED_AT_ONCE):
                    found = model.module(samples.batch(index).movedim(-1, 1)).argmax(dim=-1)
                    num_correct += int((found == samples.labels[index]).sum())
                return num_correct

        return torch.tensor(mapped(work, range(len(weights)), weights.device, on_one_core=True))

    def _model(self) -> FlatModel:
        model: FlatModel | None = getattr(self._own, "model", None)
        if model is None:
            model = self._own.model = FlatModel(self.module, self.samples.dtype)
        return model
