"""Stacked training on the device under test against the same on the CPU in float64."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import outvote as ov
from outvote.engine.federation import make_federation
from outvote.engine.run_stack import Run
from outvote.engine.simulation import first_state, make_run_stack, simulate
from outvote.seeding import RandomStream
from outvote.server.step import Server
from outvote.training import stacked_trainer
from outvote.training.batches import draw_batches
from outvote.training.im2col import im2col
from outvote.training.local_sgd import LocalSGD
from outvote.training.objective import Objective
from outvote.training.samples import ByteImages
from outvote.training.sequential import SequentialTrainer
from outvote.training.stacked_model import StackedModel
from outvote.training.stacked_trainer import StackedTrainer, WeightStack
from outvote.training.trainer import ClientTask

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("shape", "size", "stride", "padding"),
    [
        ((3, 2, 32, 32, 3), 11, 4, 5),
        ((2, 3, 4, 4, 64), 5, 1, 2),
        ((2, 2, 2, 2, 130), 3, 1, 1),
        ((1, 2, 9, 7, 5), 3, 2, 1),
        ((2, 1, 8, 8, 4), 1, 2, 0),
        ((1, 1, 6, 6, 1), 3, 1, 0),
    ],
)
def test_im2col_and_its_gradients_are_those_of_torch(
    shape: tuple[int, ...], size: int, stride: int, padding: int, dtype, device
):
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(shape, generator=generator, dtype=dtype).to(device).requires_grad_()
    windows = im2col(images, size, stride, padding)
    flat = images.detach().flatten(0, 1).movedim(-1, 1).cpu().double().requires_grad_()
    unfolded = torch.nn.functional.unfold(flat, size, stride=stride, padding=padding)
    # unfold has the channels before the window.
    expected = unfolded.unflatten(1, (shape[-1], size * size)).movedim(1, 2).flatten(1, 2).mT
    expected = torch.nn.functional.pad(expected, (0, -expected.shape[-1] % 8))
    torch.testing.assert_close(
        windows.detach().flatten(0, 1).flatten(1, 2).cpu().double(), expected.detach()
    )
    weights = torch.randn(windows.shape, generator=generator, dtype=dtype)
    (windows * weights.to(device)).sum().backward()
    (expected * weights.flatten(0, 1).flatten(1, 2).double()).sum().backward()
    found = images.grad.flatten(0, 1).movedim(-1, 1).cpu().double()
    torch.testing.assert_close(found, flat.grad, rtol=1e-5, atol=1e-5)


def mixed() -> nn.Module:
    """Return a network whose filters and weights fill no tile of a kernel."""
    return nn.Sequential(
        nn.Conv2d(3, 35, 5, padding=2),
        nn.BatchNorm2d(35),
        nn.Conv2d(35, 9, 3, bias=False),
        nn.Conv2d(9, 64, 1),
        nn.Flatten(),
        nn.Linear(64 * 16, 5),
    )


def test_changes_are_written_to_the_rows_of_the_result_in_the_order_of_torch(device):
    model = StackedModel(mixed())
    generator = torch.Generator().manual_seed(3)
    vectors = torch.randn(2, model.num_parameters, generator=generator).to(device)
    after = torch.randn(3, model.num_parameters, generator=generator).to(device)
    packed = model.pack(after)
    assert torch.equal(model.unpack(packed), after)
    runs, rows = torch.tensor([1, 0, 1]), torch.tensor([4, 0, 2])
    out = torch.full((5, model.num_parameters), 7.0, device=device)
    model.write_changes(vectors, runs.to(device), packed, out, rows.to(device))
    assert torch.equal(out[rows], vectors[runs] - after)
    assert bool((out[[1, 3]] == 7).all())


def test_what_pads_packed_weights_stays_zero(device):
    network = nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(80, 3))
    model = StackedModel(network)
    weight, _, linear, _ = model.slots
    vector = nn.utils.parameters_to_vector(network.parameters()).detach().to(device)
    stack = WeightStack(model, model.pack(vector.expand(2, -1)))
    images = torch.randn(2, 4, 6, 6, 3, generator=torch.Generator().manual_seed(0)).to(device)
    for _ in range(2):
        given = stack.parameters(2)
        logits = model.forward(given, images, gradients=stack.targets(2), is_training=True)
        logits.square().sum().backward()
        stack.step(2, LocalSGD(max_norm=None), 0.1)
    assert weight.view(stack.weights).shape == (2, 32, 5)
    assert not weight.view(stack.weights)[:, 27:].any()
    assert bool(weight.view(stack.weights)[:, :27].ne(weight.view(stack.start)[:, :27]).all())
    assert not any(stack.weights[:, first:end].any() for first, end in model.gaps())
    # Torch has the weights of a linear layer as outputs x inputs; so has the packed vector.
    assert linear.view(stack.weights).stride()[1:] == (1, 80)


def ragged_tasks(training: LocalSGD, num_runs: int) -> list[ClientTask]:
    """Return tasks of 3, 1, 0, 2 steps and so on, with batches that are not full."""
    tasks = []
    for number, size in enumerate((19, 3, 0, 13, 8, 0, 24)):
        part = torch.arange(size) + number
        batches = draw_batches(part, training, RandomStream((number,)))
        tasks.append(ClientTask(number % num_runs, batches))
    return tasks


@pytest.mark.parametrize("at_once", [None, 1, 2, 4])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_rows_have_the_order_of_the_tasks_however_many_train_at_once(precision, at_once, device):
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (40, 8, 8, 1), dtype=np.uint8)
    samples = ByteImages(images, random.integers(0, 4, 40), mean=[0.5], std=[0.3], device=device)
    module = normalised()
    training = LocalSGD(batch_size=8, learning_rate=0.05, proximal=0.5)
    row = nn.utils.parameters_to_vector(module.parameters()).detach().to(device)
    weights = torch.stack([row, 1.1 * row])
    start = torch.cat([b.flatten().double() for b in module.buffers()]).to(device)
    buffers = start.repeat(2, 1)
    tasks = ragged_tasks(training, num_runs=2)
    trainer = StackedTrainer(module, samples, precision=precision)
    trainer._num_models, trainer._num_tasks = at_once, len(tasks)
    found = trainer.train(weights, buffers, tasks, training, 0.05)
    plain = SequentialTrainer(module, samples, Objective())
    expected = plain.train(weights, buffers, tasks, training, 0.05)
    assert not found.gradients[[2, 5]].any()
    assert torch.equal(found.buffers[[2, 5]], buffers[[0, 1]])
    assert found.losses.tolist()[2] == found.losses.tolist()[5] == 0
    error = (found.gradients - expected.gradients).norm(dim=1)
    # Rows in another order would differ by more than their norms.
    most = 0.2 if precision == "bfloat16" else 1e-4
    assert bool((error <= most * expected.gradients.norm(dim=1)).all())
    torch.testing.assert_close(found.losses, expected.losses, rtol=most, atol=most)
    torch.testing.assert_close(found.buffers, expected.buffers, rtol=most, atol=most)


def test_models_that_do_not_fit_are_trained_in_halves(device, monkeypatch):
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (40, 8, 8, 1), dtype=np.uint8)
    samples = ByteImages(images, random.integers(0, 4, 40), mean=[0.5], std=[0.3], device=device)
    module = perceptron()
    training = LocalSGD(batch_size=8)
    row = nn.utils.parameters_to_vector(module.parameters()).detach().to(device)
    weights = torch.stack([row, 1.1 * row])
    buffers = torch.empty(2, 0, dtype=torch.float64, device=device)
    given = (weights, buffers, ragged_tasks(training, num_runs=2), training, 0.05)
    expected = StackedTrainer(module, samples).train(*given)
    real, sizes = StackedTrainer._train, []

    def small(trainer, stack, *more):
        real(trainer, stack, *more)
        sizes.append(len(stack.weights))
        if len(stack.weights) > 2:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(StackedTrainer, "_train", small)
    trainer = StackedTrainer(module, samples)
    found = [trainer.train(*given) for _ in range(2)]
    # Five of the seven tasks have batches.
    assert sizes[-7:] == [5, 2, 2, 1, 2, 2, 1]
    for each in found:
        torch.testing.assert_close(each.gradients, expected.gradients)
        torch.testing.assert_close(each.losses, expected.losses)


@pytest.mark.parametrize(
    ("name", "shape", "tolerance", "more"),
    [
        pytest.param("alexnet", (32, 32, 3), 1e-4, {}, marks=pytest.mark.slow),
        ("small-cnn", (28, 28, 1), 1e-4, {}),
        ("mlp", (6, 6, 1), 1e-4, {}),
        ("mlp", (6, 6, 1), 1e-4, {"proximal": 3.0, "max_norm": 0.3}),
    ],
)
def test_two_rounds_on_the_device_are_those_of_the_cpu(name, shape, tolerance, more, device):
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (96, *shape), dtype=np.uint8)
    labels = random.integers(0, 4, 96)
    runs = [
        Run(
            federation=make_federation(np.array_split(np.arange(96), 6), fraction=0.2, seed=k),
            attack=ov.make_attack(attack),
            rule=ov.make_rule("trimmed-mean"),
            seed=k,
            num_sampled=5,
        )
        for k, attack in enumerate(("lie", "label-flip"))
    ]
    training = LocalSGD(batch_size=8, learning_rate=0.05, **more)
    server = Server(optimizer="yogi", learning_rate=0.01) if more else Server()
    found = []
    for here, dtype in ((device, torch.float32), (CPU, torch.float64)):
        channels = shape[-1]
        info = {"mean": [0.5] * channels, "std": [0.3] * channels, "device": here, "dtype": dtype}
        samples = ByteImages(images, labels, **info)
        modules = [
            ov.make_model(name, num_classes=4, input_shape=shape, seed=k).to(dtype)
            for k in range(2)
        ]
        how = {"training": training, "server": server, "num_classes": 4}
        stack = make_run_stack(modules[0], samples, samples, runs, **how)
        stack = replace(stack, trainer=StackedTrainer(modules[0], samples))
        *_, last = simulate(stack, first_state(modules, samples), 2)
        found.append(last.state.weights.cpu().double())
    # A value that rounding carries over the 0 of a ReLU changes the gradient of one filter.
    is_close = torch.isclose(found[0], found[1], rtol=tolerance, atol=tolerance)
    assert float(is_close.double().mean()) > 0.99
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=100 * tolerance)


def normalised() -> nn.Module:
    module = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 4)
    )
    generator = torch.Generator().manual_seed(0)
    for layer in (module[0], module[-1]):
        nn.init.normal_(layer.weight, std=0.1, generator=generator)
        nn.init.zeros_(layer.bias)
    return module


def perceptron() -> nn.Module:
    return ov.make_model("mlp", num_classes=4, input_shape=(8, 8, 1), seed=0)


@pytest.mark.parametrize("network", [perceptron, normalised])
@pytest.mark.parametrize("precision", ["tf32", "bfloat16"])
def test_other_precisions_stay_close_to_float32(precision: str, network, device):
    if device.type == "cpu" and precision == "tf32":
        pytest.skip("a CPU has no TF32")
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (64, 8, 8, 1), dtype=np.uint8)
    samples = ByteImages(images, random.integers(0, 4, 64), mean=[0.5], std=[0.3], device=device)
    module = network()
    runs = [
        Run(
            federation=make_federation(np.split(np.arange(64), [5, 27, 40])),
            attack=ov.make_attack("none"),
            rule=ov.make_rule("mean"),
            seed=0,
            num_sampled=4,
        )
    ]
    stack = make_run_stack(module, samples, samples, runs, training=LocalSGD(), num_classes=4)
    start = first_state([module], samples)
    updates, buffers = [], []
    for kind in ("float32", precision):
        stack = replace(stack, trainer=StackedTrainer(module, samples, precision=kind))
        *_, last = simulate(stack, start, 1)
        updates.append((last.state.weights - start.weights).double())
        buffers.append(last.state.buffers.double())
    error = (updates[1] - updates[0]).norm() / updates[0].norm()
    assert 0 < error < 0.05
    torch.testing.assert_close(buffers[1], buffers[0], rtol=0.01, atol=0.01)


def test_float64_samples_can_be_trained_on_in_bfloat16(device):
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (12, 8, 8, 1), dtype=np.uint8)
    info = {"mean": [0.5], "std": [0.3], "device": device, "dtype": torch.float64}
    samples = ByteImages(images, random.integers(0, 4, 12), **info)
    module = normalised().double()
    run = Run(
        federation=make_federation(np.split(np.arange(12), 2)),
        attack=ov.make_attack("none"),
        rule=ov.make_rule("mean"),
        seed=0,
        num_sampled=2,
    )
    stack = make_run_stack(module, samples, samples, [run], training=LocalSGD(), num_classes=4)
    stack = replace(stack, trainer=StackedTrainer(module, samples, precision="bfloat16"))
    start = first_state([module], samples)
    *_, last = simulate(stack, start, 1)
    assert last.state.buffers.dtype == torch.float64
    assert not torch.equal(last.state.buffers, start.buffers)
    assert bool(last.state.buffers.isfinite().all())


def test_runs_that_share_batches_share_their_moves(device):
    training = LocalSGD(batch_size=8, augment=True)
    batches = [draw_batches(torch.arange(20), training, RandomStream((k,))) for k in range(2)]
    tasks = [ClientTask(0, batches[0]), ClientTask(1, batches[0]), ClientTask(1, batches[1])]
    plan = stacked_trainer._Plan(tasks, [0, 1, 2], device)
    for number, task in enumerate(tasks):
        assert torch.equal(plan.moves[number].cpu(), task.batches.moves)
        assert torch.equal(plan.index[number].cpu(), task.batches.index.clamp(min=0))
