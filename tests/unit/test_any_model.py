"""Any nn.Module trains: one by one and by vmap, equal to a plain loop of PyTorch."""

import copy
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.fx
from torch import Tensor, nn
from torch.nn import functional as F

import outvote.training.vmap_trainer as vmap_module
from outvote.seeding import RandomStream
from outvote.training.batches import draw_batches
from outvote.training.choose_trainer import choose_trainer
from outvote.training.dropout import Masks, RandomCalls, step_key
from outvote.training.gpu_memory import in_chunks
from outvote.training.local_sgd import LocalSGD
from outvote.training.objective import Objective
from outvote.training.samples import ArraySamples, Samples
from outvote.training.sequential import SequentialTrainer
from outvote.training.trainer import ClientTask, LocalUpdates, Trainer
from outvote.training.vmap_convolution import use_products
from outvote.training.vmap_trainer import ELEMENTWISE, VmapTrainer

CPU = torch.device("cpu")
NUM_SAMPLES = 90
NUM_CLASSES = 5
TIME, WORDS = 6, 11
# Sizes for which the last batch is full, partial, and a single one.
SIZES = (8, 11, 3, 10, 4, 9)
TRAINING = LocalSGD(learning_rate=0.1, momentum=0.5, weight_decay=1e-2, max_norm=0.5, batch_size=4)
TOLERANCE = 1e-9


class Transformer(nn.Module):
    """One block with attention of its own; the output has the weights of the embedding."""

    def __init__(self, *, is_tied: bool = False) -> None:
        super().__init__()
        self.tokens = nn.Embedding(WORDS, 8)
        self.positions = nn.Parameter(torch.randn(TIME, 8) * 0.1)
        self.norm = nn.LayerNorm(8)
        self.mix = nn.Linear(8, 24)
        self.hidden = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.out = nn.Linear(8, WORDS, bias=False)
        if is_tied:
            self.out.weight = self.tokens.weight
        self.register_buffer("is_later", torch.ones(TIME, TIME, dtype=torch.bool).triu(1))

    def forward(self, tokens: Tensor) -> Tensor:
        values = self.tokens(tokens) + self.positions
        query, key, value = self.mix(self.norm(values)).chunk(3, dim=-1)
        scores = (query @ key.mT / 8**0.5).masked_fill(self.is_later, float("-inf"))
        values = values + scores.softmax(dim=-1) @ value
        return self.out(values + self.hidden(values))


class GroupNormCNN(nn.Module):
    """Convolutions of several kinds, with group norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.depthwise = nn.Conv2d(8, 8, 3, groups=8, padding=1, bias=False)
        self.second = nn.Conv2d(8, 6, 3, stride=2)
        self.out = nn.Linear(6, NUM_CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        hidden = F.gelu(self.norm(self.first(images)))
        hidden = F.relu(self.second(self.depthwise(hidden) + hidden))
        return self.out(F.avg_pool2d(hidden, 2).flatten(1))


class FunctionalDropout(nn.Module):
    """Dropout that is no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(7, NUM_CLASSES)

    def forward(self, values: Tensor) -> Tensor:
        return self.out(F.dropout(values, 0.5, self.training))


def gelu_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(7, 9), nn.GELU(), nn.Linear(9, NUM_CLASSES))


def layer_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(7, 9), nn.LayerNorm(9), nn.Tanh(), nn.Linear(9, NUM_CLASSES))


def batch_norm() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, bias=False),
        nn.BatchNorm2d(4),
        nn.SiLU(),
        nn.Flatten(),
        nn.Linear(4 * 9, 6),
        nn.BatchNorm1d(6, momentum=None),
        nn.Linear(6, NUM_CLASSES),
    )


def frozen_layer() -> nn.Module:
    module = nn.Sequential(nn.Linear(7, 9), nn.Linear(9, 9), nn.Tanh(), nn.Linear(9, NUM_CLASSES))
    module[1].requires_grad_(False)
    return module


def dropout() -> nn.Module:
    shared = nn.Dropout(0.3)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3),
        nn.Dropout2d(0.2),
        nn.SELU(),
        nn.AlphaDropout(0.1),
        nn.Flatten(),
        nn.Linear(6 * 9, 9),
        shared,
        nn.Linear(9, 9),
        shared,
        nn.Dropout(0.4, inplace=True),
        nn.Linear(9, NUM_CLASSES),
    )


def regression() -> nn.Module:
    return nn.Sequential(nn.Linear(7, 9), nn.Softplus(), nn.Linear(9, 2))


def drawn(*shape: int, high: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    if high:
        return torch.randint(high, shape, generator=generator)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def samples_of(kind: str) -> Samples:
    labels = drawn(NUM_SAMPLES, high=NUM_CLASSES)
    inputs, targets = {
        "vectors": (drawn(NUM_SAMPLES, 7), labels),
        "images": (drawn(NUM_SAMPLES, 3, 5, 5), labels),
        "tokens": (drawn(NUM_SAMPLES, TIME, high=WORDS), drawn(NUM_SAMPLES, TIME, high=WORDS)),
        "numbers": (drawn(NUM_SAMPLES, 7), drawn(NUM_SAMPLES, 2)),
    }[kind]
    if kind == "tokens":
        targets[::3, -1] = -100
    return ArraySamples([inputs], targets, device=CPU, dtype=torch.float64)


MODELS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "gelu": (gelu_mlp, "vectors"),
    "layer-norm": (layer_norm, "vectors"),
    "group-norm": (GroupNormCNN, "images"),
    "batch-norm": (batch_norm, "images"),
    "transformer": (Transformer, "tokens"),
    "tied": (lambda: Transformer(is_tied=True), "tokens"),
    "frozen": (frozen_layer, "vectors"),
    "regression": (regression, "numbers"),
    "dropout": (dropout, "images"),
}
OPTIMIZERS = {
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, amsgrad=True),
}


