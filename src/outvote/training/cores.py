"""Clients of networks of known layers on a CPU: one on each core, in forked processes.

Known layers have no code of a user and no state but parameters and buffers, so a forked process
trains a client with the same bits as this one would.
"""

import copy
import time
import warnings
from collections.abc import Sequence
from threading import Lock
from typing import final
from weakref import finalize

import torch
from torch import Tensor, nn

from outvote import forked
from outvote.errors import OutvoteWarning
from outvote.ops.process import mapped, may_share
from outvote.ops.sgd import TINY
from outvote.training.batches import Batches
from outvote.training.known_layers import LAYERS, NotAcceptedError, check_known
from outvote.training.layer_chain import LayerChain, is_chain
from outvote.training.local_sgd import LocalSGD
from outvote.training.objective import Objective, Score, Strata
from outvote.training.samples import ArraySamples, ByteImages, Samples
from outvote.training.sequential import (
    MakeOptimizer,
    SequentialTrainer,
    buffers_of,
    copy_of,
    state_of,
)
from outvote.training.trainer import ClientTask, LocalUpdates, batches_of, train_each
from outvote.training.workers import MOST_BYTES, Sizes, Workers, WorkersEnded

SECONDS_BEFORE_WORKERS = 0.25
"""Processes are forked when a trainer has trained for so long: short jobs end sooner without."""
MOST_FAILURES = 3
"""After so many failures of its processes a trainer has no more of them."""


