"""Every trainer that accepts a network trains it as a plain loop of PyTorch does, in float64."""

import random
import re
import threading
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import outvote as ov
from networks import HANDWRITTEN, NUM_CLASSES, WORDS, Network, Own, drawn, generated, inputs_of
from outvote.engine.simulation import first_state
from outvote.seeding import RandomStream
from outvote.training.batches import draw_batches
from outvote.training.choose_trainer import TRAINERS, choose_trainer
from outvote.training.known_layers import NotAcceptedError
from outvote.training.local_sgd import LocalSGD
from outvote.training.objective import Objective
from outvote.training.samples import ArraySamples
from outvote.training.trainer import ClientTask, LocalUpdates
from outvote.training.vmap_trainer import ELEMENTWISE, VmapTrainer

CPU = torch.device("cpu")
# Sizes for which the last batch is full, partial, and a single one.
SIZES = (8, 11, 3, 10, 4, 9)
TRAINING = LocalSGD(learning_rate=0.1, momentum=0.5, weight_decay=1e-2, max_norm=0.5, batch_size=4)
WAYS = [name for name in TRAINERS if name != "auto"]
TOLERANCE = 1e-9


class Federation:
    """A network, its samples, and the clients of two runs."""

    def __init__(self, network, training=TRAINING, optimizer=None):
        self.network, self.training, self.optimizer = network, training, optimizer
        self.module = network.build(0)
        inputs, targets = inputs_of(network.kind, 15 * len(SIZES))
        self.samples = ArraySamples([inputs], targets, device=CPU, dtype=torch.float64)
        self.objective = Objective.of(
            self.samples.targets, network.loss, has_classes=network.kind != "numbers"
        )

    def trainer(self, name):
        given = self.module, self.samples, self.objective, self.optimizer, "float32"
        return choose_trainer(*given, name)

    def tasks(self, number):
        streams = [RandomStream((100 * number + k,)) for k in range(len(SIZES))]
        tasks = [
            ClientTask(
                k % 2,
                draw_batches(torch.arange(15 * k, 15 * k + size), self.training, stream, least=2),
                seed=1000 * number + k,
            )
            for k, (size, stream) in enumerate(zip(SIZES, streams, strict=True))
        ]
        if self.network.kind != "numbers":
            flip = torch.arange(WORDS if self.network.kind == "texts" else NUM_CLASSES).flip(0)
            tasks[1] = replace(tasks[1], label_map=flip)
        if self.samples.arrays[0].is_floating_point():
            tasks[3] = replace(tasks[3], poison=lambda values, targets: (-values, targets))
        return tasks

    def rounds(self, train):
        """Train for three rounds: the server applies the mean of the clients of each run."""
        networks = [self.network.build(seed) for seed in (0, 1)]
        weights = torch.stack([_vector(each.parameters()) for each in networks])
        buffers = torch.stack([_vector(each.buffers()) for each in networks])
        found = []
        for number in (1, 2, 3):
            rate = self.training.learning_rate / number
            updates = train(weights, buffers, self.tasks(number), self.training, rate)
            found.append(updates)
            weights = weights - torch.stack([updates.gradients[k::2].mean(dim=0) for k in (0, 1)])
            buffers = updates.buffers[:2].clone()
        return found, weights, buffers

    def plain(self, weights, buffers, tasks, training, rate):
        """Train each client by a loop that knows nothing of the library."""
        rows = [self.plain_one(weights[t.run], buffers[t.run], t, training, rate) for t in tasks]
        gradients, losses, after = (torch.stack(part) for part in zip(*rows, strict=True))
        return LocalUpdates(
            gradients=gradients,
            losses=losses,
            buffers=after,
            num_samples=torch.tensor([task.batches.num_samples for task in tasks]),
        )

    def plain_one(self, weights, buffers, task, training, rate):
        module = self.network.build(0).train()
        _load(module.parameters(), weights)
        _load(module.buffers(), buffers)
        own = [each for each in module.parameters() if each.requires_grad]
        start = [each.detach().clone() for each in own]
        optimizer = self.plain_optimizer(own, training, rate)
        losses = []
        with seeded(task.seed):
            for step, size in enumerate(task.batches.sizes):
                index = task.batches.index[step, :size]
                values, targets = self.samples.arrays[0][index], self.samples.targets[index]
                if task.label_map is not None:
                    counted = targets >= 0
                    targets[counted] = task.label_map[targets[counted]]
                if task.poison is not None:
                    values = -values
                optimizer.zero_grad(set_to_none=True)
                loss = self.plain_loss(module(values), targets)
                losses.append(loss.detach())
                if training.proximal:
                    far = sum((a - b).square().sum() for a, b in zip(own, start, strict=True))
                    loss = loss + training.proximal / 2 * far
                loss.backward()
                if training.max_norm is not None:
                    nn.utils.clip_grad_norm_(module.parameters(), training.max_norm)
                optimizer.step()
        loss = torch.stack(losses).mean() if losses else torch.tensor(0.0).double()
        return weights - _vector(module.parameters()), loss, _vector(module.buffers())

    def plain_optimizer(self, own, training, rate):
        if self.optimizer is None:
            settings = {"momentum": training.momentum, "weight_decay": training.weight_decay}
            return torch.optim.SGD(own, lr=rate, **settings)
        made = self.optimizer(own)
        for group in made.param_groups:
            group["lr"] *= rate / training.learning_rate
        return made

    def plain_loss(self, outputs, targets):
        if self.network.loss is not None:
            return self.network.loss(outputs, targets)
        if self.network.kind == "numbers":
            return F.mse_loss(outputs, targets)
        if self.network.kind == "texts":
            outputs, targets = outputs.flatten(0, 1), targets.flatten()
        return F.cross_entropy(outputs, targets)


