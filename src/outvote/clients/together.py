"""Clients of all runs trained together, as one batched program: the way for a GPU."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from outvote.clients.alone import TINY
from outvote.clients.pictures import Pictures
from outvote.clients.training import Training
from outvote.clients.work import Task, Trained
from outvote.models.stacked import Stacked

# Pictures evaluated at once, counted over all runs.
EVALUATED_AT_ONCE = 1 << 15


class Together:
    """Trains the clients of all runs side by side."""

    def __init__(self, module: nn.Module, pictures: Pictures) -> None:
        """Take the network and the training pictures."""
        self.stacked = Stacked(module)
        self.pictures = pictures

    def train(
        self,
        weights: Tensor,
        buffers: Tensor,
        tasks: Sequence[Task],
        training: Training,
        learning_rate: float,
    ) -> Trained:
        """Train one model per task, from ``weights [runs, dim]``."""
        # Those with most steps first: the models that still train are then a prefix.
        order = sorted(range(len(tasks)), key=lambda k: -tasks[k].batches.num_steps)
        plan = _Plan([tasks[k] for k in order], weights.device)
        start = weights[plan.runs]
        parameters = self.stacked.spread(start)
        state = self._spread_buffers(buffers[plan.runs])
        velocities = [torch.zeros_like(parameter) for parameter in parameters]
        losses = torch.zeros(len(tasks), dtype=torch.float64, device=weights.device)
        for step in range(plan.num_steps):
            active = plan.num_active[step]
            some = [values[:active] for values in parameters]
            gradients, loss = self._gradients(some, [b[:active] for b in state], plan, step)
            losses[:active] += loss
            _step(some, gradients, [v[:active] for v in velocities], training, learning_rate)
        back = torch.tensor(order, device=weights.device).argsort()
        learnt = start.sub_(self.stacked.gather(parameters))
        return Trained(
            gradients=learnt[back],
            losses=(losses / plan.steps_each)[back].cpu(),
            buffers=self._gather_buffers(state, buffers[plan.runs])[back],
        )

    def _gradients(
        self, parameters: list[Tensor], buffers: list[Tensor], plan: "_Plan", step: int
    ) -> tuple[list[Tensor], Tensor]:
        """Return the gradients of one step, and the losses of the models."""
        active = len(parameters[0])
        index, is_there = plan.index[:active, step], plan.is_there[:active, step]
        moves = None if plan.moves is None else plan.moves[:active, step]
        images = self.pictures.batch(index, moves)
        labels = self.pictures.labels[index]
        if plan.label_maps is not None:
            labels = plan.label_maps[:active].gather(1, labels)
        is_full = plan.is_full[step]
        # Views of the same memory: a slice of a leaf would get a gradient as large as all models.
        leaves = [values.detach().requires_grad_() for values in parameters]
        with torch.enable_grad():
            logits = self.stacked.forward(
                leaves,
                images,
                buffers=buffers,
                is_there=None if is_full else is_there,
                is_training=True,
            )
            each = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
            there = is_there.to(each.dtype)
            losses = (each.view_as(there) * there).sum(dim=1) / there.sum(dim=1)
            gradients = torch.autograd.grad(losses.sum(), leaves)
        return list(gradients), losses.detach().double()

    def count_right(self, weights: Tensor, buffers: Tensor, pictures: Pictures) -> Tensor:
        """Return how many pictures each run's model recognises."""
        parameters = self.stacked.spread(weights)
        state = self._spread_buffers(buffers)
        step = max(1, EVALUATED_AT_ONCE // len(weights))
        num_right = torch.zeros(len(weights), dtype=torch.int64, device=weights.device)
        with torch.no_grad():
            for index in torch.arange(len(pictures), device=weights.device).split(step):
                images = pictures.batch(index).expand(len(weights), -1, -1, -1, -1)
                logits = self.stacked.forward(parameters, images, buffers=state)
                num_right += (logits.argmax(dim=-1) == pictures.labels[index]).sum(dim=-1)
        return num_right.cpu()

    def _spread_buffers(self, buffers: Tensor) -> list[Tensor]:
        kind = self.pictures.dtype
        spread = [slot.spread(buffers) for slot in self.stacked.buffer_slots]
        return [values if values.dim() == 1 else values.to(kind) for values in spread]

    def _gather_buffers(self, state: list[Tensor], before: Tensor) -> Tensor:
        gathered = torch.empty_like(before)
        for slot, values in zip(self.stacked.buffer_slots, state, strict=True):
            slot.gather(values.view(len(before), -1), gathered)
        return gathered


class _Plan:
    """The batches of all tasks, side by side and padded: the longest task first."""

    def __init__(self, tasks: Sequence[Task], device: torch.device) -> None:
        self.num_steps = tasks[0].batches.num_steps
        width = tasks[0].batches.index.shape[1]
        index = torch.full((len(tasks), self.num_steps, width), -1)
        for row, task in zip(index, tasks, strict=True):
            row[: task.batches.num_steps] = task.batches.index
        each = [task.batches.num_steps for task in tasks]
        self.num_active = [sum(n > step for n in each) for step in range(self.num_steps)]
        is_there = index >= 0
        self.is_full = [
            bool(is_there[:active, step].all()) for step, active in enumerate(self.num_active)
        ]
        self.index = index.clamp(min=0).to(device)
        self.is_there = is_there.to(device)
        self.steps_each = torch.tensor(each, dtype=torch.float64, device=device)
        self.runs = torch.tensor([task.run for task in tasks], device=device)
        self.label_maps = _label_maps(tasks, device)
        self.moves = _moves(tasks, index, device)


def _label_maps(tasks: Sequence[Task], device: torch.device) -> Tensor | None:
    known = [task.label_map for task in tasks if task.label_map is not None]
    if not known:
        return None
    same = torch.arange(len(known[0]))
    maps = [same if task.label_map is None else task.label_map.cpu() for task in tasks]
    return torch.stack(maps).to(device)


def _moves(tasks: Sequence[Task], index: Tensor, device: torch.device) -> Tensor | None:
    if tasks[0].batches.moves is None:
        return None
    moves = torch.zeros(*index.shape, 3, dtype=torch.int8)
    for row, task in zip(moves, tasks, strict=True):
        if task.batches.moves is not None:
            row[: task.batches.num_steps] = task.batches.moves
    return moves.to(device)


@torch.no_grad()
def _step(
    parameters: list[Tensor],
    gradients: list[Tensor],
    velocities: list[Tensor],
    training: Training,
    learning_rate: float,
) -> None:
    """Take one step of clipped SGD with momentum and weight decay in every model."""
    if training.max_norm is not None:
        squares = [gradient.flatten(1).square().sum(dim=1) for gradient in gradients]
        norms = torch.stack(squares).sum(dim=0).sqrt()
        scale = (training.max_norm / (norms + TINY)).clamp(max=1.0)
    for values, gradient, velocity in zip(parameters, gradients, velocities, strict=True):
        if training.max_norm is not None:
            gradient.mul_(scale.view(-1, *[1] * (gradient.dim() - 1)))
        gradient.add_(values, alpha=training.weight_decay)
        velocity.mul_(training.momentum).add_(gradient)
        values.sub_(velocity, alpha=learning_rate)