@final
class CoresTrainer:
    """Trains the clients of a network of known layers by local SGD, one on each core."""

    name = "cores"

    def __init__(
        self,
        module: nn.Module,
        samples: Samples,
        objective: Objective | None = None,
        optimizer: MakeOptimizer | None = None,
        precision: str = "float32",
    ) -> None:
        """Take the network, the training samples and the loss; refuse what is not known."""
        objective = objective or Objective()
        if samples.device.type != "cpu":
            raise NotAcceptedError("the samples are not on a CPU")
        if optimizer is not None:
            raise NotAcceptedError("the optimiser is not local SGD")
        if objective.loss is not None:
            raise NotAcceptedError("the loss is not a default one")
        check_known(module, LAYERS)
        module = copy_of(module)
        self.samples = samples
        self.reason = ""
        self._plain = SequentialTrainer(module, samples, objective, None, precision)
        self._train_one = _Client(module, samples, objective).train_one
        self._seconds = 0.0
        self._forked: Workers | None = None
        self._num_failures = 0
        self._is_free, self._is_mine = Lock(), Lock()

    def train(
        self,
        weights: Tensor,
        buffers: Tensor,
        tasks: Sequence[ClientTask],
        training: LocalSGD,
        learning_rate: float,
    ) -> LocalUpdates:
        """Train one model per task, from ``weights [runs, dim]``."""
        found = self._train_by_workers(weights, buffers, tasks, training, learning_rate)
        if found is not None:
            return found
        began = time.perf_counter()
        given = weights, buffers, tasks, training, learning_rate
        # On one core, as in a process: the bits do not depend on where a client trains. One thread
        # at a time: all runs that share a trainer share its network.
        with self._is_mine:
            one = [self._train_one]
            (found,) = mapped(lambda train: train_each(train, *given), one, on_one_core=True)
        self._seconds += time.perf_counter() - began
        return found

    def evaluate(
        self, weights: Tensor, buffers: Tensor, samples: Samples, strata: Strata | None = None
    ) -> list[Score]:
        """Evaluate the model of each run on some samples; with `strata`, count by stratum too."""
        return self._plain.evaluate(weights, buffers, samples, strata)

    def _train_by_workers(
        self,
        weights: Tensor,
        buffers: Tensor,
        tasks: Sequence[ClientTask],
        training: LocalSGD,
        learning_rate: float,
    ) -> LocalUpdates | None:
        """Train in forked processes; None: this one must do it, which gives the same bits.

        What fails in a process is repeated here: there an error is the model's own.
        """
        sizes = Sizes(len(weights), len(tasks), weights.shape[1], buffers.shape[1], weights.dtype)
        if not self._may_fork(tasks, sizes) or not self._is_free.acquire(False):
            return None
        try:
            workers = self._workers(sizes.num_bytes)
            return workers.train(weights, buffers, tasks, training, learning_rate)
        except (WorkersEnded, OSError) as error:
            self._num_failures += 1
            self._forked = None
            if self._num_failures == MOST_FAILURES:
                warnings.warn(
                    f"clients train on one core from now on, more slowly and with the same "
                    f"results: processes failed {MOST_FAILURES} times ({error})",
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
        """Return whether processes may train, and are worth it.

        An attack that poisons batches may be a user's, whose effects would be lost. Where there is
        a GPU, autograd has threads for it after the first backward pass, and does not work in a
        forked process.
        """
        return (
            forked.IS_POSSIBLE
            and not torch.cuda.is_available()
            and self._seconds >= SECONDS_BEFORE_WORKERS
            and self._num_failures < MOST_FAILURES
            and len(tasks) > 1
            and sizes.num_bytes <= MOST_BYTES
            and isinstance(self.samples, ByteImages | ArraySamples)
            and may_share()
            and all(task.poison is None for task in tasks)
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
        weights, buffers = state_of(self._plain.module)
        weights = weights.to(self.samples.dtype)
        task = ClientTask(0, Batches(torch.zeros(1, 2, dtype=torch.int64), [2]))
        gradient, after = torch.empty_like(weights), torch.empty_like(buffers)
        self._train_one(task, weights, buffers, LocalSGD(), 0.0, gradient, after)


@final
class _Client:
    """Trains a client of known layers: weights, gradients and velocities are one vector each."""

    def __init__(self, module: nn.Module, samples: Samples, objective: Objective) -> None:
        self.samples, self.objective = samples, objective
        self.module = module = copy.deepcopy(module).to(samples.dtype).train()
        self.weights = nn.utils.parameters_to_vector(module.parameters()).detach()
        self.gradient = torch.zeros_like(self.weights)
        self.velocity = torch.zeros_like(self.weights)
        start = 0
        for parameter in module.parameters():
            piece = slice(start, start + parameter.numel())
            parameter.data = self.weights[piece].view_as(parameter)
            parameter.grad = self.gradient[piece].view_as(parameter)
            start += parameter.numel()
        self.chain: LayerChain | None = None
        """What computes a gradient without autograd, where the network is simple enough."""
        inputs = samples.inputs(torch.zeros(2, dtype=torch.int64))
        is_alone = objective.is_cross_entropy and len(inputs) == 1
        if is_alone and is_chain(module, inputs[0], samples.targets):
            self.chain = LayerChain(module)

    @torch.no_grad()
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
        self.weights.copy_(weights)
        self.velocity.zero_()
        start = 0
        for buffer in self.module.buffers():
            buffer.copy_(buffers[start : start + buffer.numel()].view_as(buffer))
            start += buffer.numel()
        total = torch.zeros((), dtype=torch.float64)
        with torch.autocast("cpu", enabled=False):  # A caller may be in it.
            for inputs, targets in batches_of(task, self.samples):
                total += self._loss(inputs, targets)
                self._step(weights, training, learning_rate)
        torch.sub(weights, self.weights, out=gradient)
        after.copy_(buffers_of(self.module))
        return float(total) / max(1, task.batches.num_steps)

    def _loss(self, inputs: tuple[Tensor, ...], targets: Tensor) -> Tensor:
        """Return the loss of a batch, and compute its gradient."""
        if self.chain is not None:
            return self.chain.loss(inputs[0], targets)
        self.gradient.zero_()
        with torch.enable_grad():
            loss = self.objective(self.module(*inputs), targets)
            loss.backward()
        return loss.detach()

    def _step(self, start: Tensor, training: LocalSGD, learning_rate: float) -> None:
        if training.proximal > 0:
            self.gradient.add_(self.weights - start, alpha=training.proximal)
        if training.max_norm is not None:
            scale = training.max_norm / (self.gradient.norm() + TINY)
            self.gradient.mul_(scale.clamp(max=1.0))
        self.gradient.add_(self.weights, alpha=training.weight_decay)
        self.velocity.mul_(training.momentum).add_(self.gradient)
        self.weights.sub_(self.velocity, alpha=learning_rate)