@contextmanager
def seeded(seed):
    """Seed the generators that a model may draw from."""
    before = random.getstate()
    with torch.random.fork_rng([]):
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        yield
    random.setstate(before)


def _vector(values):
    none = torch.empty(0, dtype=torch.float64)
    return torch.cat([none, *(each.detach().flatten().double() for each in values)])


@torch.no_grad()
def _load(values, vector):
    start = 0
    for each in values:
        each.copy_(vector[start : start + each.numel()].view_as(each))
        start += each.numel()


def assert_same(found, expected):
    for mine, plain in zip(found, expected, strict=True):
        for name in ("gradients", "losses", "buffers"):
            one, other = getattr(mine, name), getattr(plain, name)
            torch.testing.assert_close(one, other, rtol=TOLERANCE, atol=TOLERANCE, msg=name)
        assert torch.equal(mine.num_samples, plain.num_samples)


def check(federation, trainer):
    """Hold a trainer to the plain loop, and its scores to those of plain PyTorch."""
    state = torch.random.get_rng_state()
    before = _vector([*federation.module.parameters(), *federation.module.buffers()])
    expected, weights, buffers = federation.rounds(federation.plain)
    found, *_ = federation.rounds(trainer.train)
    assert_same(found, expected)
    scores = trainer.evaluate(weights, buffers, federation.samples)
    for run, score in enumerate(scores):
        module = federation.network.build(0).eval()
        _load(module.parameters(), weights[run])
        _load(module.buffers(), buffers[run])
        with torch.no_grad(), seeded(0):
            outputs = module(federation.samples.arrays[0])
        assert_score(score, outputs, federation)
    now = _vector([*federation.module.parameters(), *federation.module.buffers()])
    assert torch.equal(before, now)
    assert torch.equal(torch.random.get_rng_state(), state)


def assert_score(score, outputs, federation):
    targets = federation.samples.targets
    if federation.objective.has_test_loss:
        plain = float(federation.plain_loss(outputs, targets))
        assert score.loss == pytest.approx(plain, rel=1e-9)
    if federation.network.kind != "numbers" and isinstance(outputs, Tensor):
        is_right = (outputs.argmax(dim=-1) == targets)[targets >= 0]
        assert score.accuracy == pytest.approx(float(is_right.double().mean()))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.parametrize("name", HANDWRITTEN)
def test_handwritten_networks_equal_a_plain_loop(name):
    network = HANDWRITTEN[name]
    with network.around():
        federation = Federation(network)
        check(federation, federation.trainer("sequential"))
        for way in ("cores", "stacked", "vmap"):
            reason = network.refused.get(way)
            if reason is None:
                check(federation, federation.trainer(way))
                continue
            with pytest.raises(NotAcceptedError, match=reason) as caught:
                federation.trainer(way)
            assert "\n" not in str(caught.value)
            assert f"the trainer {way} cannot train this model, since " in str(caught.value)
        chosen = federation.trainer("auto")
        assert chosen.name == ("sequential" if "cores" in network.refused else "cores")
        assert bool(chosen.reason) == ("cores" in network.refused)


