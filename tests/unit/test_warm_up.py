"""Small calls that compile kernels: one for every rule and attack; none may fail."""

import numpy as np
import pytest
import torch

import outvote as ov
from outvote.engine import warm_up
from outvote.engine.federation import make_federation
from outvote.engine.run_stack import Run
from outvote.engine.simulation import make_run_stack
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
    calls = warm_up.small_calls(stack, 100_003)
    assert len(calls) == len(RULES) + len(ATTACKS)
    for call in calls:
        call()


def test_addresses_are_aligned_as_those_of_the_model(stack, monkeypatch):
    shapes = []
    monkeypatch.setattr(warm_up, "_aggregate", lambda rule, shape, stack: shapes.append(shape))
    for dim in (2_472_266, 1_000_000, 50):
        for call in warm_up.small_calls(stack, dim)[:1]:
            call()
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
