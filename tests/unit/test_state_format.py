"""The state of rules and attacks: what may be saved, and the error that names what may not."""

import json
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from outvote.results.checkpoint import Checkpoint, load_newest, save
from outvote.state_format import pack_state, unpack_state


@dataclass(frozen=True)
class Reputation:
    """A state of one's own."""

    trust: Any
    names: Any = ()


class Pair(NamedTuple):
    """Another one."""

    left: Any
    right: Any


def through_a_file(state, folder):
    arrays = {}
    node = pack_state(state, "rule_state", arrays)
    save(folder, Checkpoint(round=1, config="c", arrays=arrays, notes={"state": node}))
    found, faults = load_newest(folder, "c")
    assert faults == []
    return unpack_state(found.notes["state"], found.arrays, Reputation(None))


def assert_same(found, expected):
    assert type(found) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert torch.equal(found.nan_to_num(7), expected.nan_to_num(7))
    elif isinstance(expected, np.ndarray | np.generic):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert np.array_equal(found, expected)
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        for key, value in expected.items():
            assert_same(found[key], value)
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for left, right in zip(found, expected, strict=True):
            assert_same(left, right)
    elif isinstance(expected, Reputation):
        assert_same(vars(found), vars(expected))
    else:
        assert found == expected


@pytest.mark.parametrize(
    "state",
    [
        None,
        True,
        3,
        -0.5,
        "a word",
        torch.arange(6.0).view(2, 3),
        torch.tensor(2.5),
        torch.tensor([1, 2], dtype=torch.int32),
        torch.tensor([True, False]),
        torch.tensor([1.5, float("nan")], dtype=torch.bfloat16),
        torch.tensor([1.5], dtype=torch.float16),
        torch.empty(0, 4),
        np.arange(4.0),
        np.array(3),
        np.float32(0.25),
        np.int64(7),
        [1, (2.0, torch.ones(2)), {"a": None}],
        {"a.b": torch.zeros(1), "a": {"b": torch.ones(1)}},
        {1: torch.zeros(2), "1": torch.ones(2)},
        Reputation(trust={3: torch.ones(2)}, names=("x", "y")),
        Pair(left=torch.ones(1), right=[Reputation(trust=1.0)]),
    ],
    ids=str,
)
def test_a_state_comes_back_from_a_file_as_it_was(tmp_path, state):
    assert_same(through_a_file(state, tmp_path), state)


@pytest.mark.parametrize(
    ("state", "part"),
    [
        (object(), "rule_state is of type object"),
        ({"a": [1, {2, 3}]}, "rule_state.a.1 is of type set"),
        ({(1, 2): 3}, "rule_state has the key (1, 2) of type tuple"),
        ({True: 3}, "rule_state has the key True of type bool"),
        (Reputation(trust=lambda: None), "rule_state.trust is of type function"),
        (np.array(["a"]), "rule_state is an array of <U1"),
        (1j, "rule_state is of type complex"),
    ],
)
def test_what_cannot_be_saved_is_named(state, part):
    with pytest.raises(TypeError) as error:
        pack_state(state, "rule_state", {})
    assert part in str(error.value)
    assert "use tensors" in str(error.value)


def test_a_state_on_another_device_and_with_a_gradient_is_saved_as_plain_numbers():
    arrays = {}
    weights = torch.ones(3, requires_grad=True)
    node = pack_state({"w": weights * 2}, "s", arrays)
    json.dumps(node)
    assert unpack_state(node, arrays)["w"].tolist() == [2, 2, 2]
    assert not unpack_state(node, arrays)["w"].requires_grad


def test_a_class_that_the_module_of_the_owner_lacks_is_refused():
    node = pack_state(Reputation(trust=1.0), "s", {})
    with pytest.raises(ValueError, match="is a Reputation, which its module does not define"):
        unpack_state(node, {}, owner=torch.nn.Identity())
