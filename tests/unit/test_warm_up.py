"""Small calls that compile kernels: every rule and attack has one, and none may fail."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
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
from outvote.ops import distances
from outvote.ops.compile_once import compile_once, dry_calls, is_dry
from outvote.ops.precision import _get_precision, exact_products, fast_products
from outvote.rules.row_facts import row_facts
from outvote.seeding import RandomStream
from outvote.training import stacked_trainer
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


def test_every_rule_and_attack_is_called_and_works(stack, monkeypatch):
    monkeypatch.setattr(warm_up, "NUM_COORDINATES", 4096)
    calls = warm_up.small_calls(stack, 100_003)
    # And what all rules share. Min-max is called for each of its two runs, whose addresses differ,
    # and the slowest two kernels of both rules with Bulyan.
    assert len(calls) == 4 * len(RULES) + len(ATTACKS) + 2 + 4
    for call in calls:
        call()


def test_runs_that_share_a_rule_or_an_attack_are_called_together(stack, monkeypatch):
    shapes = {}

    def note(part, matrix, *_):
        shapes[part] = matrix.shape

    monkeypatch.setattr(warm_up, "_look", lambda *given: note("look", *given))
    monkeypatch.setattr(warm_up, "_attack", note)
    monkeypatch.setattr(warm_up, "_aggregate", note)
    same = replace(stack, runs=(stack.runs[0], *stack.runs[:2]))
    for call in warm_up.small_calls(same, 1000):
        call()
    first, other = stack.runs[:2]
    found = [shapes[part][0] for part in ("look", first.rule, other.rule, other.attack)]
    assert found == [2, 2, 1, 1]


def _trainer(name, shape, device, precision="float32"):
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (16, *shape), dtype=np.uint8)
    mean_std = {"mean": [0.5] * shape[2], "std": [0.3] * shape[2]}
    samples = ByteImages(images, random.integers(0, 4, 16), **mean_std, device=device)
    module = ov.make_model(name, num_classes=4, input_shape=shape, seed=0)
    return StackedTrainer(module, samples, precision)


def _tasks(number=3, size=5):
    training = LocalSGD(learning_rate=0.1, batch_size=size)
    drawn = [draw_batches(torch.arange(16), training, RandomStream((k,))) for k in range(number)]
    return [ClientTask(0, batches) for batches in drawn], training


def _start(name, shape, device):
    module = ov.make_model(name, num_classes=4, input_shape=shape, seed=0)
    weights = torch.nn.utils.parameters_to_vector(module.parameters()).detach()[None]
    buffers = [values.double().flatten() for values in module.buffers()] or [torch.empty(0)]
    return weights.to(device), torch.cat(buffers).double().to(device)[None]


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("mlp", (6, 6, 1)),
        ("small-cnn", (28, 28, 1)),
        ("leaf-cnn", (12, 12, 1)),
        ("squeezenet", (16, 16, 3)),
        pytest.param("resnet18", (32, 32, 3), marks=pytest.mark.slow),
    ],
)
def test_calls_of_training_work_and_change_nothing(name, shape, device):
    tasks, training = _tasks()
    found = []
    for is_tried in (False, True):
        trainer = _trainer(name, shape, device)
        for call in trainer.trial_calls(tasks, training, trainer.samples) if is_tried else ():
            call()
        start = _start(name, shape, device)
        found.append(trainer.train(*start, tasks, training, 0.1))
        accuracy = trainer.evaluate(*start, trainer.samples)[0].accuracy
        found.append(torch.tensor(accuracy))
    assert torch.equal(found[0].gradients, found[2].gradients)
    assert torch.equal(found[0].buffers, found[2].buffers)
    assert torch.equal(found[1], found[3])


def test_calls_of_training_have_steps_of_all_widths():
    widths = stacked_trainer._of_all_widths(_tasks(number=1, size=5)[0][0].batches)
    assert widths.sizes == [5, 5, 1]
    assert widths.index.shape == (3, 5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ["alexnet", "squeezenet", "resnet18"])
def test_after_dry_calls_a_step_compiles_nothing(name, tmp_path, monkeypatch):
    from triton import knobs

    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path))  # An empty one, also for the children.
    shape, device = (32, 32, 3), torch.device("cuda")
    trainer = _trainer(name, shape, device, "bfloat16")
    tasks, training = _tasks(size=8)
    shared = compile_once()
    shared.open()
    with dry_calls():
        for call in trainer.trial_calls(tasks, training, trainer.samples):
            call()
    shared.close()
    # Where a test before this one launched them all, there is nothing to see.
    assert shared.num_ordered
    compiled = []

    def listen(*, src, cache_hit, **_):
        if not cache_hit:
            compiled.append(src.name)

    monkeypatch.setattr(knobs.compilation, "listener", listen)
    trainer.train(*_start(name, shape, device), tasks, training, 0.1)
    assert not compiled


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
    calls = warm_up.small_calls(replace(stack, runs=tuple(runs)), 1000)
    assert len(calls) == 3  # The two attacks, and what all rules share.


def test_addresses_are_aligned_as_those_of_the_model(stack, monkeypatch):
    shapes = []

    def note(matrix, stack):
        shapes.append(matrix.shape)

    monkeypatch.setattr(warm_up, "_look", note)
    for dim in (2_472_266, 1_000_000, 50):
        warm_up.small_calls(stack, dim)[0]()
    # Kernels read up to 16 values at once, and 16 divides their strides or does not.
    assert shapes[0][-1] % 256 == 2_472_266 % 256
    assert shapes[0][-1] < 200_000
    assert shapes[1][-1] % 256 == 1_000_000 % 256
    assert shapes[2] == (2, 7, 50)


@pytest.mark.parametrize("dim", [50_003, 50_006, 50_008, 50_016])
def test_addresses_are_aligned_as_those_of_each_run(dim, stack, monkeypatch):
    monkeypatch.setattr(warm_up, "NUM_COORDINATES", 1 << 10)
    found = {}

    def note(rule, rows, **_):
        found[rule] = rows.data_ptr() % 16

    monkeypatch.setattr(warm_up, "aggregate", note)
    for call in warm_up.small_calls(stack, dim):
        call()
    sent = torch.empty(len(stack.runs), 7, dim, device=stack.device)
    assert found == {run.rule: sent[k].data_ptr() % 16 for k, run in enumerate(stack.runs)}


def test_runs_that_are_no_neighbours_are_copied_to_an_aligned_address(stack, monkeypatch):
    starts = []

    def note(rule, matrix, stack, has_copies, is_again):
        if rule == two.rule and not (has_copies or is_again):
            starts.append(matrix.start)

    monkeypatch.setattr(warm_up, "_aggregate", note)
    one, two, three = stack.runs[:3]
    first, second, third = (k * 7 * 1003 % 4 for k in (1, 2, 3))
    # Each of the runs may be a batch by itself.
    for runs, wanted in (
        ((one, two, two), [first, second]),
        ((one, two, three, two), [0, first, third]),
    ):
        for call in warm_up.small_calls(replace(stack, runs=runs), 1003):
            if call.func is note:
                call()
        assert starts == wanted
        starts.clear()


def test_a_rule_is_given_the_facts_of_its_rows_as_in_a_round(stack, monkeypatch):
    cases = []

    def note(rule, rows, *, facts, is_checked_later, **_):
        own = row_facts(rows)
        assert (facts.is_finite, facts.originals) == (own.is_finite, own.originals)
        # A GPU adds up in another order.
        assert facts.norms == [pytest.approx(norms, rel=1e-6) for norms in own.norms]
        cases.append((facts.originals[0][1] == 0, not is_checked_later))

    monkeypatch.setattr(warm_up, "NUM_COORDINATES", 1 << 10)
    monkeypatch.setattr(warm_up, "aggregate", note)
    for call in warm_up.small_calls(stack, 50_003):
        call()
    assert cases == [*product((False, True), repeat=2)] * len(RULES)


@pytest.mark.parametrize("has_copies", [False, True])
@pytest.mark.parametrize("dim", [1000, 44_426, 79_510])
@pytest.mark.parametrize("num_clients", [4, 5, 7, 10, 20])
def test_a_second_call_has_inexact_distances(num_clients, dim, has_copies, stack, monkeypatch):
    redone = []
    for name in ("_redo_entries", "_redo_everywhere"):
        monkeypatch.setattr(distances, name, lambda *_: redone.append(1))
    rule = ov.make_rule("krum")
    for is_again in (False, True):
        matrix = warm_up.Matrix((2, num_clients, dim), 0)
        warm_up._aggregate(rule, matrix, stack, has_copies, is_again)
        assert bool(redone) == is_again


def test_a_single_client_is_warmed_up_too(stack):
    for case in warm_up.CASES:
        warm_up._aggregate(ov.make_rule("mean"), warm_up.Matrix((2, 1, 50), 0), stack, *case)


@pytest.mark.parametrize(
    ("rule", "num_clients", "has_groups"),
    [
        ("bulyan", 7, False),
        ("gas(bulyan)", 7, True),
        ("bucketing(bulyan, size=2)", 4, False),
        ("gas(bucketing(bulyan, size=3))", 3, True),
        ("clip(gas(bulyan))", 7, True),
    ],
)
def test_the_slowest_kernels_are_those_that_bulyan_will_use(
    rule, num_clients, has_groups, stack, monkeypatch
):
    runs = tuple(replace(run, rule=ov.make_rule(rule)) for run in stack.runs)
    given = []
    monkeypatch.setattr(warm_up, "_select", lambda matrix, _: given.append(matrix.shape))
    monkeypatch.setattr(
        warm_up,
        "_take_nearest",
        lambda matrix, _, *, has_groups: given.append((matrix.shape, has_groups)),
    )
    for call in warm_up.small_calls(replace(stack, runs=runs), 1003)[1:3]:
        call()
    shape = (2, num_clients, 1003)
    assert given == [shape, (shape, has_groups)]


@pytest.mark.parametrize("dim", [1, 5, 63, 1003])
def test_models_of_few_weights_are_warmed_up_too(dim, stack):
    runs = tuple(replace(run, rule=ov.make_rule("gas(bulyan)")) for run in stack.runs)
    for call in warm_up.small_calls(replace(stack, runs=runs), dim):
        call()


def test_a_cpu_has_nothing_to_compile(stack):
    if stack.device.type != "cpu":
        pytest.skip("for a CPU")
    assert warm_up.warm_up(stack, 1000) is None


@pytest.mark.parametrize("has_hooks", [True, False])
def test_training_is_called_dry_before_threads_call_rules(has_hooks, monkeypatch):
    done, is_closed = [], Event()
    shared = SimpleNamespace(open=lambda: done.append("open"), close=is_closed.set, num_ordered=0)
    monkeypatch.setattr(warm_up, "compile_once", lambda: shared if has_hooks else None)
    monkeypatch.setattr(warm_up, "training_calls", lambda _: [lambda: done.append(is_dry())])
    monkeypatch.setattr(warm_up, "small_calls", lambda *_: [lambda: done.append(is_dry())] * 2)
    run = SimpleNamespace(num_sampled=5)
    stack = SimpleNamespace(device=torch.device("cuda"), runs=(run, run), trainer=None)
    threads = warm_up.warm_up(stack, 1000)
    assert threads is not None
    threads.shutdown(wait=True)
    assert done == (["open", True] if has_hooks else []) + [False, False]
    assert not has_hooks or is_closed.wait(10)


def _warmed(monkeypatch, *, train, calls, num_sampled=5):
    """Warm a made-up stack up, and return its threads and an event: the compilers are closed."""
    is_closed = Event()
    shared = SimpleNamespace(open=lambda: None, close=is_closed.set, num_ordered=0)
    monkeypatch.setattr(warm_up, "compile_once", lambda: shared)
    monkeypatch.setattr(warm_up, "training_calls", train)
    monkeypatch.setattr(warm_up, "small_calls", lambda *_: calls)
    run = SimpleNamespace(num_sampled=num_sampled)
    stack = SimpleNamespace(device=torch.device("cuda"), runs=(run, run), trainer=None)
    return warm_up.warm_up(stack, 1000), is_closed


def test_rules_are_called_and_compilers_closed_where_training_cannot_be_tried(monkeypatch):
    done = []
    threads, is_closed = _warmed(monkeypatch, train=lambda _: 1 / 0, calls=[lambda: done.append(1)])
    threads.shutdown(wait=True)
    assert done == [1]
    assert is_closed.wait(10)


def test_compilers_are_closed_after_an_interruption(monkeypatch):
    closed = []

    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(warm_up, "_close_after", lambda begun, shared: closed.append(begun))
    with pytest.raises(KeyboardInterrupt):
        _warmed(monkeypatch, train=interrupted, calls=[lambda: None])
    until = time.monotonic() + 10
    while not closed and time.monotonic() < until:
        time.sleep(0.01)
    assert closed == [[]]


@pytest.mark.parametrize(("num_sampled", "expected"), [(5, 40), (50, 40), (200, 10), (5000, 1)])
def test_as_many_calls_are_made_at_once_as_memory_allows(num_sampled, expected, monkeypatch):
    calls = [lambda: None] * 40
    threads, _ = _warmed(monkeypatch, train=lambda _: [], calls=calls, num_sampled=num_sampled)
    assert threads._max_workers == expected


@pytest.mark.parametrize("num_missed", [0, 1])
def test_no_more_calls_are_dry_if_the_first_misses_no_kernel(num_missed, monkeypatch):
    shared, done = SimpleNamespace(num_ordered=5), []

    def first():
        done.append("first")
        shared.num_ordered += num_missed

    calls = [first, lambda: 1 / 0, lambda: done.append("last")]
    monkeypatch.setattr(warm_up, "training_calls", lambda _: calls)
    warm_up._order_training(None, shared)
    assert done == ["first", "last"][: 1 + num_missed]


def test_training_is_tried_with_the_largest_clients(stack, monkeypatch):
    monkeypatch.setattr(stack.trainer, "trial_calls", lambda *given: given, raising=False)
    tasks, training, samples = warm_up.training_calls(stack)
    assert [task.batches.num_samples for task in tasks] == [5 * training.num_epochs] * 4
    assert samples is stack.test


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
