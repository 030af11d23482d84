"""Local training: the learning rate of a round, the proximal term, wrong settings."""

import math

import numpy as np
import pytest

from outvote.training.local_sgd import LocalSGD, with_rates

ROUNDS = (1, 2, 3, 4, 9)


@pytest.mark.parametrize(
    "rates", [[0.3, 0.2, 0.2, 0.1], np.array([0.3, 0.2, 0.2, 0.1]), (0.3, 0.2, 0.2, 0.1)]
)
def test_a_list_has_a_rate_for_every_round_and_the_last_one_stays(rates):
    training = LocalSGD(learning_rate=rates)
    assert [training.learning_rate_at(k) for k in ROUNDS] == [0.3, 0.2, 0.2, 0.1, 0.1]
    assert training == LocalSGD(learning_rate=[0.3, 0.2, 0.2, 0.1])
    hash(training)


def test_a_callable_gets_the_number_of_the_round():
    training = LocalSGD(learning_rate=lambda number: 1 / number)
    assert [training.learning_rate_at(k) for k in ROUNDS] == [1, 1 / 2, 1 / 3, 1 / 4, 1 / 9]


@pytest.mark.parametrize("rates", [[0.3, 0.2, 0.2, 0.1, 0.7], lambda k: [9, 0.3, 0.2, 0.2, 0.1][k]])
def test_rates_can_be_written_as_a_schedule(rates):
    found = with_rates(LocalSGD(learning_rate=rates, momentum=0.9), 4)
    assert found == LocalSGD(learning_rate=0.3, schedule=((2, 0.2), (4, 0.1)), momentum=0.9)
    assert [found.learning_rate_at(k) for k in ROUNDS[:4]] == [0.3, 0.2, 0.2, 0.1]


def test_a_number_and_its_schedule_stay_as_they_are():
    training = LocalSGD(learning_rate=0.3, schedule=((9, 0.1), (2, 0.3)))
    assert with_rates(training, 4) is training


def test_a_callable_is_called_once_for_every_round_and_its_rates_are_checked():
    called = []
    with_rates(LocalSGD(learning_rate=lambda k: called.append(k) or 0.1), 3)
    assert called == [1, 2, 3]
    for bad in (math.nan, math.inf, -0.1):
        training = LocalSGD(learning_rate=lambda k, bad=bad: bad if k == 3 else 0.1)
        with_rates(training, 2)
        message = f"learning_rate of round 3 must be finite and at least 0, got {bad}"
        with pytest.raises(ValueError, match=message):
            with_rates(training, 3)
    with pytest.raises(TypeError, match="learning_rate of round 1 must be a number, got None"):
        with_rates(LocalSGD(learning_rate=lambda k: None), 3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"learning_rate": []}, "learning_rate must have at least one rate, got an empty list."),
        ({"learning_rate": [0.1, -1.0]}, "learning_rate of round 2 must be finite and at least 0"),
        ({"learning_rate": [0.1, "a"]}, "learning_rate of round 2 must be a number, got 'a'"),
        ({"learning_rate": [[0.1]]}, "learning_rate of round 1 must be a number, got [0.1]"),
        ({"learning_rate": "fast"}, "learning_rate must be a number, got 'fast'"),
        ({"learning_rate": None}, "learning_rate must be a number, got None"),
        (
            {"learning_rate": [0.1], "schedule": ((2, 0.1),)},
            "learning_rate must be a number if there is a schedule, got a list; leave one out.",
        ),
        (
            {"learning_rate": lambda k: 0.1, "schedule": ((2, 0.1),)},
            "learning_rate must be a number if there is a schedule, got a callable",
        ),
        ({"proximal": -0.1}, "proximal must be finite and at least 0, got -0.1"),
        ({"proximal": math.inf}, "proximal must be finite and at least 0, got inf"),
        ({"proximal": "near"}, "proximal must be a number, got 'near'"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(settings, message):
    with pytest.raises((ValueError, TypeError)) as error:
        LocalSGD(**settings)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
