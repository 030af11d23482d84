"""Gradients without autograd: those of autograd, to the last bit; other networks keep autograd."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import outvote as ov
from outvote.training import sequential
from outvote.training.layer_chain import _relu_late, make_chain
from outvote.training.objective import Objective
from outvote.training.samples import ArraySamples
from outvote.training.sequential import FlatModel, SequentialTrainer

CPU = torch.device("cpu")


def batch(*shape, num=64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(num, *shape, generator=generator)
    return inputs, torch.randint(10, (num,), generator=generator)


def flat(module, inputs):
    return FlatModel(module, inputs.dtype, CPU)


def by_autograd(module, inputs, targets):
    model = flat(module, inputs)
    loss = F.cross_entropy(model.module(inputs), targets)
    loss.backward()
    return loss.detach(), model.gradient


def by_chain(module, inputs, targets):
    model = flat(module, inputs)
    model.gradient.fill_(torch.nan)
    chain = make_chain(model.module, inputs[:2], targets[:2])
    return chain.loss(inputs.clone(), targets), model.gradient


def seeded(*layers):
    torch.manual_seed(0)  # noqa: TID251
    return nn.Sequential(*(make() for make in layers))


# ReLU everywhere that it can move, windows that overlap, are padded or leave a rest, and groups.
POOLED = [
    lambda: nn.Conv2d(3, 6, 3, padding=1, groups=3),
    nn.ReLU,
    lambda: nn.MaxPool2d(3, stride=2, padding=1, ceil_mode=True),
    lambda: nn.Conv2d(6, 4, 3, stride=2),
    nn.ReLU,
    lambda: nn.MaxPool2d(2),
    nn.Flatten,
    lambda: nn.Linear(16, 12),
    lambda: nn.ReLU(inplace=True),
    lambda: nn.Linear(12, 10),
]


class TestSameBits:
    @pytest.mark.parametrize("name", ["mlp", "small-cnn", "leaf-cnn-small"])
    @pytest.mark.parametrize("num", [1, 5, 64])
    def test_networks_of_the_library(self, name, num):
        inputs, targets = batch(1, 28, 28, num=num)
        module = ov.make_model(name, num_classes=10, seed=0)
        self.check(module, inputs, targets)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_pooling_of_any_kind(self, dtype):
        inputs, targets = batch(3, 17, 17)
        self.check(seeded(*POOLED), inputs.to(dtype), targets)

    def test_relu_first_and_last_and_vectors(self):
        inputs, targets = batch(7)
        self.check(seeded(nn.ReLU, lambda: nn.Linear(7, 10), nn.ReLU), inputs, targets)

    def test_values_that_are_not_finite(self):
        inputs, targets = batch(3, 17, 17)
        inputs[0, 0, 3, 3] = torch.nan
        inputs[1, 0, 3, 3] = torch.inf
        self.check(seeded(*POOLED), inputs, targets)

    def check(self, module, inputs, targets):
        found, expected = by_chain(module, inputs, targets), by_autograd(module, inputs, targets)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


class Own(nn.Linear):
    """A layer of a user, who may have changed what it computes."""


def tied():
    first, second = nn.Linear(10, 10), nn.Linear(10, 10)
    second.weight = first.weight
    return nn.Sequential(first, nn.ReLU(), second)


def frozen():
    module = nn.Sequential(nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 10))
    module[0].weight.requires_grad_(False)
    return module


def twice():
    layer = nn.Linear(10, 10)
    return nn.Sequential(layer, nn.ReLU(), layer)


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (tied, (10,)),
        (frozen, (10,)),
        (twice, (10,)),
        (lambda: nn.Sequential(Own(10, 10)), (10,)),
        (lambda: nn.Sequential(nn.Linear(10, 10, bias=False)), (10,)),
        (lambda: nn.Sequential(nn.Linear(10, 10), nn.Dropout(0.5)), (10,)),
        (lambda: nn.Sequential(nn.Linear(10, 10), nn.Flatten(0)), (10,)),
        (lambda: nn.Sequential(nn.Linear(10, 10)), (3, 10)),
        (lambda: nn.Sequential(nn.Conv2d(1, 2, 3, padding="same"), nn.Flatten()), (1, 4, 4)),
        (lambda: nn.Sequential(nn.Conv2d(1, 2, 3, padding_mode="circular")), (1, 4, 4)),
        (lambda: nn.Linear(10, 10), (10,)),
    ],
)
def test_other_networks_are_no_chain(make, shape):
    inputs, targets = batch(*shape)
    assert make_chain(flat(make(), inputs).module, inputs, targets) is None


class TestTrainer:
    def chain(self, module=None, targets=None, **more):
        inputs, labels = batch(10)
        samples = ArraySamples([inputs], labels if targets is None else targets, device=CPU)
        module = module or nn.Sequential(nn.Linear(10, 10))
        return SequentialTrainer(module, samples, **more)._model().chain

    def test_a_plain_network_has_one(self):
        assert self.chain() is not None

    def test_other_losses_have_none(self):
        assert self.chain(objective=Objective(loss=F.cross_entropy)) is None
        assert self.chain(objective=Objective(has_ignored=True)) is None
        real = batch(10)[0]
        assert self.chain(targets=real, objective=Objective(has_classes=False)) is None

    def test_an_optimiser_of_the_user_has_none(self):
        assert self.chain(optimizer=lambda own: torch.optim.SGD(own, lr=0.1)) is None

    def test_hooks_have_none(self):
        module = nn.Sequential(nn.Linear(10, 10))
        module[0].register_forward_hook(lambda *_: None)
        assert self.chain(module) is None


def test_gradients_that_begin_anywhere_in_the_vector_have_the_bits_of_autograd():
    small = seeded(nn.Flatten, lambda: nn.Linear(784, 10), nn.ReLU, lambda: nn.Linear(10, 10))
    for num in (16, 32, 64):
        inputs, targets = batch(28, 28, num=num)
        expected, found = (by(small, inputs, targets)[1].clone() for by in (by_autograd, by_chain))
        assert torch.equal(expected, found), num


def test_a_relu_stays_before_windows_that_may_have_padding_alone():
    gaps, dense = nn.MaxPool2d(2, padding=1, dilation=3), nn.MaxPool2d(2, padding=1)
    relu = nn.ReLU()
    assert _relu_late([relu, gaps]) == [relu, gaps]
    assert _relu_late([relu, dense]) == [dense, relu]


def _train(num_rounds=3):
    inputs, targets = batch(10, num=200)
    return ov.simulate(
        model=seeded(lambda: nn.Linear(10, 16), nn.ReLU, lambda: nn.Linear(16, 10)),
        train=(inputs, targets),
        test=(inputs[:20], targets[:20]),
        num_clients=4,
        num_sampled=4,
        byzantine=0.25,
        rules=["mean"],
        attacks=["none"],
        seeds=[0],
        rounds=num_rounds,
        local=ov.LocalSGD(learning_rate=0.1, num_epochs=1, batch_size=8),
    ).to_frame()["loss"]


@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_callers_autocast_changes_nothing(num_threads, monkeypatch):
    monkeypatch.setattr(sequential, "SECONDS_BEFORE_WORKERS", 0.0)
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        plain = _train()
        with torch.autocast("cpu", torch.bfloat16):
            assert plain.equals(_train())
    finally:
        torch.set_num_threads(before)


def test_hooks_of_all_modules_keep_autograd():
    seen = []
    handle = nn.modules.module.register_module_forward_hook(lambda *_: seen.append(1))
    try:
        _train(1)
    finally:
        handle.remove()
    assert len(seen) > 20