@pytest.mark.parametrize("seed", range(30))
def test_generated_networks_equal_a_plain_loop(seed):
    draw = random.Random(seed)
    network = generated(draw)
    training = LocalSGD(
        learning_rate=draw.choice([0.02, 0.1]),
        momentum=draw.choice([0.0, 0.9]),
        weight_decay=draw.choice([0.0, 0.05]),
        max_norm=draw.choice([None, 0.1, 1e6]),
        batch_size=draw.choice([3, 4, 16]),
        num_epochs=draw.choice([1, 2]),
        proximal=draw.choice([0.0, 0.1]),
    )
    federation = Federation(network, training)
    for way in WAYS:
        if way not in network.refused:
            check(federation, federation.trainer(way))
            continue
        with pytest.raises(NotAcceptedError):
            federation.trainer(way)


@pytest.mark.parametrize("name", ["cnn", "group-norm", "functional-group-norm", "dropout-2d"])
def test_convolutions_as_batched_products_equal_a_plain_loop(name, monkeypatch):
    """As on a GPU; where an operation refuses their layout in memory, torch's own are taken."""
    federation = Federation(HANDWRITTEN[name])
    given = federation.module, federation.samples, federation.objective
    if name == "functional-group-norm":
        with pytest.raises(NotAcceptedError, match="vmap cannot run it"):
            VmapTrainer(*given, has_products=True)
    else:
        check(federation, VmapTrainer(*given, has_products=True))


def decay_of_matrices(parameters):
    parameters = list(parameters)
    return torch.optim.Adagrad(
        [
            {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": 0.1},
            {"params": [p for p in parameters if p.dim() < 2], "lr": 0.02},
        ],
        lr=0.01,
        initial_accumulator_value=0.3,
    )


OPTIMIZERS = {
    **{kind.__name__: lambda own, kind=kind: kind(own, lr=0.01) for kind in ELEMENTWISE},
    "amsgrad": lambda own: torch.optim.AdamW(own, lr=0.01, amsgrad=True),
    "groups": decay_of_matrices,
}


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [*(("own-class", each) for each in OPTIMIZERS), ("tied", "amsgrad"), ("frozen", "groups")],
)
def test_optimisers_of_the_caller_equal_a_plain_loop(name, optimizer):
    federation = Federation(HANDWRITTEN[name], replace(TRAINING, num_epochs=2))
    federation.optimizer = OPTIMIZERS[optimizer]
    for way in ("sequential", "vmap"):
        check(federation, federation.trainer(way))
    for way in ("cores", "stacked"):
        with pytest.raises(NotAcceptedError, match="the optimiser is not local SGD"):
            federation.trainer(way)


@pytest.mark.parametrize("name", ["experts", "two-ways", "never-used"])
def test_parameters_without_a_gradient_take_no_step_of_an_optimiser(name):
    federation = Federation(HANDWRITTEN[name])
    federation.optimizer = lambda own: torch.optim.AdamW(own, lr=0.01, weight_decay=0.5)
    check(federation, federation.trainer("sequential"))


class Clipping(torch.optim.SGD):
    """An optimiser of a user."""


def hooked(own):
    made = torch.optim.SGD(own, lr=0.1)
    made.register_step_pre_hook(lambda *_: None)
    return made


@pytest.mark.parametrize(
    ("optimizer", "reason"),
    [
        (lambda own: Clipping(own, lr=0.1), "the optimiser Clipping is not one of torch's own"),
        (hooked, "the optimiser has hooks"),
        (lambda _: torch.optim.SGD([nn.Parameter(torch.ones(2))]), "has other parameters"),
    ],
)
def test_optimisers_that_may_mix_models_train_one_after_the_other(optimizer, reason):
    federation = Federation(HANDWRITTEN["own-class"], optimizer=optimizer)
    with pytest.raises(NotAcceptedError, match=reason):
        federation.trainer("vmap")
    assert federation.trainer("auto").name == "sequential"


def test_optimisers_that_cannot_be_used_are_refused():
    for optimizer, kind, text in (
        (torch.optim.LBFGS, ValueError, "LBFGS, which needs a closure"),
        (list, TypeError, "must make a torch.optim.Optimizer, got list"),
    ):
        with pytest.raises(kind, match=text):
            Federation(HANDWRITTEN["mlp"], optimizer=optimizer).trainer("auto")