class Case:
    """A model, its samples, and tasks of two runs for a round."""

    def __init__(self, name: str, seed: int = 0) -> None:
        make, kind = MODELS.get(name, (FunctionalDropout, "vectors"))
        with torch.random.fork_rng([]):
            torch.random.default_generator.manual_seed(seed)
            self.modules = [make().double() for _ in range(2)]
        self.module = self.modules[0]
        self.samples = samples_of(kind)
        self.objective = Objective(has_classes=kind != "numbers")

    def start(self) -> tuple[Tensor, Tensor]:
        none = torch.empty(0, dtype=torch.float64)
        weights = [nn.utils.parameters_to_vector(m.parameters()).detach() for m in self.modules]
        buffers = [
            torch.cat([none, *(b.flatten().double() for b in m.buffers())]) for m in self.modules
        ]
        return torch.stack(weights), torch.stack(buffers)

    def tasks(self, number: int, training: LocalSGD = TRAINING) -> list[ClientTask]:
        return [
            ClientTask(
                run=k % 2,
                batches=draw_batches(
                    torch.arange(15 * k, 15 * k + size),
                    training,
                    RandomStream((100 * number + k,)),
                    least=2,
                ),
                label_map=torch.arange(WORDS).flip(0)[-NUM_CLASSES:]
                if self._is_flipped(k)
                else None,
                seed=1000 * number + k,
            )
            for k, size in enumerate(SIZES)
        ]

    def _is_flipped(self, client: int) -> bool:
        return client == 1 and self.samples.targets.dim() == 1

    def rounds(
        self, train: Callable[..., LocalUpdates], training: LocalSGD = TRAINING
    ) -> list[LocalUpdates]:
        """Train for three rounds: the server applies the mean of the clients of each run."""
        weights, buffers = self.start()
        found = []
        for number in (1, 2, 3):
            tasks = self.tasks(number, training)
            rate = training.learning_rate / number
            updates = train(weights, buffers, tasks, training, rate)
            found.append(updates)
            for run in (0, 1):
                rows = [k for k, task in enumerate(tasks) if task.run == run]
                weights[run] -= updates.gradients[rows].mean(dim=0)
                buffers[run] = updates.buffers[rows[0]]
        return found

    def plain(
        self, optimizer: Callable[..., torch.optim.Optimizer] | None = None
    ) -> Callable[..., LocalUpdates]:
        """Return a plain loop of PyTorch with the arguments of `Trainer.train`."""

        def train(
            weights: Tensor,
            buffers: Tensor,
            tasks: Sequence[ClientTask],
            training: LocalSGD,
            rate: float,
        ) -> LocalUpdates:
            rows = [self._plain(weights, buffers, t, training, rate, optimizer) for t in tasks]
            gradients, losses, after = (torch.stack(part) for part in zip(*rows, strict=True))
            sizes = torch.tensor([task.batches.num_samples for task in tasks])
            return LocalUpdates(
                gradients=gradients, losses=losses, buffers=after, num_samples=sizes
            )

        return train

    def _plain(self, weights, buffers, task, training, rate, optimizer):
        module = copy.deepcopy(self.module).train()
        before = weights[task.run].clone()
        nn.utils.vector_to_parameters(before.clone(), module.parameters())
        start = 0
        for buffer in module.buffers():
            own = buffers[task.run, start : start + buffer.numel()]
            buffer.copy_(own.view_as(buffer))
            start += buffer.numel()
        masks = Masks(module)
        made = plain_optimizer(module, training, rate, optimizer)
        losses = []
        for step, size in enumerate(task.batches.sizes):
            index = task.batches.index[step, :size]
            targets = self.samples.targets[index]
            if task.label_map is not None:
                targets = task.label_map[targets]
            masks.begin(torch.tensor(step_key(task.seed, step)))
            outputs = module(*self.samples.inputs(index))
            if outputs.dim() == 3:
                outputs, targets = outputs.flatten(0, 1), targets.flatten()
            has_classes = self.objective.has_classes
            loss = (F.cross_entropy if has_classes else F.mse_loss)(outputs, targets)
            made.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(module.parameters(), training.max_norm)
            made.step()
            losses.append(loss.detach())
        after = nn.utils.parameters_to_vector(module.parameters()).detach()
        none = torch.empty(0, dtype=torch.float64)
        state = torch.cat([none, *(b.flatten().double() for b in module.buffers())])
        return before - after, torch.stack(losses).mean(), state


def plain_optimizer(module, training, rate, optimizer):
    if optimizer is None:
        return torch.optim.SGD(
            [p for p in module.parameters() if p.requires_grad],
            lr=rate,
            momentum=training.momentum,
            weight_decay=training.weight_decay,
        )
    made = optimizer([p for p in module.parameters() if p.requires_grad])
    for group in made.param_groups:
        group["lr"] *= rate / training.learning_rate
    return made


