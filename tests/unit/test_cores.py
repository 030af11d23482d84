"""Clients of known layers on a CPU: the bits of plain PyTorch on one core, and no process left."""

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch import nn

import outvote as ov
from outvote.errors import OutvoteWarning
from outvote.ops import process
from outvote.seeding import RandomStream
from outvote.training.batches import draw_batches
from outvote.training.choose_trainer import choose_trainer
from outvote.training.local_sgd import LocalSGD
from outvote.training.objective import Objective
from outvote.training.samples import ArraySamples, ByteImages
from outvote.training.trainer import ClientTask

CPU = torch.device("cpu")
NUM_CORES = len(os.sched_getaffinity(0)) if sys.platform == "linux" else 0
TRAINING = LocalSGD(batch_size=16, num_epochs=2, proximal=0.1)
SECONDS = "outvote.training.cores.SECONDS_BEFORE_WORKERS"
pytestmark = pytest.mark.skipif(
    not NUM_CORES or torch.cuda.is_available(),
    reason="processes are forked on Linux only, and not beside a GPU",
)


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    process._pool.cache_clear()
    monkeypatch.setattr(SECONDS, 0.0)
    yield
    torch.set_num_threads(before)
    process._pool.cache_clear()


def drawn(*shape, num=200):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(num, *shape, generator=generator), torch.arange(num) * 7 % 10


def images():
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (200, 28, 28, 1), generator=generator, dtype=torch.uint8)
    return ByteImages(pixels, torch.arange(200) * 7 % 10, mean=[0.3], std=[0.3], device=CPU)


def tasks(training=TRAINING, num=5, **more):
    parts = torch.arange(200).split([50, 37, 33, 48, 32])[:num]
    streams = [RandomStream((0, k)) for k in range(num)]
    return [
        ClientTask(k % 2, draw_batches(part, training, stream), seed=k, **more)
        for k, (part, stream) in enumerate(zip(parts, streams, strict=True))
    ]


def network(name):
    return ov.make_model(name, num_classes=10, seed=0) if isinstance(name, str) else seeded(*name)


def seeded(*layers):
    with torch.random.fork_rng([]):
        torch.default_generator.manual_seed(0)
        return nn.Sequential(*(make() for make in layers))


def cores(module="mlp", samples=None):
    return Trained("cores", module, samples)


class Trained:
    """A network and how it is trained."""

    def __init__(self, way, module="mlp", samples=None):
        self.module = network(module)
        samples = images() if samples is None else samples
        objective = Objective.of(samples.targets, has_classes=True)
        self.trainer = choose_trainer(self.module, samples, objective, name=way)

    def train(self, given=None, training=TRAINING):
        row = nn.utils.parameters_to_vector(self.module.parameters()).detach()
        row = row.to(self.trainer.samples.dtype)
        parts = [torch.empty(0), *(each.flatten() for each in self.module.buffers())]
        buffers = torch.cat(parts).double().repeat(2, 1)
        given = tasks(training) if given is None else given
        return self.trainer.train(torch.stack([row, 1.1 * row]), buffers, given, training, 0.1)


def plain(module="mlp", samples=None, given=None, training=TRAINING):
    """Train by plain PyTorch on one core."""
    torch.set_num_threads(1)
    try:
        return Trained("sequential", module, samples).train(given, training)
    finally:
        torch.set_num_threads(2)


def assert_same_bits(one, other):
    for name in ("gradients", "losses", "buffers", "num_samples"):
        mine, theirs = getattr(one, name), getattr(other, name)
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0, equal_nan=True, msg=name)


def children(process=None):
    """Return the processes that a process has forked."""
    process = process or os.getpid()
    found = []
    for path in Path(f"/proc/{process}/task").iterdir():
        with suppress(FileNotFoundError):  # A thread that has just ended.
            found += [int(word) for word in (path / "children").read_text().split()]
    return found


