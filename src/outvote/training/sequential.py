"""Local training in plain PyTorch, one client after the other: what every other trainer must equal.

The network itself computes, not a copy of it: hooks, closures, parametrisations and tensors that
`copy.deepcopy` loses or refuses all work as in a training loop of your own.
"""

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from outvote.ops.process import products_in
from outvote.ops.sgd import TINY
from outvote.seeding import alone, seeded_generators
from outvote.training.local_sgd import LocalSGD
from outvote.training.objective import Objective, Score, Strata
from outvote.training.samples import Samples
from outvote.training.trainer import ClientTask, LocalUpdates, batches_of, train_each

EVALUATED_AT_ONCE = 512
MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]


class SequentialTrainer:
    """Trains client after client; any network, loss and optimiser of torch will do."""

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
        self.reason = ""

    def train(
        self,
        weights: Tensor,
        buffers: Tensor,
        tasks: Sequence[ClientTask],
        training: LocalSGD,
        learning_rate: float,
    ) -> LocalUpdates:
        """Train one model per task, from ``weights [runs, dim]``."""
        return train_each(self.train_one, weights, buffers, tasks, training, learning_rate)

    @torch.enable_grad()
    def train_one(
        self,
        task: ClientTask,
        weights: Tensor,
        buffers: Tensor,
        training: LocalSGD,
        learning_rate: float,
        gradient: Tensor,
        after: Tensor,
    ) -> float:
        """Train one client: fill its gradient and its buffers, and return its mean loss."""
        with self._lent(task.seed, weights, buffers) as module:
            module.train()
            trained = [each for each in module.parameters() if each.requires_grad]
            start = [each.detach().clone() for each in trained] if training.proximal else []
            optimizer = self._make_optimizer(trained, training, learning_rate)
            total = torch.zeros((), dtype=torch.float64, device=self.samples.device)
            for inputs, targets in batches_of(task, self.samples):
                for each in trained:
                    each.grad = None
                loss = self.objective(module(*inputs), targets)
                loss.backward()
                if training.proximal:
                    _add_proximal(trained, start, training.proximal)
                if training.max_norm is not None:
                    _clip(trained, training.max_norm)
                optimizer.step()
                total += loss.detach()
            gradient.copy_(weights - nn.utils.parameters_to_vector(module.parameters()).detach())
            after.copy_(buffers_of(module))
        return float(total) / max(1, task.batches.num_steps)

    def _make_optimizer(
        self, trained: list[nn.Parameter], training: LocalSGD, learning_rate: float
    ) -> Optimizer:
        """Make a client's optimiser; one of the caller follows the schedule of `training`."""
        if self.optimizer is not None:
            made = self.optimizer(trained)
            scale_rates(made, training, learning_rate)
            return made
        return torch.optim.SGD(
            trained,
            lr=learning_rate,
            momentum=training.momentum,
            weight_decay=training.weight_decay,
        )

    @torch.no_grad()
    def evaluate(
        self, weights: Tensor, buffers: Tensor, samples: Samples, strata: Strata | None = None
    ) -> list[Score]:
        """Evaluate the model of each run on some samples; with `strata`, count by stratum too."""
        scores = []
        for own, state in zip(weights, buffers, strict=True):
            total = torch.zeros(4, dtype=torch.float64, device=samples.device)
            counts = total[:0] if strata is None else strata.zeros()
            with self._lent(0, own, state) as module:
                module.eval()
                for index in torch.arange(len(samples)).split(EVALUATED_AT_ONCE):
                    outputs = module(*samples.inputs(index))
                    tally = strata and partial(strata.add_correct, counts, index)
                    total += self.objective.measure(outputs, samples.targets[index], tally)
            scores.append(self.objective.score(torch.cat([total, counts])))
        return scores

    @contextmanager
    def _lent(self, seed: int, weights: Tensor, buffers: Tensor) -> Iterator[nn.Module]:
        """Give the network weights, buffers and generators of its own for a while."""
        device = self.samples.device
        with (
            seeded_generators(seed, device),
            products_in(self.precision, device),
            lent(self.module, weights, buffers),
        ):
            yield self.module


@contextmanager
def lent(module: nn.Module, weights: Tensor, buffers: Tensor) -> Iterator[None]:
    """Give a network other weights and buffers for a while; then it has its own, and its mode.

    Its parameters remain the same objects, so hooks and other references to them stay right.
    """
    parameters = [(each, each.data, each.grad) for each in module.parameters()]
    own = [(each, each.data) for each in module.buffers()]
    parts = [(part, dict(part._buffers), part.training) for part in module.modules()]
    try:
        module.zero_grad(set_to_none=True)
        nn.utils.vector_to_parameters(weights.clone(), (each for each, *_ in parameters))
        start = 0
        for buffer, _ in own:
            values = buffers[start : start + buffer.numel()].view_as(buffer)
            dtype = weights.dtype if buffer.is_floating_point() else buffer.dtype
            buffer.data = values.to(dtype, copy=True)
            start += buffer.numel()
        yield
    finally:
        for each, values, gradient in parameters:
            each.grad = None
            each.data = values
            each.grad = gradient
        for buffer, values in own:
            buffer.data = values
        for part, named, is_training in parts:
            part.training = is_training
            # A forward pass may put other tensors in the place of its buffers.
            for name, buffer_before in named.items():
                if part._buffers[name] is not buffer_before:
                    part._buffers[name] = buffer_before


def state_of(module: nn.Module) -> tuple[Tensor, Tensor]:
    """Return the weights and the buffers of a network, which may train in another thread."""
    with alone():
        weights = nn.utils.parameters_to_vector(module.parameters()).detach()
        return weights, buffers_of(module)


def copy_of(module: nn.Module) -> nn.Module:
    """Return a copy of a network, which may train in another thread."""
    with alone():
        return copy.deepcopy(module)


def buffers_of(module: nn.Module) -> Tensor:
    """Return the buffers of a network as one vector; float64 holds counters too."""
    none = next(module.parameters()).detach().new_empty(0, dtype=torch.float64)
    found = [none]
    for buffer in module.buffers():
        found.append(buffer.detach().flatten().double())
    return torch.cat(found)


@torch.no_grad()
def _add_proximal(trained: list[nn.Parameter], start: list[Tensor], factor: float) -> None:
    """Add the gradient of FedProx's term, which every parameter that trains has."""
    for each, before in zip(trained, start, strict=True):
        if each.grad is None:
            each.grad = torch.zeros_like(each)
        each.grad.add_(each - before, alpha=factor)


@torch.no_grad()
def _clip(trained: list[nn.Parameter], max_norm: float) -> None:
    """Scale all gradients to a norm of at most `max_norm`, as torch's own clipping does."""
    gradients = [each.grad for each in trained if each.grad is not None]
    if gradients:
        norm = torch.cat([each.flatten() for each in gradients]).norm()
        for each in gradients:
            each.mul_((max_norm / (norm + TINY)).clamp(max=1.0))


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
