"""Small calls that compile kernels: every rule and attack has one, and none may fail."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from threading import Event, Thread

import numpy as np
import pytest
import torch

import outvote as ov
from outvote.engine import warm_up
from outvote.engine.federation import make_federation
from outvote.engine.run_stack import Run
from outvote.engine.simulation import make_run_stack
from outvote.precision import _get_precision, exact_products, fast_products
from outvote.training.local_sgd import LocalSGD
from outvote.training.samples import ByteImages

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
    # Rules of distances, of coordinates, and the same inside gas; attacks.
    assert len(chains) == 4
    assert sum(map(len, chains)) == 2 * len(RULES) + len(ATTACKS)
    for call in chain.from_iterable(chains):
        call()


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

    def note(rule, shape, stack, *, has_copies):
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