def assert_same(found: list[LocalUpdates], expected: list[LocalUpdates]) -> None:
    for mine, other in zip(found, expected, strict=True):
        for name in ("gradients", "losses", "buffers"):
            torch.testing.assert_close(
                getattr(mine, name), getattr(other, name), rtol=TOLERANCE, atol=TOLERANCE
            )
        assert torch.equal(mine.num_samples, other.num_samples)


@pytest.mark.parametrize("name", MODELS)
def test_all_trainers_equal_a_plain_loop(name: str) -> None:
    case = Case(name)
    expected = case.rounds(case.plain())
    given = (case.module, case.samples, case.objective)
    assert_same(case.rounds(SequentialTrainer(*given).train), expected)
    for has_products in (True, False):
        trainer = VmapTrainer(*given, has_products=has_products)
        assert_same(case.rounds(trainer.train), expected)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", ["gelu", "tied", "group-norm"])
def test_optimisers_of_the_caller_equal_a_plain_loop(name: str, optimizer: str) -> None:
    case, make = Case(name), OPTIMIZERS[optimizer]
    expected = case.rounds(case.plain(make))
    given = (case.module, case.samples, case.objective, make)
    assert_same(case.rounds(SequentialTrainer(*given).train), expected)
    assert_same(case.rounds(VmapTrainer(*given, has_products=True).train), expected)


@pytest.mark.parametrize("kind", ELEMENTWISE, ids=lambda kind: kind.__name__)
def test_elementwise_optimisers_act_on_stacked_models_as_on_each(kind: type) -> None:
    case = Case("gelu")
    given = (case.module, case.samples, case.objective, lambda p: kind(p, lr=0.01))
    training = replace(TRAINING, num_epochs=2)
    one = case.rounds(SequentialTrainer(*given).train, training)
    assert_same(case.rounds(VmapTrainer(*given).train, training), one)