@pytest.mark.parametrize("way", ["sequential", "vmap"])
def test_a_client_alone_gets_the_masks_that_it_gets_beside_others(way):
    federation = Federation(HANDWRITTEN["dropout"])
    weights = _vector(federation.module.parameters()).repeat(2, 1)
    given = weights, torch.empty(2, 0, dtype=torch.float64)
    trainer, tasks = federation.trainer(way), federation.tasks(1)
    together = trainer.train(*given, tasks, TRAINING, 0.1)
    for k, task in enumerate(tasks):
        alone = trainer.train(*given, [task], TRAINING, 0.1)
        torch.testing.assert_close(alone.gradients[0], together.gradients[k], rtol=0, atol=1e-12)
    other = trainer.train(*given, [replace(tasks[0], seed=77)], TRAINING, 0.1)
    assert not torch.allclose(other.gradients[0], together.gradients[0])


def test_draws_of_python_and_numpy_are_those_of_the_client():
    federation = Federation(HANDWRITTEN["python-noise"])
    trainer, tasks = federation.trainer("sequential"), federation.tasks(1)
    weights = _vector(federation.module.parameters()).repeat(2, 1)
    given = weights, torch.empty(2, 0, dtype=torch.float64)
    state = np.random.get_state()[1].tolist()  # noqa: NPY002
    first = trainer.train(*given, tasks, TRAINING, 0.1)
    again = trainer.train(*given, tasks[::-1], TRAINING, 0.1)
    assert torch.equal(first.gradients, again.gradients.flip(0))
    assert np.random.get_state()[1].tolist() == state  # noqa: NPY002


def test_another_number_of_parameters_in_a_later_batch_is_an_error_of_vmap():
    class Later(nn.Module):
        def __init__(self):
            super().__init__()
            self.out, self.some, self.calls = nn.Linear(7, 5), nn.Linear(7, 5), 0

        def forward(self, values):
            self.calls += 1
            return self.out(values) + (self.some(values) if self.calls < 4 else 0)

    federation = Federation(Network(Later, "vectors"))
    trainer = federation.trainer("vmap")
    with pytest.raises(RuntimeError, match=r"does not depend on some\.weight.*set trainer='seq"):
        federation.rounds(trainer.train)


def test_a_client_without_a_batch_keeps_its_weights():
    for name in WAYS:
        federation = Federation(HANDWRITTEN["mlp"])
        trainer = federation.trainer(name)
        empty = draw_batches(torch.empty(0, dtype=torch.int64), TRAINING, RandomStream((0,)))
        weights = _vector(federation.module.parameters()).repeat(2, 1)
        given = weights, torch.empty(2, 0, dtype=torch.float64)
        tasks = [ClientTask(1, empty), *federation.tasks(1)]
        for some in (tasks, tasks[:1]):
            found = trainer.train(*given, some, TRAINING, 0.1)
            assert not found.gradients[0].any()
            assert float(found.losses[0]) == 0


def test_memory_that_runs_out_loses_nothing(monkeypatch):
    federation = Federation(HANDWRITTEN["group-norm"])
    trainer = federation.trainer("vmap")
    real = trainer.losses

    def small(parameters, *given):
        if len(next(iter(parameters.values()))) > 2:
            raise torch.cuda.OutOfMemoryError("too large")
        return real(parameters, *given)

    monkeypatch.setattr(trainer, "losses", small)
    check(federation, trainer)


