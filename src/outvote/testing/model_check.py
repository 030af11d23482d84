"""Is a model trained alike by every trainer that accepts it?"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn

from outvote.data.array_dataset import make_dataset
from outvote.models.model_spec import make_own_model
from outvote.seeding import RandomStream
from outvote.testing.conformance import ConformanceError, Failure
from outvote.training.batches import draw_batches
from outvote.training.choose_trainer import TRAINERS, choose_trainer, is_random, try_model
from outvote.training.known_layers import NotAcceptedError
from outvote.training.local_sgd import LocalSGD
from outvote.training.objective import Loss, Objective
from outvote.training.samples import ArraySamples, Samples
from outvote.training.sequential import MakeOptimizer, state_of
from outvote.training.trainer import ClientTask, Trainer

NUM_CLIENTS, NUM_ROUNDS, MOST_SAMPLES = 4, 3, 120
TOLERANCE = {torch.float64: 1e-9, torch.float32: 5e-2}
_FACT = "a trainer gives the gradients, losses, buffers and scores of plain PyTorch"


@final
@dataclass(frozen=True, slots=True)
class ModelCheck:
    """Which trainers accept a model, and how far they are from plain PyTorch."""

    differences: Mapping[str, float]
    """The largest difference of each trainer that accepts the model, as a share of the largest
    number that it is compared with."""
    refused: Mapping[str, str]
    """Why each of the others does not accept it."""

    def __str__(self) -> str:
        rows = [f"{name}: accepts it, {far:.1e} off" for name, far in self.differences.items()]
        return "\n".join([*rows, *(f"{name}: {reason}" for name, reason in self.refused.items())])


def check_model(
    model: Any,
    data: Any,
    *,
    loss: Loss | None = None,
    optimizer: MakeOptimizer | None = None,
    local: LocalSGD | None = None,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | None = None,
    tolerance: float | None = None,
) -> ModelCheck:
    """Train a model by every trainer that accepts it; raise a ConformanceError if two differ.

    `model`, `data` (a pair of samples and targets, or a torch dataset), `loss`, `optimizer` and
    `local` are what `outvote.simulate` takes. Some clients with batches of several sizes train for
    some rounds. `dtype` is float64 on a CPU, and float32 on a GPU, whose kernels compute in it.

    >>> import torch
    >>> data = torch.randn(30, 6), torch.arange(30) % 3
    >>> sorted(check_model(torch.nn.Linear(6, 3), data).differences)
    ['cores', 'stacked', 'vmap']
    """
    found = make_dataset(data, data, name="data")
    place = torch.device(device)
    kind = dtype or (torch.float64 if place.type == "cpu" else torch.float32)
    samples = ArraySamples(
        [values[:MOST_SAMPLES] for values in found.train_inputs],
        found.train_targets[:MOST_SAMPLES],
        device=place,
        dtype=kind,
        is_channels_last=found.is_channels_last,
    )
    module = make_own_model(model, found.num_classes, 0)
    has_classes = found.num_classes is not None
    objective = Objective.of(samples.targets, loss, has_classes=has_classes)
    try_model(module, samples, objective, optimizer, num_classes=found.num_classes)
    # Large steps would make rounding errors large.
    training = local or LocalSGD(learning_rate=0.01, batch_size=8, weight_decay=1e-2)
    choose = partial(choose_trainer, module, samples, objective, optimizer)
    checked = _compared(choose, module, samples, training)
    limit = TOLERANCE[kind] if tolerance is None else tolerance
    failures = [
        Failure(
            f"{name}-equals-sequential",
            f"{type(module).__name__} on {len(samples)} samples in {kind}",
            f"{far:.1e} off, where {limit:g} is allowed; set trainer='sequential'",
            _FACT,
        )
        for name, far in checked.differences.items()
        if not far <= limit
    ]
    if failures:
        raise ConformanceError(type(module).__name__, failures, len(checked.differences))
    return checked


def _compared(
    choose: Callable[..., Trainer], module: nn.Module, samples: Samples, training: LocalSGD
) -> ModelCheck:
    """Train a model by every trainer, and measure how far each is from plain PyTorch."""
    expected = _rounds(choose(name="sequential"), module, samples, training)
    differences, refused = {}, {}
    for name in TRAINERS:
        if name in ("auto", "sequential"):
            continue
        try:
            trainer = choose(name=name)
        except NotAcceptedError as error:
            refused[name] = str(error.__cause__)
            continue
        if name == "vmap" and samples.device.type != "cpu" and is_random(module, samples):
            refused[name] = "not compared: on a GPU it draws other masks of dropout"
            continue
        found = _rounds(trainer, module, samples, training, [each[0] for each in expected])
        pairs = (
            (one, other)
            for mine, own in zip(found, expected, strict=True)
            for one, other in zip(mine[1], own[1], strict=True)
        )
        differences[name] = max(_difference(*pair) for pair in pairs)
    return ModelCheck(differences, refused)


State = tuple[Tensor, Tensor]
"""The weights and the buffers of two runs."""


def _rounds(
    trainer: Trainer,
    module: nn.Module,
    samples: Samples,
    training: LocalSGD,
    starts: Sequence[State] = (),
) -> list[tuple[State, list[Tensor]]]:
    """Train two runs for some rounds; return where each begins, and all numbers that come out.

    Each begins where given, so that rounding errors do not grow from round to round, or else where
    the one before ended.
    """
    row, buffers = state_of(module)
    row, buffers = row.to(samples.device, samples.dtype), buffers.to(samples.device)
    state: State = torch.stack([row, 1.01 * row]), buffers.repeat(2, 1)
    parts = torch.arange(len(samples)).tensor_split([k * k + 5 for k in range(1, NUM_CLIENTS)])
    found = []
    for number in range(NUM_ROUNDS):
        start = starts[number] if starts else state
        streams = [RandomStream((number, k)) for k in range(NUM_CLIENTS)]
        tasks = [
            ClientTask(k % 2, draw_batches(part, training, stream, least=2), seed=10 * number + k)
            for k, (part, stream) in enumerate(zip(parts, streams, strict=True))
        ]
        updates = trainer.train(*start, tasks, training, training.learning_rate_at(number + 1))
        means = torch.stack([updates.gradients[k::2].mean(dim=0) for k in (0, 1)])
        state = start[0] - means, updates.buffers[:2]
        scores = trainer.evaluate(*start, samples)
        # Beside 1: rounding may change the side of a sample, and few may be correct.
        numbers = torch.tensor([1.0, *(x or 0.0 for s in scores for x in (s.accuracy, s.loss))])
        found.append((start, [updates.gradients, updates.losses, updates.buffers, numbers]))
    return found


def _difference(one: Tensor, other: Tensor) -> float:
    """Return the largest difference as a share of the largest number."""
    one, other = one.double(), other.double()
    if torch.equal(one.isfinite(), other.isfinite()):  # A model may diverge, or mask by infinity.
        one, other = one.nan_to_num(0, 0, 0), other.nan_to_num(0, 0, 0)
    if not one.numel():
        return 0.0
    largest = float(other.abs().max())
    return float((one - other).abs().max()) / (largest or 1.0)