def is_alive(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


# ReLU everywhere that it can move, windows that overlap, are padded or leave a rest, and groups.
POOLED = (
    lambda: nn.Conv2d(3, 6, 3, padding=1, groups=3),
    nn.ReLU,
    lambda: nn.MaxPool2d(3, stride=2, padding=1, ceil_mode=True),
    nn.ReLU,
    lambda: nn.MaxPool2d(2, padding=1, dilation=3),
    lambda: nn.Conv2d(6, 4, 3, stride=2),
    nn.ReLU,
    nn.Flatten,
    lambda: nn.Linear(16, 12),
    lambda: nn.ReLU(inplace=True),
    lambda: nn.Linear(12, 10),
)
NORMALISED = (
    lambda: nn.Conv2d(1, 4, 3),
    lambda: nn.BatchNorm2d(4),
    nn.GELU,
    nn.Flatten,
    lambda: nn.Linear(2704, 10),
)
VECTORS = (nn.ReLU, lambda: nn.Linear(7, 10), nn.ReLU)


class TestBits:
    @pytest.mark.parametrize("module", ["mlp", "small-cnn", NORMALISED])
    def test_processes_and_this_one_train_as_plain_pytorch_on_one_core(self, module, monkeypatch):
        own, expected = cores(module), plain(module)
        before = children()
        found = [own.train(), own.train()]
        assert len(children()) == len(before) + 2
        monkeypatch.setattr(SECONDS, 1e9)
        for each in [*found, cores(module).train()]:
            assert_same_bits(each, expected)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize(("module", "shape"), [(POOLED, (3, 25, 25)), (VECTORS, (7,))])
    def test_layers_of_any_setting_and_numbers_that_are_not_finite(self, module, shape, dtype):
        inputs, labels = drawn(*shape)
        for worst in (0.0, torch.inf, torch.nan):
            inputs[60].view(-1)[5] = worst
            samples = ArraySamples([inputs], labels, device=CPU, dtype=dtype)
            assert_same_bits(cores(module, samples).train(), plain(module, samples))

    @pytest.mark.parametrize("size", [1, 5, 64])
    def test_batches_of_any_size(self, size):
        training = LocalSGD(batch_size=size, max_norm=0.1)
        for module in ("mlp", "leaf-cnn-small"):
            found, expected = (
                cores(module).train(None, training),
                plain(module, None, None, training),
            )
            if size == 1:  # torch adds up a bias' gradient in another order there.
                torch.testing.assert_close(found.gradients, expected.gradients)
            else:
                assert_same_bits(found, expected)

    def test_augmented_images_mapped_labels_and_a_callable_rate(self):
        training = LocalSGD(batch_size=16, augment=True, learning_rate=lambda _: 0.1)
        given = tasks(training, label_map=torch.arange(10).flip(0))
        found = cores().train(given, training)
        assert_same_bits(found, plain(given=given, training=training))

    def test_more_tasks_than_before_get_more_memory(self):
        own = cores()
        own.train(tasks(num=2))
        assert_same_bits(own.train(), plain())

    @pytest.mark.parametrize("num_threads", [1, 2])
    def test_a_callers_autocast_changes_nothing(self, num_threads):
        expected = plain()
        torch.set_num_threads(num_threads)
        with torch.autocast("cpu", torch.bfloat16):
            assert_same_bits(cores().train(), expected)
            assert_same_bits(Trained("sequential").train(), Trained("sequential").train())
            torch.set_num_threads(1)
            assert_same_bits(Trained("sequential").train(), expected)


def test_each_process_has_a_core_of_its_own():
    if NUM_CORES != 2:
        pytest.skip("there are as many processes as cores")
    own, before = cores(), children()
    own.train()
    own.train()
    found = [os.sched_getaffinity(each) for each in set(children()) - set(before)]
    assert sorted(map(len, found)) == [1, 1]
    assert set.union(*found) == os.sched_getaffinity(0)


def test_threads_of_torch_leave_the_cores_to_the_processes():
    torch.ones(1 << 20).add_(1)
    process.free_cores()
    before = time.process_time()
    time.sleep(0.02)
    assert time.process_time() - before < 0.004  # Without, the other thread spins for 0.008.
    assert float(torch.ones(1 << 20).sum()) == 1 << 20


class TestEnds:
    def test_none_is_left_when_the_trainer_is_gone(self):
        before = children()
        own = cores()
        own.train()
        assert len(children()) == len(before) + 2
        del own
        assert children() == before

    def test_killed_processes_change_nothing_but_the_time(self):
        before, own = set(children()), cores()
        first = own.train()
        for number in range(3):
            victim, other = set(children()) - before
            os.kill(victim, signal.SIGKILL)
            if number < 2:
                assert_same_bits(own.train(), first)
            else:
                with pytest.warns(OutvoteWarning, match=r"on one core from now on.*same results"):
                    assert_same_bits(own.train(), first)
            assert not is_alive(other)
            assert_same_bits(own.train(), first)
        assert set(children()) == before

    def test_a_process_that_does_not_start_is_given_up(self, monkeypatch):
        monkeypatch.setattr("outvote.training.workers.SECONDS_TO_START", 0.0)
        before = children()
        assert_same_bits(cores().train(), plain())
        assert set(children()) <= set(before)

    @pytest.mark.parametrize(
        "number", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
    )
    def test_processes_end_with_one_that_is_killed(self, number):
        code = """
            import sys, time, torch
            sys.path.insert(0, "tests/unit")
            import test_cores as t
            import outvote.training.cores
            torch.set_num_threads(2)
            outvote.training.cores.SECONDS_BEFORE_WORKERS = 0.0
            own = t.cores()
            own.train()
            print("ready", flush=True)
            time.sleep(60)
        """
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdout.readline() == "ready\n"
        workers = children(process.pid)
        assert len(workers) == 2
        process.send_signal(number)
        process.wait()
        process.stdout.close()
        end = time.monotonic() + 20
        while any(map(is_alive, workers)) and time.monotonic() < end:
            time.sleep(0.05)
        assert not any(map(is_alive, workers))

    def test_inside_a_daemonic_process(self):
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_in_a_daemon, args=(theirs,), daemon=True)
        process.start()
        assert ours.poll(60)
        gradients, num_workers = ours.recv()
        process.join()
        assert num_workers == 2
        assert gradients == plain().gradients.sum(dim=1).tolist()


def _in_a_daemon(pipe):
    import outvote.training.cores

    torch.set_num_threads(2)
    outvote.training.cores.SECONDS_BEFORE_WORKERS = 0.0
    own = cores()
    found = own.train()
    torch.set_num_threads(1)
    pipe.send((found.gradients.sum(dim=1).tolist(), len(children())))


class TestHere:
    """What no process is forked for."""

    def test_code_of_users_runs_in_their_process(self):
        before, own = children(), cores()
        poison = tasks(poison=lambda values, labels: (-values, labels))
        assert_same_bits(own.train(poison), plain(given=poison))
        assert set(children()) <= set(before)

    def test_an_error_in_a_process_is_raised_as_without_one(self):
        own = cores()
        own.train()
        beyond = draw_batches(torch.arange(1000, 1016), TRAINING, RandomStream((0,)))
        with pytest.raises(IndexError):
            own.train([*tasks(), ClientTask(0, beyond)])

    def test_none_beside_a_gpu_where_autograd_has_threads(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        before, own = children(), cores()
        own.train()
        assert set(children()) <= set(before)

    def test_a_short_job_has_no_processes(self, monkeypatch):
        monkeypatch.setattr(SECONDS, 100.0)
        before, own = children(), cores()
        own.train()
        assert set(children()) <= set(before)
