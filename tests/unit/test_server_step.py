"""The server's step: formulas in plain Python, what it carries, wrong settings."""

import math
from dataclasses import replace

import pytest
import torch

from federations import TRAINING, make_runs, networks, samples
from outvote.engine.simulation import first_state, make_run_stack, simulate
from outvote.experiment.stack_run import OWNERS, state_of
from outvote.results.checkpoint import Checkpoint
from outvote.server.step import STATE_NAMES, USUAL, Server, make_server, step

UPDATES = [0.5, -0.25, 2.0, 0.0, 1e-4]
SQUARES = {
    "adam": lambda v, u, beta: beta * v + (1 - beta) * u * u,
    "yogi": lambda v, u, beta: v - (1 - beta) * u * u * ((v > u * u) - (v < u * u)),
    "adagrad": lambda v, u, beta: v + u * u,
}


def by_hand(server: Server) -> list[float]:
    """The weight after each update, from 1: Algorithm 2 of Reddi et al., one number at a time."""
    weight, first, second, found = 1.0, 0.0, server.epsilon**2, []
    for update in UPDATES:
        first = server.beta1 * first + (1 - server.beta1) * update
        second = SQUARES[server.optimizer](second, update, server.beta2)
        weight -= server.learning_rate * first / (math.sqrt(second) + server.epsilon)
        found.append(weight)
    return found


def stepped(server: Server, num_runs: int = 2) -> tuple[list[list[float]], dict]:
    """The weights of each run after each update; run k has the updates times k + 1."""
    weights, state, found = torch.ones(num_runs, 1, dtype=torch.float64), {}, []
    scale = torch.arange(1, num_runs + 1, dtype=torch.float64).unsqueeze(1)
    for update in UPDATES:
        weights, state = step(server, weights, update * scale, state)
        found.append(weights[:, 0].tolist())
    return list(map(list, zip(*found, strict=True))), state


@pytest.mark.parametrize("optimizer", SQUARES)
@pytest.mark.parametrize(
    "more", [{}, {"beta1": 0.0, "beta2": 0.5}, {"epsilon": 0.1, "learning_rate": 0.3}]
)
def test_adaptive_steps_are_those_of_the_paper(optimizer, more):
    server = Server(optimizer=optimizer, **more)
    found, state = stepped(server)
    assert found[0] == pytest.approx(by_hand(server), rel=1e-12)
    assert found[1] != pytest.approx(found[0]), "runs have moments of their own"
    assert set(state) == {"first_moment", "second_moment"} <= set(STATE_NAMES)


def test_a_plain_server_carries_nothing_and_one_with_momentum_its_velocity():
    assert stepped(Server())[1] == {}
    found, state = stepped(Server(momentum=0.5, learning_rate=0.1))
    velocity, weight = 0.0, 1.0
    for update in UPDATES:
        velocity = 0.5 * velocity + update
        weight -= 0.1 * velocity
    assert found[0][-1] == pytest.approx(weight)
    assert state["velocity"][:, 0].tolist() == pytest.approx([velocity, 2 * velocity])


def test_a_step_changes_neither_its_inputs_nor_the_last_state():
    server = Server(optimizer="yogi")
    weights, updates = torch.ones(1, 3), torch.full((1, 3), 0.5)
    _, state = step(server, weights, updates, {})
    before = {name: values.clone() for name, values in state.items()}
    step(server, weights, updates, state)
    assert weights.eq(1).all()
    assert updates.eq(0.5).all()
    assert all(torch.equal(state[name], before[name]) for name in before)


def test_a_second_moment_that_overflows_is_a_run_that_diverged():
    runs = make_runs([("mean", "none")])
    train = samples(120, torch.float32)
    modules = networks(runs, dtype=torch.float32)
    stack = make_run_stack(
        modules[0],
        train,
        samples(40, torch.float32),
        runs,
        training=replace(TRAINING, learning_rate=1e25, num_epochs=1, num_steps=1),
        server=Server(optimizer="adam", learning_rate=0.01),
        num_classes=4,
    )
    (found,) = simulate(stack, first_state(modules, train), 3)
    assert found.state.weights.isfinite().all()
    assert found.over == [0]


@pytest.mark.parametrize("names", [(), ("velocity",), ("first_moment", "second_moment")])
def test_checkpoints_with_and_without_moments_are_read(names):
    rows = torch.arange(3.0).numpy()
    carried = {name: rows + k for k, name in enumerate(names, 1)}
    found = Checkpoint(
        round=2,
        config="",
        arrays={"weights": rows, "buffers": rows[:0], **carried},
        notes={f"{owner}_state": {"value": None} for owner in OWNERS},
    )
    state = state_of([found], make_runs([("mean", "none")]), torch.device("cpu")).server_state
    assert {name: values.tolist() for name, values in state.items()} == {
        name: [values.tolist()] for name, values in carried.items()
    }


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"optimizer": "adm"},
            "optimizer must be one of 'sgd', 'adam', 'yogi', 'ad",
        ),
        ({"learning_rate": 0}, "learning_rate must be positive and finite, got 0"),
        ({"epsilon": 0.0}, "epsilon must be positive and finite, got 0.0"),
        ({"epsilon": math.inf}, "epsilon must be positive and finite, got inf"),
        ({"beta1": 1.0}, "beta1 must be from 0 to below 1, got 1.0"),
        ({"beta2": -0.1}, "beta2 must be from 0 to below 1, got -0.1"),
        ({"beta2": math.nan}, "beta2 must be from 0 to below 1, got nan"),
        ({"beta1": "much"}, "beta1 must be a number, got 'much'"),
        (
            {"optimizer": "adam", "momentum": 0.5},
            "momentum is for optimizer 'sgd', got 0.5 with 'adam'; set beta1 instead.",
        ),
    ],
)
def test_wrong_settings_are_refused_in_one_line(settings, message):
    with pytest.raises((ValueError, TypeError)) as error:
        Server(**settings)
    assert str(error.value).startswith("server: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", USUAL)
def test_a_text_and_the_server_are_the_same(name):
    usual = make_server(name)
    assert (str(usual), usual.learning_rate) == (name, 1.0 if name == "fedavg" else 0.1)
    made = make_server(f"{name}(learning_rate=0.25)")
    assert (made.optimizer, made.learning_rate) == (usual.optimizer, 0.25)
    assert str(made) == f"{name}(learning_rate=0.25)"
    assert make_server(str(made)) == make_server(made) == made


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fedavg(momentum=1)", "momentum must be from 0 to below 1, got 1"),
        ("fedadam(beta=0.5)", "fedadam has no parameter 'beta'; did you mean 'beta"),
        ("fedadm", "unknown server optimizer 'fedadm'; did you mean 'fedadam'"),
    ],
)
def test_wrong_texts_are_refused(text, message):
    with pytest.raises(ValueError, match=message):
        make_server(text)
