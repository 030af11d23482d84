"""Small calls that compile kernels: every rule and attack has one, and none may fail."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from threading import Event, Thread
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import outvote as ov
from outvote.engine import warm_up
from outvote.engine.federation import make_federation
from outvote.engine.run_stack import Run
from outvote.engine.simulation import make_run_stack
from outvote.precision import _get_precision, exact_products, fast_products
from outvote.seeding import RandomStream
from outvote.training.batches import draw_batches
from outvote.training.local_sgd import LocalSGD
from outvote.training.samples import ByteImages
from outvote.training.stacked_trainer import StackedTrainer
from outvote.training.trainer import ClientTask

RULES = ("multi-krum", "gas(multi-krum)", "gas(bulyan)", "median", "dnc", "rfa", "bulyan", "mean")
ATTACKS = ("lie", "ipm", "min-max", "bit-flip", "none")


@pytest.fixture
def stack(device):
    images = np.zeros((40, 6, 6, 1), dtype=np.uint8)
    samples = ByteImages(images, np.zeros(40), mean=[0.5], std=[0.3], device=device)
    federation = make_federation(np.array_split(np.arange(40), 8), fraction=0.25)
    runs = [
        Run(
            federation=federation,
            attack=ov.make_attack(ATTACKS[k % len(ATTACKS)]),
            rule=ov.make_rule(rule),
            seed=k,
            num_sampled=7,
        )
        for k, rule in enumerate(RULES)
    ]
    module = ov.make_model("mlp", num_classes=4, input_shape=(6, 6, 1))
    return make_run_stack(
        module, samples, samples, runs, training=LocalSGD(), num_classes=4, trainer="sequential"
    )


def test_every_rule_and_attack_is_called_once_and_works(stack, monkeypatch):
    monkeypatch.setattr(warm_up, "NUM_COORDINATES", 4096)
    chains = warm_up.small_calls(stack, 100_003)
    assert len(chains) == len(RULES) + 1  # A thread for each rule, and one for the attacks.
    assert sum(map(len, chains)) == 3 * len(RULES) + len(ATTACKS)
    for call in chain.from_iterable(chains):
        call()


def _trainer(name, shape, device, precision="float32"):
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (16, *shape), dtype=np.uint8)
    mean_std = {"mean": [0.5] * shape[2], "std": [0.3] * shape[2]}
    samples = ByteImages(images, random.integers(0, 4, 16), **mean_std, device=device)
    module = ov.make_model(name, num_classes=4, input_shape=shape)
    return StackedTrainer(module, samples, precision)


@pytest.mark.parametrize(
    ("name", "shape", "num_seen"),
    [
        ("mlp", (6, 6, 1), 2),
        ("alexnet", (32, 32, 3), 6),
        ("squeezenet", (32, 32, 3), 26),
        ("resnet18", (64, 64, 3), 21),
    ],
)
def test_layers_are_seen_with_their_shapes_and_nothing_is_computed(name, shape, num_seen, device):
    trainer = _trainer(name, shape, device)
    seen = trainer.model.seen_layers(shape)
    assert len(seen) == num_seen
    assert seen[0][1] == (1, 1, *shape) or name == "mlp"
    kinds = {trainer.model.kernels_of(layer, size) for layer, size in seen}
    assert 2 <= len(kinds) <= 20
    assert len(trainer.small_calls()) == len(kinds)


@pytest.mark.parametrize(
    ("name", "shape"), [("mlp", (6, 6, 1)), ("small-cnn", (28, 28, 1)), ("resnet18", (32, 32, 3))]
)
def test_small_calls_of_layers_work(name, shape, device):
    for call in _trainer(name, shape, device).small_calls():
        call()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ["alexnet", "squeezenet", "resnet18"])
def test_after_the_small_calls_a_step_compiles_little(name, monkeypatch, tmp_path):
    from triton import knobs

    trainer = _trainer(name, (32, 32, 3), torch.device("cuda"), "bfloat16")
    for call in trainer.small_calls():
        call()
    compiled = []
    monkeypatch.setattr(knobs.compilation, "listener", lambda **more: compiled.append(more["src"]))
    training = LocalSGD(learning_rate=0.1, batch_size=8)
    tasks = [
        ClientTask(0, draw_batches(torch.arange(16), training, RandomStream((k,))))
        for k in range(3)
    ]
    module = ov.make_model(name, num_classes=4, input_shape=(32, 32, 3))
    weights = torch.nn.utils.parameters_to_vector(module.parameters()).detach().cuda()[None]
    buffers = [values.double().flatten() for values in module.buffers()] or [torch.empty(0)]
    trainer.train(weights, torch.cat(buffers).double().cuda()[None], tasks, training, 0.1)
    # The step of SGD, the cut of the samples, what is added in branches, and pooling.
    assert len(compiled) <= 10, [source.name for source in compiled]


def test_rules_of_users_are_not_called(stack):
    class Mine(ov.VectorRule):
        def max_byzantine(self, num_clients):
            return 0

        def aggregate(self, rows, num_byzantine):
            raise AssertionError

    runs = [
        replace(run, rule=rule)
        for run, rule in zip(stack.runs, (Mine(), ov.GAS(Mine())), strict=False)
    ]
    chains = warm_up.small_calls(replace(stack, runs=tuple(runs)), 1000)
    assert [len(each) for each in chains] == [2]  # The two attacks.


def test_addresses_are_aligned_as_those_of_the_model(stack, monkeypatch):
    shapes = []

    def note(rule, shape, stack, apart):
        shapes.append(shape)

    monkeypatch.setattr(warm_up, "_aggregate", note)
    for dim in (2_472_266, 1_000_000, 50):
        warm_up.small_calls(stack, dim)[0][0]()
    assert shapes[0][-1] % 16 == 2_472_266 % 16
    assert shapes[0][-1] < 200_000
    assert shapes[1][-1] % 16 == 0
    assert shapes[2] == (1, 7, 50)


def test_a_cpu_has_nothing_to_compile(stack):
    if stack.device.type != "cpu":
        pytest.skip("for a CPU")
    assert warm_up.warm_up(stack, 1000) is None


def test_a_kernel_that_threads_share_is_compiled_once(monkeypatch):
    done = []
    monkeypatch.setattr(warm_up, "compile_once", lambda: done.append("hooks"))
    monkeypatch.setattr(warm_up, "small_calls", lambda *_: [[lambda: done.append("call")]] * 2)
    stack = SimpleNamespace(device=torch.device("cuda"), runs=(None, None), trainer=None)
    threads = warm_up.warm_up(stack, 1000)
    assert threads is not None
    threads.shutdown(wait=True)
    assert done == ["hooks", "call", "call"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_threads_end_by_themselves(stack):
    threads = warm_up.warm_up(stack, 100_000)
    assert threads is not None
    threads.shutdown(wait=True)


def test_threads_that_need_exact_products_leave_the_setting_as_it_was():
    before = _get_precision()
    with fast_products():
        fast = _get_precision()
        with ThreadPoolExecutor(1) as threads:
            assert threads.submit(_inside_exact).result() == ["ieee"] * len(before)
        assert _get_precision() == fast
    assert _get_precision() == before


def test_who_comes_while_another_needs_exact_products_restores_what_was_before_both():
    before = _get_precision()
    is_inside, is_over = Event(), Event()

    def wait() -> None:
        with exact_products():
            is_inside.set()
            is_over.wait(10)

    thread = Thread(target=wait)
    thread.start()
    assert is_inside.wait(10)
    with fast_products():
        assert _get_precision() == ["ieee"] * len(before)
        is_over.set()
        thread.join()
        assert _get_precision() != ["ieee"] * len(before)
    assert _get_precision() == before


def _inside_exact() -> list[str]:
    with exact_products():
        return _get_precision()
