"""Clients that train in forked processes: the same bits, no processes left, errors as they were."""

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
import torch
from torch import nn

import outvote as ov
from outvote.errors import OutvoteWarning
from outvote.forked import IS_POSSIBLE
from outvote.ops import threads
from outvote.seeding import RandomStream
from outvote.training import sequential
from outvote.training.batches import draw_batches
from outvote.training.local_sgd import LocalSGD
from outvote.training.objective import Objective
from outvote.training.samples import ArraySamples, ByteImages
from outvote.training.sequential import SequentialTrainer
from outvote.training.trainer import ClientTask
from outvote.training.workers import Workers, WorkersEnded

CPU = torch.device("cpu")
NUM_CORES = len(os.sched_getaffinity(0)) if IS_POSSIBLE else 0
TRAINING = LocalSGD(batch_size=16, num_epochs=2, proximal=0.1)
pytestmark = pytest.mark.skipif(
    not IS_POSSIBLE or torch.cuda.is_available(),
    reason="processes are forked on Linux only, and not beside a GPU",
)


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    threads._pool.cache_clear()
    monkeypatch.setattr(sequential, "SECONDS_BEFORE_WORKERS", 0.0)
    yield
    torch.set_num_threads(before)
    threads._pool.cache_clear()


def images(size=28):
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (200, size, size, 1), generator=generator, dtype=torch.uint8)
    labels = torch.randint(10, (200,), generator=generator)
    return ByteImages(pixels, labels, mean=[0.3], std=[0.3], device=CPU)


def tasks(training=TRAINING, num=5, **more):
    parts = torch.arange(200).split([50, 37, 33, 48, 32])[:num]
    return [
        ClientTask(
            k % 2, draw_batches(part, training, RandomStream((0,)).fold_in(str(k))), seed=k, **more
        )
        for k, part in enumerate(parts)
    ]


def trainer(module="mlp", samples=None, **more):
    if isinstance(module, str):
        module = ov.make_model(module, num_classes=10, seed=0)
    return SequentialTrainer(module, images() if samples is None else samples, **more)


def start(trainer):
    row = nn.utils.parameters_to_vector(trainer.module.parameters()).detach()
    buffers = [each.flatten().double() for each in trainer.module.buffers()]
    none = torch.empty(0, dtype=torch.float64)
    return torch.stack([row, 1.1 * row]), torch.cat([none, *buffers]).repeat(2, 1)


def train(trainer, given=None, training=TRAINING):
    given = tasks(training) if given is None else given
    return trainer.train(*start(trainer), given, training, 0.1)


def alone(trainer, given=None, training=TRAINING):
    """Train without processes and threads."""
    torch.set_num_threads(1)
    try:
        return train(trainer, given, training)
    finally:
        torch.set_num_threads(2)


def is_same(one, other):
    return all(
        torch.equal(getattr(one, name), getattr(other, name))
        for name in ("gradients", "losses", "buffers", "num_samples")
    )


def is_alive(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def normalised():
    torch.manual_seed(0)  # noqa: TID251
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.3), nn.Flatten(), nn.Linear(2704, 10)
    )


class TestSameBits:
    @pytest.mark.parametrize("module", ["mlp", "small-cnn", normalised])
    def test_processes_threads_and_one_core_agree(self, module, monkeypatch):
        module = module if isinstance(module, str) else module()
        forked = trainer(module)
        found = [train(forked), train(forked)]
        assert len(forked._forked.processes) == 2
        expected = alone(trainer(module))
        monkeypatch.setattr(sequential, "SECONDS_BEFORE_WORKERS", 1e9)
        threaded = train(trainer(module))
        assert all(is_same(each, expected) for each in [*found, threaded])

    @pytest.mark.parametrize("num_workers", [1, 2, 3])
    def test_any_number_of_processes(self, num_workers):
        own = trainer()
        workers = Workers(num_workers, 4 << 20, own._train_one, own._warm_up)
        found = workers.train(*start(own), tasks(), TRAINING, 0.1)
        workers.close()
        assert is_same(found, alone(trainer()))

    def test_augmented_images_mapped_labels_and_a_callable_rate(self):
        training = LocalSGD(batch_size=16, augment=True, learning_rate=lambda _: 0.1)
        given = tasks(training, label_map=torch.arange(10).flip(0))
        forked = trainer()
        found = train(forked, given, training)
        assert forked._forked is not None
        assert is_same(found, alone(trainer(), given, training))

    def test_batches_made_at_once_are_those_made_alone(self, monkeypatch):
        numbers = ArraySamples([torch.randn(200, 7)], torch.zeros(200).long(), device=CPU)
        for samples in (images(), numbers):
            module = nn.Sequential(nn.Flatten(), nn.LazyLinear(10))
            module(*samples.inputs(torch.arange(2)))
            monkeypatch.setattr(sequential, "BYTES_AT_ONCE", 2 << 20)
            at_once = alone(trainer(module, samples))
            monkeypatch.setattr(sequential, "BYTES_AT_ONCE", 0)
            assert is_same(at_once, alone(trainer(module, samples)))

    def test_several_batches_are_made_at_once_where_they_stay_aligned(self):
        assert trainer()._num_at_once(16) > 1
        assert list(trainer()._made_at_once(tasks()[0])) == [slice(0, 4), slice(4, 8)]
        odd = ArraySamples([torch.randn(200, 7)], torch.zeros(200).long(), device=CPU)
        assert trainer(nn.Linear(7, 10), odd)._num_at_once(9) == 1

    def test_more_tasks_than_before_get_more_memory(self):
        forked = trainer()
        train(forked, tasks(num=2))
        first = forked._forked
        assert is_same(train(forked), alone(trainer()))
        assert forked._forked is not first
        assert not first.processes