def test_bfloat16_products_are_close_to_float64():
    federation = Federation(HANDWRITTEN["group-norm"])
    weights, buffers = _vector(federation.module.parameters()).repeat(2, 1), torch.empty(2, 0)
    exact = federation.plain(weights, buffers.double(), federation.tasks(1), TRAINING, 0.1)
    samples = ArraySamples(federation.samples.arrays, federation.samples.targets, device=CPU)
    for name, limits in (("float32", (0, 1e-5)), ("bfloat16", (1e-4, 0.1))):
        trainer = VmapTrainer(federation.module, samples, precision=name, has_products=True)
        given = weights.float(), buffers.double(), federation.tasks(1), TRAINING, 0.1
        found = trainer.train(*given).gradients
        error = float((found - exact.gradients).norm() / exact.gradients.norm())
        assert limits[0] < error < limits[1]


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.parametrize("name", [each for each in HANDWRITTEN if each != "regression"])
def test_the_public_check_accepts_what_the_plain_loop_does(name, device):
    network = HANDWRITTEN[name]
    if device.type == "cpu" and name not in CHECKED:
        pytest.skip("on a CPU the plain loop says it")
    with network.around():
        module = network.build(0)
        before = _vector([*module.parameters(), *module.buffers()])
        found = ov.check_model(
            module, inputs_of(network.kind, 60), loss=network.loss, device=device
        )
        assert torch.equal(before, _vector([*module.parameters(), *module.buffers()]))
    assert found.differences.keys() | found.refused.keys() == {"cores", "stacked", "vmap"}
    if device.type == "cpu":
        assert found.refused.keys() == network.refused.keys()
        for way, reason in network.refused.items():
            assert re.search(reason, found.refused[way])
            assert f"{way}: {found.refused[way]}" in str(found)


CHECKED = ("mlp", "fire", "dropout", "parameter-hook", "experts", "scripted", "two-outputs")


class WrongUnderVmap(torch.autograd.Function):
    """The identity, with a gradient that is another one under vmap."""

    @staticmethod
    def forward(values):
        return values.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient

    @staticmethod
    def vmap(info, in_dims, values):
        return values.clone(), in_dims[0]


def test_the_public_check_finds_a_trainer_that_differs():
    class Wrong(nn.Module):
        def __init__(self):
            super().__init__()
            self.out = nn.Linear(7, 5)

        def forward(self, values):
            return self.out(values) + WrongUnderVmap.apply(self.out.bias)

    with pytest.raises(ov.ConformanceError, match=r"vmap-equals-sequential.*\n.*set trainer="):
        ov.check_model(Wrong(), inputs_of("vectors", 60))
    with pytest.raises(ValueError, match="cannot take a batch"):
        ov.check_model(nn.Linear(8, 5), inputs_of("vectors", 60))


ALL = {"cores", "stacked", "vmap"}
LIBRARY = {
    "mlp": ((1, 9, 9), ALL),
    "small-cnn": ((1, 12, 12), ALL),
    "leaf-cnn-small": ((1, 8, 8), ALL),
    "gelu-mlp": ((7,), {"cores", "vmap"}),
}
DEEP = {
    "alexnet": ((3, 32, 32), ALL),
    "squeezenet": ((3, 8, 8), ALL),
    "resnet18": ((3, 32, 32), ALL),
}


@pytest.mark.parametrize(
    "name", [*LIBRARY, *(pytest.param(each, marks=pytest.mark.slow) for each in DEEP)]
)
def test_networks_of_the_library_are_trained_alike(name, device):
    if device.type != "cpu" and name in DEEP:
        pytest.skip("batch normalisation of few samples makes rounding errors of float32 large")
    shape, accepting = (LIBRARY | DEEP)[name]
    module = ov.make_model(name, num_classes=5, input_shape=(*shape[1:], *shape[:1]), seed=0)
    found = ov.check_model(module, (drawn(30, *shape), torch.arange(30) % 5), device=device)
    assert set(found.differences) == accepting - ({"cores"} if device.type == "cuda" else set())


def test_other_threads_read_the_weights_of_the_network_and_not_of_a_client():
    federation = Federation(HANDWRITTEN["own-class"])
    own, seen = _vector(federation.module.parameters()), []
    trainer, is_over = federation.trainer("sequential"), threading.Event()

    def read():
        while not is_over.is_set():
            seen.append(first_state([federation.module], federation.samples).weights[0])

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for _ in range(3):
            federation.rounds(trainer.train)
    finally:
        is_over.set()
        reader.join()
    assert len(seen) > 3
    assert all(torch.equal(each, own) for each in seen)


def test_a_network_that_fails_has_its_own_weights_and_mode_again():
    class Failing(Own):
        def forward(self, values):
            if len(values) == 3:
                raise KeyError("three")
            return super().forward(values)

    federation = Federation(Network(Failing, "vectors"))
    federation.module.eval()
    before = _vector(federation.module.parameters())
    with pytest.raises(KeyError, match="three"):
        federation.rounds(federation.trainer("sequential").train)
    assert torch.equal(_vector(federation.module.parameters()), before)
    assert not any(part.training for part in federation.module.modules())
    assert all(each.grad is None for each in federation.module.parameters())
