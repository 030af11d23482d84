"""One seed is one run: on the device under test as on the CPU, for five rounds.

The CPU trains clients one after the other; the device trains them together, with kernels where it
has any. Both draw the same clients, attackers, batches and splits.
"""

import numpy as np
import pytest
import torch

import outvote as ov
from outvote.engine.federation import make_federation
from outvote.engine.run_stack import Run
from outvote.engine.simulation import first_state, make_run_stack, simulate
from outvote.training.local_sgd import LocalSGD
from outvote.training.samples import ByteImages

NUM_ROUNDS = 5
CPU = torch.device("cpu")
RULES = {
    "gas(multi-krum, num_groups=50)": "lie(z=1.5, sign=1)",
    "gas(median, num_groups=7)": "min-max",
    "gas(krum, num_groups=2000)": "min-sum",
    "gas(bulyan, num_groups=30, split=ceil)": "ipm",
    "dnc(num_coordinates=300)": "label-flip",
    "bucketing(median)": "bit-flip",
    "trimmed-mean": "lie",
}


def _simulated(device: torch.device, trainer: str) -> tuple[list[list], torch.Tensor, torch.Tensor]:
    """Return the records of every round, and the weights before and after."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 4, 480)
    # Classes of their own brightness: networks learn something.
    images = random.integers(0, 64, (480, 12, 12, 1)) + 48 * labels[:, None, None, None]
    samples = ByteImages(images.astype(np.uint8), labels, mean=[0.5], std=[0.3], device=device)
    parts = np.array_split(random.permutation(480), 16)
    runs = [
        Run(
            federation=make_federation(parts, fraction=0.25, seed=k),
            attack=ov.make_attack(attack),
            rule=ov.make_rule(rule),
            seed=k,
            num_sampled=11,
        )
        for k, (rule, attack) in enumerate(RULES.items())
    ]
    modules = [
        ov.make_model("small-cnn", num_classes=4, input_shape=(12, 12, 1), seed=k)
        for k in range(len(runs))
    ]
    stack = make_run_stack(
        modules[0],
        samples,
        samples,
        runs,
        training=LocalSGD(learning_rate=0.02, batch_size=8),
        num_classes=4,
        trainer=trainer,
    )
    state = first_state(modules, samples)
    before = state.weights.cpu().double()
    steps = list(simulate(stack, state, NUM_ROUNDS))
    assert len(steps) == NUM_ROUNDS
    return [step.records for step in steps], before, steps[-1].state.weights.cpu().double()


@pytest.fixture(scope="module")
def both(device):
    return _simulated(CPU, "sequential"), _simulated(device, "stacked")


@pytest.mark.parametrize("number", range(len(RULES)), ids=list(RULES))
def test_five_rounds_are_the_same(both, number: int):
    (plain, before, alone), (batched, _, together) = both
    for one, other in zip(plain, batched, strict=True):
        mine, theirs = one[number], other[number]
        for name in ("round", "clients", "byzantine", "num_samples", "num_byzantine_used", "kept"):
            assert getattr(mine, name) == getattr(theirs, name), name
        assert theirs.loss == pytest.approx(mine.loss, rel=1e-3)
        assert theirs.honest_norm == pytest.approx(mine.honest_norm, rel=1e-2)
    moved = (alone[number] - before[number]).norm()
    assert float(moved) > 0.01
    # A value that rounding carries over the 0 of a ReLU changes one gradient of one sample.
    assert float((together[number] - alone[number]).norm()) < 1e-2 * float(moved)