@pytest.mark.skipif(NUM_CORES != 2, reason="there are as many processes as cores")
def test_each_process_has_a_core_of_its_own():
    own = trainer()
    train(own)
    train(own)
    cores = [os.sched_getaffinity(process) for process in own._forked.processes]
    assert sorted(map(len, cores)) == [1, 1]
    assert set.union(*cores) == os.sched_getaffinity(0)


def test_threads_of_torch_leave_the_cores_to_the_processes():
    torch.ones(1 << 20).add_(1)
    threads.free_cores()
    before = time.process_time()
    time.sleep(0.02)
    assert time.process_time() - before < 0.004  # Without, the other thread spins for 0.008.
    assert float(torch.ones(1 << 20).sum()) == 1 << 20


class TestEnds:
    def test_none_is_left_when_the_trainer_is_gone(self):
        forked = trainer()
        train(forked)
        processes = forked._forked.processes
        assert all(map(is_alive, processes))
        forked._forked = None
        del forked
        assert not any(map(is_alive, processes))

    def test_a_killed_worker_changes_nothing(self):
        forked = trainer()
        first = train(forked)
        victim, other = forked._forked.processes
        os.kill(victim, signal.SIGKILL)
        assert is_same(train(forked), first)
        assert forked._num_failures == 1
        assert not is_alive(victim)
        assert not is_alive(other)
        assert is_same(train(forked), first)
        assert forked._forked.processes

    def test_after_some_failures_threads_train_with_a_warning(self):
        forked = trainer()
        for _ in range(sequential.MOST_FAILURES - 1):
            train(forked)
            os.kill(forked._forked.processes[0], signal.SIGKILL)
            train(forked)
        train(forked)
        os.kill(forked._forked.processes[0], signal.SIGKILL)
        with pytest.warns(OutvoteWarning, match=r"train in threads from now on.*same results"):
            train(forked)
        train(forked)
        assert forked._forked is None

    def test_a_worker_that_does_not_start_is_given_up(self, monkeypatch):
        monkeypatch.setattr("outvote.training.workers.SECONDS_TO_START", 0.2)
        own = trainer()
        with pytest.raises(WorkersEnded, match="did not start"):
            Workers(2, 1, own._train_one, lambda: time.sleep(60))

    @pytest.mark.parametrize(
        "number", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
    )
    def test_workers_end_with_a_process_that_is_killed(self, number):
        code = """
            import sys, time, torch
            sys.path.insert(0, "tests/unit")
            import test_workers as t
            from outvote.training import sequential
            torch.set_num_threads(2)
            sequential.SECONDS_BEFORE_WORKERS = 0.0
            own = t.trainer()
            t.train(own)
            print(*own._forked.processes, flush=True)
            time.sleep(60)
        """
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        workers = [int(word) for word in process.stdout.readline().split()]
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
        assert gradients == alone(trainer()).gradients.sum(dim=1).tolist()


def _in_a_daemon(pipe):
    torch.set_num_threads(2)
    sequential.SECONDS_BEFORE_WORKERS = 0.0
    own = trainer()
    found = train(own)
    torch.set_num_threads(1)
    pipe.send((found.gradients.sum(dim=1).tolist(), len(own._forked.processes)))


class Own(nn.Module):
    """A user's network."""

    def __init__(self):
        super().__init__()
        self.inside = nn.Linear(784, 10)

    def forward(self, values):
        return self.inside(values.flatten(1))


class Failing(Own):
    """It does not take batches of 16."""

    def forward(self, values):
        if len(values) == 16:
            raise KeyError("sixteen")
        return super().forward(values)


class TestUsers:
    @pytest.mark.parametrize(
        "make",
        [
            lambda: trainer(Own()),
            lambda: trainer(objective=Objective(loss=nn.functional.cross_entropy)),
            lambda: trainer(optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1)),
        ],
    )
    def test_code_of_users_runs_in_their_process(self, make):
        own = make()
        train(own)
        assert own._forked is None

    def test_hooks_run_in_the_process_of_their_user(self):
        module = ov.make_model("mlp", num_classes=10, seed=0)
        module.register_forward_hook(lambda *_: None)
        own = trainer(module)
        train(own)
        assert own._forked is None

    def test_an_error_is_the_models_own(self):
        with pytest.raises(KeyError, match="sixteen"):
            train(trainer(Failing()))

    def test_an_error_in_a_worker_is_raised_as_without_workers(self):
        own = trainer()
        train(own)
        given = [*tasks(), ClientTask(0, _out_of_range())]
        with pytest.raises(IndexError):
            train(own, given)
        assert own._num_failures == 1

    def test_none_beside_a_gpu_where_autograd_has_threads(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        own = trainer()
        train(own)
        assert own._forked is None
        assert own._num_failures == 0

    def test_a_short_job_has_no_processes(self, monkeypatch):
        monkeypatch.setattr(sequential, "SECONDS_BEFORE_WORKERS", 100.0)
        own = trainer()
        train(own)
        assert own._forked is None


def _out_of_range():
    return draw_batches(torch.arange(1000, 1016), TRAINING, RandomStream((0,)))
