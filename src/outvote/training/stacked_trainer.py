"""The clients of all runs trained as one batched program: the fastest way on a GPU."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from outvote.data.array_dataset import IGNORED
from outvote.errors import check_choice
from outvote.ops.process import on_device, products_for
from outvote.ops.sgd import take_step
from outvote.training.batches import Batches
from outvote.training.gpu_memory import even_size, how_many_fit, in_chunks
from outvote.training.known_layers import NotAcceptedError
from outvote.training.local_sgd import LocalSGD
from outvote.training.objective import Objective, Score, Strata
from outvote.training.samples import Samples
from outvote.training.sequential import MakeOptimizer
from outvote.training.stacked_model import StackedModel
from outvote.training.step_graph import StepBatch, StepRunner
from outvote.training.trainer import ClientTask, LocalUpdates, count_samples, keep_idle

PRECISIONS = ("float32", "tf32", "bfloat16")
FEW_SAMPLES = 32
# On a CPU, over all runs.
EVALUATED_AT_ONCE = 1 << 16
# Of one evaluation, on a GPU. More is not faster, and training would find the memory in pieces.
MOST_BYTES = 16 << 30


class StackedTrainer:
    """Trains the clients of all runs side by side."""

    name = "stacked"

    def __init__(
        self,
        module: nn.Module,
        samples: Samples,
        objective: Objective | None = None,
        optimizer: MakeOptimizer | None = None,
        precision: str = "float32",
    ) -> None:
        """Take the network, the training samples, and the precision of the products.

        "float32" means the precision of the samples, with TF32 off. Refuse what is not known.
        """
        check_choice("precision", precision, PRECISIONS)
        if optimizer is not None:
            raise NotAcceptedError("the optimiser is not local SGD")
        objective = objective or Objective.of(samples.targets, has_classes=True)
        if not objective.is_cross_entropy or samples.targets.dim() != 1:
            raise NotAcceptedError("the loss is not cross entropy with one class per sample")
        self.model = StackedModel(module, _num_axes(samples))
        self.samples = samples
        self.precision = precision
        self.reason = ""
        self._num_models: int | None = None
        self._num_tasks = 0
        """With how many tasks it was measured how many models fit."""
        self._num_evaluated: dict[tuple[int, int], int] = {}
        """How many samples are evaluated at once, by the numbers of runs and of samples."""
        self._steps = StepRunner()

    def train(
        self,
        weights: Tensor,
        buffers: Tensor,
        tasks: Sequence[ClientTask],
        training: LocalSGD,
        learning_rate: float,
    ) -> LocalUpdates:
        """Train one model per task, from ``weights [runs, dim]``, as many at once as fit."""
        device = weights.device
        found = _results(weights, buffers, tasks)
        trained = keep_idle(buffers, tasks, found.gradients, found.buffers)
        # Tasks with most steps first: the models that still train are then a prefix.
        order = sorted(trained, key=lambda k: -tasks[k].batches.num_steps)
        packed = self.model.pack(weights)
        narrow = self._narrow(packed)

        def work(some: Sequence[ClientTask], numbers: list[int], rate: float) -> None:
            plan = _Plan(some, numbers, device)
            stack = WeightStack(self.model, packed, narrow, plan.runs)
            self._train(stack, weights, buffers, plan, training, rate, found)

        # With half of the results, far more models may fit.
        is_new = self._num_models is None or 2 * len(tasks) <= self._num_tasks
        if order and is_new and device.type == "cuda":
            self._num_tasks = len(tasks)
            self._num_models = _how_many(partial(work, rate=0.0), tasks, order, found.gradients)
        size = even_size(len(order), self._num_models or max(1, len(order)))

        def work_on(part: slice) -> None:
            numbers = order[part]
            work([tasks[k] for k in numbers], numbers, learning_rate)

        _, fitted = in_chunks(work_on, len(order), size)
        if fitted < size:
            self._num_models = fitted
        return replace(found, losses=found.losses.cpu())

    def _train(
        self,
        stack: "WeightStack",
        weights: Tensor,
        buffers: Tensor,
        plan: "_Plan",
        training: LocalSGD,
        learning_rate: float,
        found: LocalUpdates,
    ) -> None:
        """Train the models of a plan, and write the results into their rows."""
        statistics = self._read_buffers(buffers[plan.runs])
        losses = torch.zeros(len(plan.rows), dtype=torch.float64, device=weights.device)

        def step(batch: StepBatch) -> None:
            active = len(batch.index)
            some = [values[:active] for values in statistics]
            losses[:active] += self._backward(stack, some, plan, batch)
            stack.step(active, training, learning_rate, batch.num_going)

        with products_for(self.precision, weights.device):
            self._steps.run(step, plan.batches(), records=self._records(plan))
        stack.write_changes(weights, found.gradients, plan.rows)
        found.losses[plan.rows] = losses / plan.steps_each.clamp(min=1)
        found.buffers[plan.rows] = self._write_buffers(statistics, buffers[plan.runs])

    def _records(self, plan: "_Plan") -> bool:
        """Return whether steps are recorded: few models, for which a GPU has memory to spare."""
        if plan.index.device.type != "cuda" or plan.poisons:
            return False
        return 3 * len(plan.rows) <= (self._num_models or 0)

    def _backward(
        self, stack: "WeightStack", buffers: list[Tensor], plan: "_Plan", batch: StepBatch
    ) -> Tensor:
        """Compute the gradients of one step, and return the losses of the models."""
        active, is_there = len(batch.index), batch.is_there
        images = self.samples.batch(batch.index, batch.moves)
        labels = self.samples.targets[batch.index]
        if plan.label_maps is not None:
            labels = plan.label_maps[:active].gather(1, labels)
        for model, poison in plan.poisons.items():
            if model < active:
                here = is_there[model]
                own = poison(images[model, here].movedim(-1, 1), labels[model, here])
                images[model, here], labels[model, here] = own[0].movedim(1, -1), own[1]
        parameters, targets = stack.parameters(active), stack.targets(active)
        with torch.enable_grad():
            logits = self.model.forward(
                parameters,
                images.to(stack.dtype),
                buffers=buffers,
                gradients=targets,
                is_there=None if batch.is_full else is_there,
                is_training=True,
            )
            each = F.cross_entropy(
                logits.flatten(0, 1).to(self.samples.dtype), labels.flatten(), reduction="none"
            )
            there = is_there.to(each.dtype)
            losses = (each.view_as(there) * there).sum(dim=1) / there.sum(dim=1)
            losses.sum().backward()
        return losses.detach().double()

    def _narrow(self, packed: Tensor) -> Tensor | None:
        return packed.bfloat16() if self.precision == "bfloat16" else None

    def evaluate(
        self, weights: Tensor, buffers: Tensor, samples: Samples, strata: Strata | None = None
    ) -> list[Score]:
        """Evaluate the model of each run on some samples; with `strata`, count by stratum too."""
        whole = strata or Strata(torch.zeros_like(samples.targets), 1)
        correct = self._count_correct(weights, buffers, samples, whole)
        num_targets = max(1, int((samples.targets != IGNORED).sum()))
        return [
            Score(accuracy=int(row.sum()) / num_targets, correct=None if strata is None else row)
            for row in correct
        ]

    def _count_correct(
        self, weights: Tensor, buffers: Tensor, samples: Samples, strata: Strata
    ) -> Tensor:
        """Return how many targets of each stratum the model of each run classifies correctly."""
        total = strata.zeros(len(weights))
        packed = self.model.pack(weights)
        narrow = self._narrow(packed)
        packed = packed if narrow is None else narrow
        logits_of = self.model.evaluated(self.model.views(packed), self._read_buffers(buffers))

        def count(part: slice) -> None:
            index = torch.arange(part.start, part.stop, device=samples.device)
            images = samples.batch(index).to(packed.dtype)
            logits = logits_of(images.expand(len(weights), *images.shape))
            strata.add_correct(total, part, logits.argmax(dim=-1) == samples.targets[part])

        sizes = len(weights), len(samples)
        with torch.no_grad(), products_for(self.precision, weights.device):
            if sizes not in self._num_evaluated:
                self._num_evaluated[sizes] = _num_at_once(count, *sizes, weights.device)
                total.zero_()
            size = even_size(len(samples), self._num_evaluated[sizes])
            _, fitted = in_chunks(count, max(1, len(samples)), size)
            if fitted < size:
                self._num_evaluated[sizes] = fitted
        return total.cpu()

    def _read_buffers(self, buffers: Tensor) -> list[Tensor]:
        kind = self.samples.dtype
        read = [slot.read(buffers) for slot in self.model.buffer_slots]
        return [values if values.dim() == 1 else values.to(kind) for values in read]

    def _write_buffers(self, statistics: list[Tensor], before: Tensor) -> Tensor:
        written = torch.empty_like(before)
        for slot, values in zip(self.model.buffer_slots, statistics, strict=True):
            slot.write(values, written)
        return written


def _how_many(
    work: Callable[[list[ClientTask], list[int]], None],
    tasks: Sequence[ClientTask],
    order: list[int],
    gradients: Tensor,
) -> int | None:
    """Return how many of the tasks are trained at once, from a few of the largest batches."""
    few = sorted(order, key=lambda k: -max(tasks[k].batches.sizes))[:4]
    # The first step differs from the others, which are alike.
    short = [replace(tasks[k], batches=tasks[k].batches.first(2)) for k in few]
    short.sort(key=lambda task: -task.batches.num_steps)
    work(short[-1:], few[:1])  # The first call also allocates what the libraries of the GPU keep.
    # What follows in a round needs as much again: attacked gradients, and a rule's copies.
    return how_many_fit(
        lambda number: work(short[-number:], few[:number]),
        gradients.device,
        several=len(few),
        spare=2 * gradients.nbytes,
    )


def _results(weights: Tensor, buffers: Tensor, tasks: Sequence[ClientTask]) -> LocalUpdates:
    """Return updates that are still to be written."""
    return LocalUpdates(
        gradients=weights.new_empty(len(tasks), weights.shape[1]),
        losses=torch.zeros(len(tasks), dtype=torch.float64, device=weights.device),
        buffers=buffers.new_empty(len(tasks), buffers.shape[1]),
        num_samples=count_samples(tasks),
    )


def _num_at_once(
    count: Callable[[slice], None], num_runs: int, num_samples: int, device: torch.device
) -> int:
    """Return how many samples are evaluated at once."""
    num_few = max(1, min(FEW_SAMPLES, num_samples))
    several = max(1, min(4, num_samples // num_few))
    fits = how_many_fit(
        lambda number: count(slice(0, number * num_few)), device, several=several, most=MOST_BYTES
    )
    return max(1, EVALUATED_AT_ONCE // num_runs) if fits is None else fits * num_few


def _num_axes(samples: Samples) -> int:
    """Return how many axes a sample has; refuse what is not one array of numbers."""
    inputs = samples.inputs(torch.zeros(1, dtype=torch.int64, device=samples.device))
    if len(inputs) != 1 or not inputs[0].is_floating_point():
        raise NotAcceptedError("a sample is not one array of floating-point numbers")
    return inputs[0].dim() - 1


class WeightStack:
    """The packed weights, velocities and gradients of all models, one matrix each."""

    def __init__(
        self,
        model: StackedModel,
        packed: Tensor,
        narrow: Tensor | None = None,
        runs: Tensor | None = None,
    ) -> None:
        """Start model k from ``packed[runs[k]]``; without `runs`, every row is a model.

        `narrow` are the packed parameters in the precision of products, if that is another.
        """
        self.model, self.start = model, packed
        self.runs = torch.arange(len(packed), device=packed.device) if runs is None else runs
        self.dtype = packed.dtype if narrow is None else narrow.dtype
        shape = (len(self.runs), packed.shape[1])
        self.copy: Tensor | None = None
        if narrow is None:
            self.weights = packed.index_select(0, self.runs)
        else:
            # The first step writes the weights.
            self.weights, self.copy = packed.new_empty(shape), narrow.index_select(0, self.runs)
        self.velocities = packed.new_empty(shape)
        self.gradients = packed.new_empty(shape, dtype=self.dtype)
        for first, end in model.gaps():
            self.gradients[:, first:end] = 0
        self.num_started: int | None = None
        """How many models took the first step; None: it is still to come."""

    def parameters(self, active: int) -> list[Tensor]:
        """Return the parameters of the models that still train."""
        return self.model.views((self.weights if self.copy is None else self.copy)[:active])

    def targets(self, active: int) -> list[Tensor]:
        """Return where the gradients of these models are written."""
        return self.model.views(self.gradients[:active])

    def step(
        self, active: int, training: LocalSGD, learning_rate: float, num_going: int | None = None
    ) -> None:
        """Take one step in the models that still train; `num_going` of them take another."""
        is_first = self.num_started is None
        if is_first:
            self.num_started = active
        elif training.proximal > 0:
            far = self.weights[:active] - self.start[self.runs[:active]]
            self.gradients[:active].add_(far, alpha=training.proximal)
        take_step(
            self.weights[:active],
            self.gradients[:active],
            self.velocities[:active],
            None if self.copy is None else self.copy[:active],
            training,
            learning_rate,
            is_first=is_first,
            start=(self.start, self.runs) if is_first and self.copy is not None else None,
            num_going=num_going,
        )

    def write_changes(self, vectors: Tensor, out: Tensor, rows: Tensor) -> None:
        """Write ``vectors[runs]``, from which `start` was packed, minus the weights to rows."""
        num = self.num_started or 0
        self.model.write_changes(vectors, self.runs[:num], self.weights[:num], out, rows[:num])
        out[rows[num:]] = 0  # Models without a step.


class _Plan:
    """The batches of all tasks, stacked and padded: the longest task first."""

    def __init__(
        self, tasks: Sequence[ClientTask], rows: Sequence[int], device: torch.device
    ) -> None:
        self.rows = on_device(rows, device)
        """The rows of the tasks in the result."""
        self.num_steps = tasks[0].batches.num_steps
        # Runs share the batches of their clients: each is copied to the device once.
        distinct = list({id(task.batches): task.batches for task in tasks}.values())
        numbers = {id(batches): k for k, batches in enumerate(distinct)}
        which = torch.tensor([numbers[id(task.batches)] for task in tasks])
        sizes = torch.zeros(len(distinct), self.num_steps, dtype=torch.int64)
        index = torch.zeros(*sizes.shape, tasks[0].batches.index.shape[1], dtype=torch.int64)
        for k, batches in enumerate(distinct):
            index[k, : batches.num_steps] = batches.index
            sizes[k, : batches.num_steps] = torch.tensor(batches.sizes)
        own = sizes[which]
        each = [task.batches.num_steps for task in tasks]
        self.num_active = (own > 0).sum(dim=0).tolist()
        # No model has more samples in a step: the padding behind them is left out.
        self.widths = own.amax(dim=0).tolist()
        smallest = own.masked_fill(own == 0, index.shape[-1]).amin(dim=0).tolist()
        self.is_full = [few == many for few, many in zip(smallest, self.widths, strict=True)]
        self.index = index.clamp_(min=0).to(device)[which.to(device)]
        at = torch.arange(index.shape[-1], device=device)
        self.is_there = at < own.to(device).unsqueeze(-1)
        self.steps_each = on_device(each, device, torch.float64)
        self.runs = on_device([task.run for task in tasks], device)
        self.label_maps = _label_maps(tasks, device)
        self.poisons = {k: t.poison for k, t in enumerate(tasks) if t.poison is not None}
        moves = _moves(distinct, index, device)
        self.moves = None if moves is None else moves[which.to(device)]

    def batches(self) -> list[StepBatch]:
        """Return the samples of every step."""
        found = []
        for step in range(self.num_steps):
            at = (slice(0, self.num_active[step]), step, slice(0, self.widths[step]))
            moves = None if self.moves is None else self.moves[at]
            num_going = self.num_active[step + 1] if step + 1 < self.num_steps else 0
            found.append(
                StepBatch(self.index[at], self.is_there[at], moves, self.is_full[step], num_going)
            )
        return found


def _label_maps(tasks: Sequence[ClientTask], device: torch.device) -> Tensor | None:
    known = [task.label_map for task in tasks if task.label_map is not None]
    if not known:
        return None
    same = torch.arange(len(known[0]))
    maps = [same if task.label_map is None else task.label_map.cpu() for task in tasks]
    return torch.stack(maps).to(device)


def _moves(distinct: Sequence[Batches], index: Tensor, device: torch.device) -> Tensor | None:
    """Return how to shift and mirror the samples of all distinct batches."""
    if distinct[0].moves is None:
        return None
    moves = torch.zeros(*index.shape, 3, dtype=torch.int8)
    for row, batches in zip(moves, distinct, strict=True):
        if batches.moves is not None:
            row[: batches.num_steps] = batches.moves
    return moves.to(device)