def test_convolution_as_a_product_has_the_gradients_of_torch() -> None:
    plain = nn.Conv2d(3, 4, 3, stride=2, padding=1).double()
    other = copy.deepcopy(plain)
    use_products(other)
    images = drawn(2, 3, 7, 7)
    found = []
    for layer in (plain, other):
        own = images.clone().requires_grad_()
        output = layer(own)
        wanted = [own, *layer.parameters()]
        found.append([output.detach(), *torch.autograd.grad(output.square().sum(), wanted)])
        assert layer(images[0]).shape == (4, 4, 4)
    for mine, expected in zip(*found, strict=True):
        torch.testing.assert_close(mine, expected, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("name", MODELS)
def test_scores_are_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(name)
    monkeypatch.setattr(vmap_module, "VALUES_ON_CPU", 1)  # One run at a time.
    weights, buffers = case.start()
    given = (case.module, case.samples, case.objective)
    one = SequentialTrainer(*given).evaluate(weights, buffers, case.samples)
    other = VmapTrainer(*given, has_products=True).evaluate(weights, buffers, case.samples)
    for mine, expected in zip(other, one, strict=True):
        assert mine.accuracy == expected.accuracy
        assert (mine.loss is None) == (expected.loss is None)
        assert (mine.loss or 0) == pytest.approx(expected.loss or 0, rel=TOLERANCE)


def test_client_alone_gets_the_masks_that_it_gets_beside_others() -> None:
    case = Case("dropout")
    given = (case.module, case.samples, case.objective)
    weights, buffers = case.start()
    tasks = case.tasks(1)
    for trainer in (SequentialTrainer(*given), VmapTrainer(*given)):
        together = trainer.train(weights, buffers, tasks, TRAINING, 0.1)
        for k, task in enumerate(tasks):
            alone = trainer.train(weights, buffers, [task], TRAINING, 0.1)
            torch.testing.assert_close(
                alone.gradients[0], together.gradients[k], rtol=0, atol=1e-12
            )


def test_masks_depend_on_seed_step_and_layer_and_keep_the_right_share() -> None:
    layers = nn.Sequential(nn.Dropout(0.3), nn.Dropout(0.3))
    masks = Masks(layers)
    ones = torch.ones(200, 500)

    def draw(seed: int, step: int) -> tuple[Tensor, Tensor]:
        masks.begin(torch.tensor(step_key(seed, step)))
        return layers[0](ones), layers[1](ones)

    first, second = draw(1, 0)
    assert torch.equal(first, draw(1, 0)[0])
    others = [second, draw(1, 1)[0], draw(2, 0)[0]]
    for each in [first, *others]:
        # Of 100,000 values, the share has a standard deviation of 0.0015.
        assert float((each > 0).double().mean()) == pytest.approx(0.7, abs=0.006)
        assert float(each.max()) == pytest.approx(1 / 0.7)
    for other in others:
        # Independent masks agree in 0.7^2 + 0.3^2 of the values.
        assert float((first == other).double().mean()) == pytest.approx(0.58, abs=0.01)
    kept = (first > 0).double()
    for one, next_one in ((kept[:, :-1], kept[:, 1:]), (kept[:-1], kept[1:])):
        assert float((one * next_one).mean()) == pytest.approx(0.49, abs=0.01)
    layers.eval()
    assert torch.equal(draw(1, 0)[1], ones)


@pytest.mark.parametrize(
    "layer",
    [nn.Dropout1d(0.5), nn.Dropout2d(0.5), nn.Dropout3d(0.5), nn.FeatureAlphaDropout(0.5)],
    ids=lambda layer: type(layer).__name__,
)
def test_dropout_by_channel_drops_whole_channels(layer: nn.Module) -> None:
    dims = {nn.Dropout1d: 1, nn.Dropout2d: 2, nn.Dropout3d: 3}.get(type(layer), 2)
    Masks(layer).begin(torch.tensor(step_key(3, 0)))
    found = layer(torch.ones(20, 50, *[3] * dims)).flatten(2)
    assert torch.equal(found, found[..., :1].expand_as(found))
    assert len(found.unique()) == 2


def test_alpha_dropout_keeps_mean_and_variance() -> None:
    layer = nn.AlphaDropout(0.2)
    Masks(layer).begin(torch.tensor(step_key(5, 0)))
    values = drawn(400, 500)
    found = layer(values)
    assert float(found.mean()) == pytest.approx(0, abs=0.01)
    assert float(found.std()) == pytest.approx(1, abs=0.01)


def test_functional_dropout_trains_one_after_another_and_is_reported() -> None:
    case = Case("functional")
    trainer = choose_trainer(case.module, case.samples, case.objective)
    assert trainer.name == "sequential"
    assert "random numbers" in trainer.reason
    state = torch.random.get_rng_state()
    first = case.rounds(trainer.train)
    assert torch.equal(torch.random.get_rng_state(), state)
    weights, buffers = case.start()
    tasks = case.tasks(1)
    again = trainer.train(weights, buffers, tasks[::-1], TRAINING, 0.1)
    assert torch.equal(first[0].gradients, again.gradients.flip(0))
    other = trainer.train(weights, buffers, [replace(tasks[0], seed=77)], TRAINING, 0.1)
    assert not torch.equal(other.gradients[0], first[0].gradients[0])
    with pytest.raises(ValueError, match=r"trainer vmap cannot train this model: .*random numbers"):
        choose_trainer(case.module, case.samples, case.objective, name="vmap")


class Noise(nn.Module):
    """A model that draws when it is evaluated too."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(7, NUM_CLASSES)

    def forward(self, values: Tensor) -> Tensor:
        return self.out(values + 5 * torch.randn_like(values))


def test_model_that_draws_when_evaluated_has_the_same_score_twice() -> None:
    trainer = SequentialTrainer(Noise().double(), samples_of("vectors"))
    weights = drawn(3, 7 * NUM_CLASSES + NUM_CLASSES)
    buffers = torch.empty(3, 0, dtype=torch.float64)
    first, second = (trainer.evaluate(weights, buffers, trainer.samples) for _ in range(2))
    assert [score.accuracy for score in first] == [score.accuracy for score in second]


def test_random_calls_are_those_that_draw() -> None:
    values = drawn(1, 1, 4, 8)
    with RandomCalls() as calls:
        F.scaled_dot_product_attention(values, values, values)
        F.dropout(values, 0.0)
        F.dropout(values, 0.5, training=False)
        torch.randn(3, generator=torch.Generator())
    assert calls.names == []
    with RandomCalls() as calls:
        F.dropout(values, 0.5)
        torch.rand(3)
    assert len(calls.names) == 2


def test_own_poison_changes_what_a_client_trains_on() -> None:
    case = Case("gelu")
    given = (case.module, case.samples, case.objective)

    def poison(values: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return -values, (labels + 1) % NUM_CLASSES

    weights, buffers = case.start()
    tasks = case.tasks(1)
    tasks[3] = replace(tasks[3], poison=poison)
    one = SequentialTrainer(*given).train(weights, buffers, tasks, TRAINING, 0.1)
    other = VmapTrainer(*given).train(weights, buffers, tasks, TRAINING, 0.1)
    clean = VmapTrainer(*given).train(weights, buffers, case.tasks(1), TRAINING, 0.1)
    assert_same([other], [one])
    is_other = (other.gradients - clean.gradients).abs().amax(dim=1) > 1e-6
    assert is_other.tolist() == [False, False, False, True, False, False]


def test_chunk_that_does_not_fit_is_done_in_halves() -> None:
    done = []

    def work(part: slice) -> int:
        if part.stop - part.start > 3:
            raise torch.cuda.OutOfMemoryError("too large")
        done.extend(range(part.start, part.stop))
        return part.stop - part.start

    assert in_chunks(work, 17, 16) == ([2] * 8 + [1], 2)
    assert done == list(range(17))
    with pytest.raises(torch.cuda.OutOfMemoryError):
        in_chunks(lambda _: work(slice(0, 9)), 2, 2)


def test_memory_that_runs_out_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("batch-norm")
    given = (case.module, case.samples, case.objective)
    expected = case.rounds(SequentialTrainer(*given).train)
    real = vmap_module._Chunk.train

    def small(chunk, training, rate):
        real(chunk, training, rate)
        if len(chunk.tasks) > 2:
            raise torch.cuda.OutOfMemoryError("too large")

    monkeypatch.setattr(vmap_module._Chunk, "train", small)
    trainer = VmapTrainer(*given)
    assert_same(case.rounds(trainer.train), expected)
    assert trainer._num_models == 1  # Half of six clients are three, which is still too many.


def test_small_batches_of_an_epoch_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("gelu")
    trainer = VmapTrainer(case.module, case.samples)
    real, calls = trainer.losses, []

    def counted(parameters, buffers, inputs, targets, keys):
        calls.append(tuple(targets.shape))
        return real(parameters, buffers, inputs, targets, keys)

    monkeypatch.setattr(trainer, "losses", counted)
    training = replace(TRAINING, num_epochs=2)
    found = case.rounds(trainer.train, training)
    # Clients have 8, 11, 3, 10, 4 and 8 samples: the last one of 9 is no batch. Those with full
    # batches only do not wait.
    small = [(1, 2), (2, 3)]
    assert calls == [(5, 4), (5, 4), (2, 4), (2, 4), *small, (2, 4), (2, 4), *small] * 3
    one = SequentialTrainer(case.module, case.samples)
    assert_same(found, case.rounds(one.train, training))


def test_client_without_a_batch_keeps_its_weights() -> None:
    case = Case("gelu")
    empty = draw_batches(torch.empty(0, dtype=torch.int64), TRAINING, RandomStream((0,)))
    tasks = [*case.tasks(1), ClientTask(1, empty)]
    weights, buffers = case.start()
    for optimizer in (None, OPTIMIZERS["adam"]):
        trainer = VmapTrainer(case.module, case.samples, case.objective, optimizer)
        found = trainer.train(weights, buffers, tasks, TRAINING, 0.1)
        assert not found.gradients[-1].any()
        assert float(found.losses[-1]) == 0
        nothing = trainer.train(weights, buffers, tasks[-1:], TRAINING, 0.1)
        assert not nothing.gradients.any()


def names_of(trainer: Trainer) -> tuple[str, str]:
    return trainer.name, trainer.reason


def test_trainers_that_are_asked_for() -> None:
    case = Case("gelu")
    given = (case.module, case.samples, case.objective)
    assert names_of(choose_trainer(*given)) == ("sequential", "")
    assert names_of(choose_trainer(*given, name="vmap")) == ("vmap", "")
    known = nn.Sequential(nn.Linear(7, 9), nn.ReLU(), nn.Linear(9, NUM_CLASSES))
    stacked = choose_trainer(known, case.samples, case.objective, name="stacked")
    assert names_of(stacked) == ("stacked", "")
    with pytest.raises(
        ValueError, match=r"stacked cannot train this model: .* kind GELU; set auto"
    ):
        choose_trainer(*given, name="stacked")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("frozen", "no frozen parameters"),
        ("tied", "one class per sample"),
        ("regression", "one class per sample"),
    ],
)
def test_fast_path_refuses_what_it_does_not_know(name: str, reason: str) -> None:
    case = Case(name)
    with pytest.raises(ValueError, match=reason):
        choose_trainer(case.module, case.samples, case.objective, name="stacked")


def test_fast_path_refuses_a_model_that_it_would_compute_otherwise() -> None:
    case = Case("batch-norm")
    # The fast path has the channels last, so that this layer would see channels for columns.
    module = nn.Sequential(nn.Linear(5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(45, NUM_CLASSES))
    with pytest.raises(ValueError, match="other outputs"):
        choose_trainer(module, case.samples, case.objective, name="stacked")
    assert choose_trainer(module, case.samples, case.objective, name="vmap").name == "vmap"


class FunctionalGroupNorm(nn.Module):
    """An operation that does not take the memory layout of products under vmap."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3)
        self.out = nn.Linear(4, NUM_CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return self.out(F.group_norm(self.first(images), 2).mean(dim=(2, 3)))


def test_convolutions_are_torchs_where_products_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("group-norm")
    module = FunctionalGroupNorm().double()
    case.modules = [module, module]
    given = (module, case.samples, case.objective)
    with pytest.raises(RuntimeError):
        VmapTrainer(*given, has_products=True).trial()
    monkeypatch.setattr("outvote.training.choose_trainer.prefers_products", lambda _: True)
    trainer = choose_trainer(*given, name="vmap")
    assert_same(case.rounds(trainer.train), case.rounds(SequentialTrainer(*given).train))


class DataDependent(nn.Module):
    """A model with a branch that depends on the values."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(7, NUM_CLASSES)

    def forward(self, values: Tensor) -> Tensor:
        found = self.out(values)
        return found if found.sum() > 0 else 2 * found


def test_model_that_vmap_cannot_run_is_refused_in_one_line() -> None:
    samples = samples_of("vectors")
    with pytest.raises(ValueError, match=r"vmap cannot run it .*control flow") as caught:
        choose_trainer(DataDependent(), samples, Objective(), name="vmap")
    assert "\n" not in str(caught.value)


def adafactor(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adafactor(parameters, lr=0.01)


def test_other_optimisers_train_one_by_one() -> None:
    case = Case("gelu")
    given = (case.module, case.samples, case.objective, adafactor)
    with pytest.raises(ValueError, match="the optimiser Adafactor"):
        choose_trainer(*given, name="vmap")
    assert choose_trainer(*given).name == "sequential"


def test_optimisers_that_cannot_be_used_are_refused() -> None:
    case = Case("gelu")
    given = (case.module, case.samples, case.objective)
    with pytest.raises(ValueError, match="LBFGS, which needs a closure"):
        choose_trainer(*given, torch.optim.LBFGS)
    with pytest.raises(TypeError, match=r"must make a torch.optim.Optimizer, got list"):
        choose_trainer(*given, list)


def test_model_or_loss_that_does_not_fit_is_refused_before_training() -> None:
    case = Case("gelu")
    with pytest.raises(ValueError, match=r"must take the training samples .*RuntimeError"):
        choose_trainer(nn.Linear(8, NUM_CLASSES), case.samples, case.objective)
    vector = Objective(lambda outputs, targets: F.cross_entropy(outputs, targets, reduction="none"))
    with pytest.raises(ValueError, match=r"one number for a batch, got \(2,\)"):
        choose_trainer(case.module, case.samples, vector)


def test_bfloat16_products_are_close_to_float64() -> None:
    case = Case("group-norm")
    weights, buffers = case.start()
    tasks = case.tasks(1)
    exact = SequentialTrainer(case.module, case.samples).train(
        weights, buffers, tasks, TRAINING, 0.1
    )
    inputs = case.samples.inputs(torch.arange(NUM_SAMPLES))
    samples = ArraySamples(inputs, case.samples.targets, device=CPU)
    for name in ("float32", "bfloat16"):
        trainer = VmapTrainer(case.module, samples, precision=name, has_products=True)
        found = trainer.train(weights.float(), buffers, tasks, TRAINING, 0.1)
        assert found.gradients.dtype == torch.float32
        error = (found.gradients - exact.gradients).norm() / exact.gradients.norm()
        assert float(error) < {"float32": 1e-5, "bfloat16": 0.05}[name]
        if name == "bfloat16":
            assert float(error) > 1e-4


class TorchTransformer(nn.Module):
    """Torch's own layer, with dropout in its attention too."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(WORDS, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
        self.out = nn.Linear(8, WORDS)
        self.register_buffer("is_later", torch.ones(TIME, TIME, dtype=torch.bool).triu(1))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.layer(self.tokens(tokens), src_mask=self.is_later))


def test_layers_of_torchs_transformer_get_masks_too() -> None:
    case = Case("tied")
    module = TorchTransformer().double()
    case.modules = [module, module]
    given = (module, case.samples, case.objective)
    trainer = choose_trainer(*given, name="vmap")
    assert names_of(trainer) == ("vmap", "")
    one = SequentialTrainer(*given)
    assert not one.is_random
    assert_same(case.rounds(trainer.train), case.rounds(one.train))
    scores = one.evaluate(*case.start(), case.samples)
    assert [s.accuracy for s in trainer.evaluate(*case.start(), case.samples)] == [
        s.accuracy for s in scores
    ]


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("mask", ["none", "square", "each", "padding", "both"])
def test_attention_with_masks_is_torchs_where_nothing_is_dropped(
    mask: str, batch_first: bool
) -> None:
    # A rate so small that every value is kept.
    own = nn.MultiheadAttention(8, 2, dropout=1e-14, batch_first=batch_first).double()
    plain = nn.MultiheadAttention(8, 2, batch_first=batch_first).double()
    plain.load_state_dict(own.state_dict())
    Masks(own).begin(torch.tensor(step_key(0, 0)))
    query, key = drawn(3, 4, 8), drawn(3, 5, 8)
    named: dict[str, Tensor] = {}
    if mask in ("square", "both"):
        named["attn_mask"] = torch.ones(4, 5, dtype=torch.bool).triu(2)
    if mask == "each":
        named["attn_mask"] = drawn(6, 4, 5)
    if mask in ("padding", "both"):
        padding = torch.zeros(3, 5)
        padding[1, 3:] = float("-inf")
        named["key_padding_mask"] = padding if mask == "padding" else padding < 0
    if not batch_first:
        query, key = query.transpose(0, 1), key.transpose(0, 1)
    for needs in ({}, {"average_attn_weights": False}, {"need_weights": False}):
        found = own(query, key, key, **named, **needs)
        expected = plain(
            query,
            key,
            key,
            **{k: v.double() if v.is_floating_point() else v for k, v in named.items()},
            **needs,
        )
        torch.testing.assert_close(found, expected, rtol=TOLERANCE, atol=TOLERANCE)


def decay_of_matrices(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    parameters = list(parameters)
    return torch.optim.Adagrad(
        [
            {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": 0.1},
            {"params": [p for p in parameters if p.dim() < 2], "lr": 0.02},
        ],
        lr=0.01,
        initial_accumulator_value=0.3,
    )


def own_case(module: nn.Module, kind: str) -> Case:
    case = Case({"vectors": "gelu", "tokens": "transformer"}[kind])
    case.module = module.double()
    case.modules = [case.module, copy.deepcopy(case.module)]
    return case


def test_groups_by_the_number_of_axes_are_those_of_one_model() -> None:
    case = Case("gelu")
    expected = case.rounds(case.plain(decay_of_matrices))
    given = (case.module, case.samples, case.objective, decay_of_matrices)
    trainer = choose_trainer(*given, name="vmap")
    assert trainer.name == "vmap"
    assert_same(case.rounds(trainer.train), expected)


class Padded(nn.Module):
    """An embedding with settings of its own; the output has its weights."""

    def __init__(self, **settings: object) -> None:
        super().__init__()
        self.tokens = nn.Embedding(WORDS, 8, **settings)
        self.mix = nn.Linear(8, 8)

    def forward(self, tokens: Tensor) -> Tensor:
        return F.linear(self.mix(self.tokens(tokens)).tanh(), self.tokens.weight[: WORDS - 2])


@pytest.mark.parametrize("padding", [0, WORDS - 1])
def test_padding_of_an_embedding_gets_no_gradient_from_it(padding: int) -> None:
    case = own_case(Padded(padding_idx=padding), "tokens")
    case.samples.targets.clamp_(max=WORDS - 3)
    assert bool((case.samples.inputs(torch.arange(NUM_SAMPLES))[0] == padding).any())
    trainer = choose_trainer(case.module, case.samples, case.objective, name="vmap")
    assert_same(case.rounds(trainer.train), case.rounds(case.plain()))
    training = replace(TRAINING, weight_decay=0.0)
    found = trainer.train(*case.start(), case.tasks(1), training, 0.1)
    rows = found.gradients[:, : 8 * WORDS].view(-1, WORDS, 8)
    # The first row is also one of the output.
    assert bool(rows[:, padding].any()) == (padding == 0)


@pytest.mark.parametrize(("setting", "value"), [("max_norm", 1.0), ("scale_grad_by_freq", True)])
def test_embeddings_that_vmap_computes_otherwise_are_refused(setting: str, value: object) -> None:
    case = own_case(Padded(**{setting: value}), "tokens")
    case.samples.targets.clamp_(max=WORDS - 3)
    with pytest.raises(ValueError, match=f"other results than plain PyTorch .{setting}"):
        choose_trainer(case.module, case.samples, case.objective, name="vmap")


class ForgottenUnderVmap(torch.autograd.Function):
    """The identity, with a gradient that is another one under vmap."""

    @staticmethod
    def forward(values: Tensor) -> Tensor:
        return values.clone()

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        pass

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return 2 * gradient

    @staticmethod
    def vmap(info, in_dims, values: Tensor) -> tuple[Tensor, int]:
        return values.clone(), in_dims[0]


class OtherGradient(FunctionalDropout):
    """A model that vmap trains otherwise."""

    def forward(self, values: Tensor) -> Tensor:
        return self.out(values) + ForgottenUnderVmap.apply(self.out.bias)


class OtherOutput(FunctionalDropout):
    """A model that vmap evaluates otherwise."""

    def forward(self, values: Tensor) -> Tensor:
        found = self.out(values)
        is_mapped = torch._C._functorch.is_batchedtensor(found)
        return found if self.training or not is_mapped else 2 * found


@pytest.mark.parametrize("kind", [OtherGradient, OtherOutput])
def test_vmap_that_differs_from_plain_torch_is_refused(kind: type) -> None:
    case = Case("gelu")
    with pytest.raises(ValueError, match="vmap gives other results than plain PyTorch; set auto"):
        choose_trainer(kind().double(), case.samples, case.objective, name="vmap")


def test_optimiser_that_mixes_models_is_refused() -> None:
    def made(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        found = torch.optim.SGD(parameters, lr=0.1)

        def clip(optimizer, *_: object) -> None:
            nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 0.1)

        found.register_step_pre_hook(clip)
        return found

    case = Case("gelu")
    with pytest.raises(ValueError, match="other results than plain PyTorch"):
        choose_trainer(case.module, case.samples, case.objective, made, name="vmap")


def test_models_that_compute_in_float32_are_compared_too() -> None:
    class Narrow(FunctionalDropout):
        def forward(self, values: Tensor) -> Tensor:
            return (values.float() @ self.out.weight.float().mT).sin().double()

    class Mixed(FunctionalDropout):
        def forward(self, values: Tensor) -> Tensor:
            return self.out(values) @ torch.eye(NUM_CLASSES)

    case = Case("gelu")
    inputs = case.samples.inputs(torch.arange(NUM_SAMPLES))
    samples = ArraySamples(inputs, case.samples.targets, device=CPU)
    for module, own in ((Narrow(), case.samples), (Mixed(), samples)):
        assert choose_trainer(module, own, case.objective, name="vmap").name == "vmap"


class Counting(nn.Module):
    """A model that counts its calls, in a part of it too."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(7, NUM_CLASSES)
        self.num_calls = 0
        self.seen = {"last": None, "sums": [torch.zeros(7)]}
        self.rng = np.random.default_rng(3)

    def forward(self, values: Tensor) -> Tensor:
        self.num_calls += 1
        self.seen["last"] = values.detach()
        self.seen["sums"][0] += values.detach().mean(dim=0)
        shift = float(self.seen["sums"][0].sum()) + float(self.rng.normal())
        return self.out(values) * (1 + 0.1 * self.num_calls + 0.01 * shift)


def test_attributes_that_change_in_forward_are_restored_for_every_client() -> None:
    case = own_case(Counting(), "vectors")
    given = (case.module, case.samples, case.objective)
    trainer = choose_trainer(*given)
    name = "the model changes attributes in its forward pass (num_calls, seen, rng)"
    assert names_of(trainer) == ("sequential", name)
    expected = case.rounds(case.plain())
    assert_same(case.rounds(trainer.train), expected)
    weights, buffers = case.start()
    scores = [
        trainer.evaluate(weights[runs], buffers[runs], case.samples) for runs in ([0], [0, 1])
    ]
    assert scores[0][0].accuracy == scores[1][0].accuracy
    assert case.module.num_calls == 0
    for way in ("vmap", "stacked"):
        with pytest.raises(ValueError, match="changes attributes"):
            choose_trainer(*given, name=way)


def test_attributes_that_forward_only_reads_are_no_state() -> None:
    class Reading(FunctionalDropout):
        def __init__(self) -> None:
            super().__init__()
            self.table = {"scale": [1.0, float("nan")], "kept": torch.ones(7)}
            self.parts, self.other, self.act = [self.out], object(), torch.tanh

        def forward(self, values: Tensor) -> Tensor:
            return self.act(self.parts[0](values * self.table["kept"])) * self.table["scale"][0]

    trainer = SequentialTrainer(Reading().double(), samples_of("vectors"))
    assert trainer.trial.changed == []
    recurrent = SequentialTrainer(nn.LSTM(7, 3), samples_of("vectors"), Objective(_first_sum))
    assert recurrent.trial.changed == []
    graph = torch.fx.symbolic_trace(gelu_mlp().double())
    assert SequentialTrainer(graph, samples_of("vectors")).trial.changed == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_modules_train() -> None:
    case = Case("gelu")
    expected = case.rounds(case.plain())
    scripted = torch.jit.script(case.module)
    assert_same(case.rounds(SequentialTrainer(scripted, case.samples).train), expected)


def _first_sum(outputs: tuple[Tensor, object], targets: Tensor) -> Tensor:
    return outputs[0].sum()


@pytest.mark.parametrize("draw", [random.random, np.random.rand], ids=["python", "numpy"])
@pytest.mark.parametrize("in_training", [True, False])
def test_draws_of_python_and_numpy_are_seeded_for_every_client(
    draw: Callable[[], float], in_training: bool
) -> None:
    class Drawing(FunctionalDropout):
        def forward(self, values: Tensor) -> Tensor:
            found = self.out(values)
            return found * (draw() - 0.5) if self.training == in_training else found

    case = own_case(Drawing(), "vectors")
    trainer = choose_trainer(case.module, case.samples, case.objective)
    assert "random numbers" in trainer.reason
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    before = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    weights, buffers = case.start()
    tasks = case.tasks(1)
    first = trainer.train(weights, buffers, tasks, TRAINING, 0.1)
    scores = trainer.evaluate(weights[[0, 0]], buffers[[0, 0]], case.samples)
    assert scores[0].accuracy == scores[1].accuracy
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # noqa: NPY002
    again = trainer.train(weights, buffers, tasks[::-1], TRAINING, 0.1)
    assert torch.equal(first.gradients, again.gradients.flip(0))
    other = trainer.train(weights, buffers, [replace(tasks[0], seed=77)], TRAINING, 0.1)
    assert torch.equal(other.gradients[0], first.gradients[0]) != in_training


class PartlyUsed(nn.Module):
    """One part is never used, one only in some batches."""

    def __init__(self, *, is_fixed: bool) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(7, 7), nn.Linear(7, NUM_CLASSES)
        self.never, self.some = nn.Linear(7, 3), nn.Linear(7, 7)
        self.is_fixed = is_fixed

    def forward(self, values: Tensor) -> Tensor:
        hidden = self.first(values)
        if not self.is_fixed and float(values[0, 0]) < 0:
            hidden = hidden + self.some(values)
        return self.out(hidden)


@pytest.mark.parametrize("optimizer", [None, OPTIMIZERS["adamw"]], ids=["sgd", "adamw"])
def test_parameters_that_the_loss_does_not_use_get_no_weight_decay(optimizer) -> None:
    for is_fixed, ways in ((True, ("vmap", "sequential")), (False, ("sequential",))):
        case = own_case(PartlyUsed(is_fixed=is_fixed), "vectors")
        # The trial has the first sample.
        case.samples.arrays[0][0, 0] = 1.0
        expected = case.rounds(case.plain(optimizer))
        for way in ways:
            given = (case.module, case.samples, case.objective, optimizer)
            trainer = choose_trainer(*given, name=way)
            assert_same(case.rounds(trainer.train), expected)
        assert bool(expected[0].gradients[:, -56:].any()) != is_fixed


def test_draws_of_other_threads_are_not_those_of_a_known_network():
    """A run must not depend on what else the process does."""
    is_over = threading.Event()

    def draw() -> None:
        while not is_over.is_set():
            random.random()
            time.sleep(1e-6)  # Or the other thread would wait for Python's lock most of the time.

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        inputs, targets = torch.randn(4, 3), torch.tensor([0, 1, 0, 1])
        samples = ArraySamples([inputs], targets, device=CPU)
        module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        assert not any(SequentialTrainer(module, samples).is_random for _ in range(20))
    finally:
        is_over.set()
        thread.join()


SMALLEST = """
import sys

import torch

import outvote as ov

data = torch.randn(40, 6), torch.arange(40) % 3
ov.simulate(torch.nn.Linear(6, 3), data, data, rounds=1, num_clients=4, byzantine=1, device="cpu")
print("torch._dynamo" in sys.modules)
"""


def output_of(script):
    """Return the lines that a program writes, by itself."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    return done.stdout.splitlines()


def test_the_compiler_of_torch_is_not_loaded():
    """It takes more than a second, in every process that trains."""
    assert output_of(SMALLEST)[-1] == "False"


@pytest.mark.parametrize("is_called_before", [False, True])
def test_what_a_compiled_network_draws_is_seen(is_called_before):
    net = torch.compile(nn.Sequential(nn.Linear(4, 4), nn.Dropout()), backend="eager")
    values = torch.ones(2, 4)
    if is_called_before:
        net(values)
    with RandomCalls() as calls:
        net(values).sum().backward()
    assert calls.names == ["bernoulli_"]


COMPILED = """
import torch
from torch import nn

import outvote as ov

data = torch.randn(40, 6, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 3
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3))
settings = {"rounds": 2, "num_clients": 4, "byzantine": 1, "device": "cpu", "progress": False}
for model in (net, torch.compile(net, backend="eager", fullgraph=True)):
    (run,) = ov.simulate(model, data, data, rules="median", attacks="lie", **settings)
    print(*run.series.loss)
"""


def test_a_compiled_network_trains_as_the_network_does():
    # pytest keeps the compiler from following what it would otherwise.
    plain, compiled = output_of(COMPILED)[-2:]
    assert len(plain.split()) == 2
    assert plain == compiled
