"""What the server does with an update: formulas in plain Python, and wrong settings."""

import math

import pytest
import torch

from outvote.flower import FedAdagrad, FedAdam, FedAvg, FedYogi
from outvote.flower.server_optimizers import SERVER_OPTIMIZERS, make_server_optimizer

UPDATES = [0.5, -0.25, 2.0, 0.0, 1e-4]


def steps(optimizer):
    state, found = {}, []
    for update in UPDATES:
        step, state = optimizer.step(torch.tensor([update], dtype=torch.float64), state)
        found.append(float(step))
    return found


def test_fedavg_adds_the_update():
    assert steps(FedAvg()) == UPDATES


def test_momentum_sums_old_updates_up():
    velocity, expected = 0.0, []
    for update in UPDATES:
        velocity = 0.9 * velocity + update
        expected.append(0.5 * velocity)
    assert steps(FedAvg(learning_rate=0.5, momentum=0.9)) == pytest.approx(expected)


SQUARES = {
    "fedadagrad": lambda v, g: v + g * g,
    "fedadam": lambda v, g: 0.99 * v + 0.01 * g * g,
    "fedyogi": lambda v, g: v - 0.01 * g * g * ((v > g * g) - (v < g * g)),
}


@pytest.mark.parametrize(
    ("optimizer", "beta"), [(FedAdagrad(), 0.0), (FedAdam(), 0.9), (FedYogi(), 0.9)]
)
def test_adaptive_steps_are_those_of_the_paper(optimizer, beta):
    first, second, expected = 0.0, 1e-6, []
    for update in UPDATES:
        first = beta * first + (1 - beta) * update
        second = SQUARES[optimizer.name](second, update)
        expected.append(0.1 * first / (math.sqrt(second) + 1e-3))
    assert steps(optimizer) == pytest.approx(expected)


@pytest.mark.parametrize("name", SERVER_OPTIMIZERS)
def test_text_and_object_are_the_same(name):
    made = make_server_optimizer(f"{name}(learning_rate=0.25)")
    assert made.learning_rate == 0.25
    assert make_server_optimizer(str(made)) == made
    assert make_server_optimizer(made) is made


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fedavg(learning_rate=0)", "learning_rate must be positive and finite, got 0"),
        ("fedavg(momentum=1)", "momentum must be from 0 to below 1, got 1"),
        ("fedadam(beta_2=1.5)", "beta_2 must be from 0 to below 1"),
        ("fedyogi(tau=0)", "tau must be positive"),
        ("fedadam(beta=0.5)", "fedadam has no parameter 'beta'"),
    ],
)
def test_wrong_settings_are_refused(text, message):
    with pytest.raises(ValueError, match=message):
        make_server_optimizer(text)
