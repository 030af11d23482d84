"""Before a GPU trains, its gradients are compared with those of torch."""

import numpy as np
import pytest
import torch
from torch import nn

import outvote as ov
from outvote.seeding import RandomStream
from outvote.training import stacked_model
from outvote.training.batches import draw_batches
from outvote.training.gradient_check import wrong_parameters
from outvote.training.local_sgd import LocalSGD
from outvote.training.samples import ByteImages
from outvote.training.stacked_trainer import StackedTrainer
from outvote.training.trainer import ClientTask

TRAINING = LocalSGD(learning_rate=0.1, batch_size=16, augment=True)


def _given(name: str, shape: tuple[int, int, int], precision: str, device: torch.device):
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (40, *shape), dtype=np.uint8)
    few = {"mean": [0.5] * shape[2], "std": [0.3] * shape[2]}
    samples = ByteImages(images, random.integers(0, 5, 40), **few, device=device)
    module = ov.make_model(name, num_classes=5, input_shape=shape, seed=0)
    trainer = StackedTrainer(module, samples, precision)
    weights = nn.utils.parameters_to_vector(module.parameters()).detach().to(device)
    buffers = [values.double().flatten() for values in module.buffers()]
    joined = torch.cat(buffers) if buffers else torch.empty(0, dtype=torch.float64)
    batches = draw_batches(torch.arange(40), TRAINING, RandomStream((0,)))
    # What a Byzantine client does to its labels is left out of the comparison.
    task = ClientTask(1, batches, label_map=torch.tensor([1, 2, 3, 4, 0]))
    return trainer, torch.stack([0 * weights, weights]), joined.to(device).expand(2, -1), task


def _check(trainer: StackedTrainer, weights, buffers, task) -> None:
    packed = trainer.model.pack(weights)
    narrow = packed.bfloat16() if trainer.precision == "bfloat16" else None
    trainer._check_gradients(weights, buffers, packed, narrow, task)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("small-cnn", (28, 28, 1)),
        ("alexnet", (32, 32, 3)),
        pytest.param("leaf-cnn", (28, 28, 1), marks=pytest.mark.slow),
        pytest.param("squeezenet", (32, 32, 3), marks=pytest.mark.slow),
        pytest.param("resnet18", (64, 64, 3), marks=pytest.mark.slow),
    ],
)
def test_right_gradients_pass(name, shape, precision, device):
    given = _given(name, shape, precision, device)
    _check(*given)
    assert given[0]._is_checked


def test_wrong_gradients_are_an_error_that_names_the_layers(device, monkeypatch):
    trainer, *given = _given("small-cnn", (28, 28, 1), "float32", device)
    real = stacked_model.fused_layers.multiply_into

    def shifted(left, right, target):
        real(left.roll(1, dims=-1), right, target)

    monkeypatch.setattr(stacked_model.fused_layers, "multiply_into", shifted)
    with pytest.raises(RuntimeError, match=r"wrong gradients for .*weight.* trainer='vmap'"):
        _check(trainer, *given)
    assert not trainer._is_checked


def test_a_model_that_diverged_is_not_compared():
    bad = torch.full((3,), torch.nan)
    assert wrong_parameters(["a"], [torch.ones(3)], [bad]) == []
    assert wrong_parameters(["a"], [bad], [torch.ones(3)]) == ["a"]


def test_gradients_that_are_noise_are_not_compared():
    long, noise = torch.ones(3), torch.tensor([1e-9, 0.0, 0.0])
    assert wrong_parameters(["a", "b"], [long, -noise], [long, noise]) == []
    assert wrong_parameters(["a", "b"], [long, -long], [long, long]) == ["b"]
    assert wrong_parameters(["a"], [long / 10], [long]) == ["a"]
