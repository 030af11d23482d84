"""Checksums of a user's objects: what changes them, and what they do not cover."""

import argparse
import enum
import functools
import linecache
import logging
import os
import subprocess
import sys
import threading
from collections import namedtuple
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from outvote.user_code import checksum_of, text_of
from outvote.user_objects import find_object, registered

SIZES = {"width": 4}


def digest(thing):
    return checksum_of(thing)


def sized():
    return SIZES["width"]


def test_lambdas_on_one_line_are_several():
    one, two, again = lambda: 3 + 1, lambda: 3 + 2, lambda: 3 + 1
    assert len({digest(one), digest(two)}) == 2
    assert digest(one) == digest(again)
    nested = lambda: lambda: 3 + 1  # noqa: E731
    assert digest(nested) != digest(nested())


def test_the_values_of_names_that_a_function_uses_count():
    before = digest(sized)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SIZES, "width", 5)
        assert digest(sized) != before
    assert digest(sized) == before


def test_an_attribute_is_no_name_of_the_module():
    text = "class Net:\n    def f(self):\n        return self.width\n"
    one, two = (cell(text, width=width)["Net"] for width in ([1], [2]))
    assert digest(one) == digest(two)


def cell(text, **known):
    """Execute a cell of a notebook: its lines are known, and its module has no file."""
    name = f"<cell {abs(hash(text))}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    scope = {"__name__": "__main__", **known}
    exec(compile(text, name, "exec"), scope)
    return scope


def test_own_modules_and_packages_that_a_function_uses_are_followed(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_package").mkdir()
    (tmp_path / "own_package" / "__init__.py").write_text("from own_package import layers as p\n")
    (tmp_path / "own_package" / "layers.py").write_text("import own_package as p\nWIDTH = 1\n")
    (tmp_path / "own_blocks.py").write_text("def block():\n    return 1\n")
    (tmp_path / "own_layers.py").write_text("from own_blocks import block\n")
    import own_blocks
    import own_layers
    import own_package

    width = cell("def f():\n    return p.p.WIDTH", p=own_package)["f"]
    made = cell("def f():\n    return own_layers.block()", own_layers=own_layers)["f"]
    before = digest(width), digest(made)
    monkeypatch.setattr(own_package.p, "WIDTH", 2)
    changed = cell("def block():\n    return 2")["block"]
    monkeypatch.setattr(own_blocks, "block", changed)
    assert digest(made) == before[1], "it has the function of before"
    monkeypatch.setattr(own_layers, "block", changed)
    assert digest(width) != before[0]
    assert digest(made) != before[1]


def exec_(text, name):
    """What a console defines: it has no source."""
    scope = {}
    exec(text, scope)
    return scope[name]


CLASS = "class Net:\n    def width(self):\n        return {}\n"


def test_classes_of_notebooks_have_a_source():
    four, five, again = (cell(CLASS.format(width))["Net"] for width in (4, 5, 4))
    assert digest(four) == digest(again) != digest(five)


def test_of_two_classes_with_one_name_each_has_its_own_source():
    scope = cell(f"{CLASS.format(4)}first = Net\n{CLASS.format(5)}second = Net\n")
    assert digest(scope["first"]) != digest(scope["second"])


def test_what_python_and_packages_define_is_known_by_name():
    for thing in (dict, np.mean, functools.partial(np.mean, axis=0)):
        assert digest(thing) == digest(thing)


def test_an_object_is_known_while_a_call_needs_it():
    text = text_of(sized)
    with registered({text: sized}):
        with registered({text: sized}):
            pass
        assert find_object(text, "model") is sized
    with pytest.raises(ValueError, match="is not known here"):
        find_object(text, "model")


def same_weights(make, *settings):
    """Networks that differ in settings only."""
    networks = [make(**one) for one in settings]
    for network in networks:
        network.load_state_dict(networks[0].state_dict())
    return networks


class Scaled(nn.Module):
    def __init__(self, alpha=1.0, mask=1.0):
        super().__init__()
        self.alpha = alpha
        self.register_buffer("mask", torch.full((2,), mask), persistent=False)

    def forward(self, x):
        return self.alpha * self.mask * x


ENCODER = functools.partial(nn.TransformerEncoderLayer, 8, dim_feedforward=8)


@pytest.mark.parametrize(
    ("make", "one", "two"),
    [
        (nn.CrossEntropyLoss, {"label_smoothing": 0.0}, {"label_smoothing": 0.9}),
        (nn.HuberLoss, {"delta": 1.0}, {"delta": 2.0}),
        (functools.partial(nn.MultiheadAttention, 8), {"num_heads": 2}, {"num_heads": 4}),
        (ENCODER, {"nhead": 2}, {"nhead": 4}),
        (ENCODER, {"nhead": 2}, {"nhead": 2, "activation": "gelu"}),
        (ENCODER, {"nhead": 2}, {"nhead": 2, "norm_first": True}),
        (Scaled, {"alpha": 1.0}, {"alpha": 2.0}),
        (Scaled, {"mask": 1.0}, {"mask": 2.0}),
        (lambda **keys: nn.Sequential(Scaled(**keys)), {"alpha": 1.0}, {"alpha": 2.0}),
    ],
)
def test_the_settings_of_layers_and_losses_count(make, one, two):
    first, second, again = same_weights(make, one, two, one)
    assert digest(first) == digest(again) != digest(second)


def test_hooks_of_a_network_count_but_not_their_numbers():
    def hooked(scale):
        network = nn.Identity()
        if scale:
            network.handle = network.register_forward_hook(lambda *given: given[2] * scale)
        return network

    plain, one, two, again = (hooked(scale) for scale in (None, 1, 2, 1))
    assert len({digest(each) for each in (plain, one, two)}) == 3
    assert digest(one) == digest(again)


def with_closure(width):
    class Net:
        def size(self):
            return width

    return Net


def with_default(width):
    class Net:
        def size(self, width=width):
            return width

    return Net


def with_attribute(value):
    class Net:
        width = value

    return Net


def with_property(width):
    class Net:
        @property
        def size(self):
            return width

    return Net


def with_static(width):
    class Net:
        @staticmethod
        def size():
            return width

    return Net


def with_class_method(width):
    class Net:
        @classmethod
        def size(cls):
            return width

    return Net


def with_cached(width):
    class Net:
        @functools.cached_property
        def size(self):
            return width

    return Net


def with_fields(value):
    @dataclass(frozen=True, slots=True)
    class Net:
        width: int = value

    return Net


def with_factory(value):
    @dataclass
    class Net:
        width: int = field(default_factory=lambda: value)

    return Net


def with_decorator(width):
    def scaled(function):
        @functools.wraps(function)
        def wrapped(self):
            return function(self) * width

        return wrapped

    class Net:
        @scaled
        def size(self):
            return 1

    return Net


CLASSES = [
    with_closure,
    with_default,
    with_attribute,
    with_property,
    with_static,
    with_class_method,
    with_cached,
    with_fields,
    with_factory,
    with_decorator,
]


@pytest.mark.parametrize("make", CLASSES, ids=lambda make: make.__name__)
def test_what_a_class_is_made_with_counts(make):
    assert digest(make(4)) == digest(make(4)) != digest(make(5))


@pytest.mark.parametrize("kind", ["staticmethod", "classmethod", "property"])
def test_globals_of_every_kind_of_method_count(kind):
    text = f"class Net:\n    @{kind}\n    def size(*given):\n        return WIDTH\n"
    one, two = (cell(text, WIDTH=width)["Net"] for width in (4, 5))
    assert digest(one) != digest(two)


def test_the_source_of_a_decorator_counts():
    text = """
import functools
def doubled(function):
    @functools.wraps(function)
    def wrapped():
        return {} * function()
    return wrapped
@doubled
def size():
    return 1
"""
    one, two = (cell(text.format(factor))["size"] for factor in (2, 3))
    assert digest(one) != digest(two)


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Pair(NamedTuple):
    left: int
    right: int = 2


Point = namedtuple("Point", "x y")


@dataclass(frozen=True)
class Config:
    width: int


class Slotted:
    __slots__ = ("width",)

    def __init__(self, width):
        self.width = width


class Own(dict):
    pass


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (argparse.Namespace(lr=0.1), argparse.Namespace(lr=0.2)),
        (SimpleNamespace(lr=0.1), SimpleNamespace(lr=0.2)),
        (Config(1), Config(2)),
        (Slotted(1), Slotted(2)),
        (Color.RED, Color.BLUE),
        (Pair(1), Pair(2)),
        (Point(1, 2), Point(2, 2)),
        (Own(a=1), Own(a=2)),
        (Own(a=Config(1)), Own(a=Config(2))),
        ({"a", "b"}, {"a", "c"}),
        (nn.functional.relu, nn.functional.gelu),
        (torch.float32, torch.float64),
        (torch.zeros(2), torch.ones(2)),
        (torch.zeros(2).bfloat16(), torch.zeros(2)),
        (np.zeros(2), np.ones(2)),
        (nn.Dropout(0.1), nn.Dropout(0.2)),
        (None, 1),
        (functools.partial(sized), functools.partial(sized, 1)),
    ],
)
def test_the_globals_that_a_function_uses_count(one, two):
    functions = [cell("def f():\n    return given.width", given=each)["f"] for each in (one, two)]
    assert digest(functions[0]) != digest(functions[1])
    assert digest(functions[0]) == digest(functions[0])


@pytest.mark.parametrize("thing", [logging.getLogger("own"), torch.device("cpu"), np, print])
def test_what_changes_no_result_is_not_reported(thing):
    digest(cell("def f():\n    return given", given=thing)["f"])


def test_a_device_is_no_part_of_a_name():
    one, two = (
        cell("def f():\n    return given", given=torch.device(kind))["f"]
        for kind in ("cpu", "cuda")
    )
    assert digest(one) == digest(two)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (sys.__stdin__, r"given \(\w+\), whose values cannot be read"),
        (threading.Lock(), r"given \(lock\), whose values"),
        (argparse.Namespace(log=threading.Lock()), r"given.*log \(lock\), whose values"),
        ((each for each in ()), r"given \(generator\), whose values"),
        (torch.zeros(2, device="meta"), r"given \(Tensor\), whose values"),
        (exec_("def g():\n    return 1", "g"), r"given \(function\), whose source"),
    ],
)
def test_what_cannot_be_read_needs_a_name(given, words):
    function = cell("def f():\n    return given", given=given)["f"]
    with pytest.raises(ValueError, match=words) as caught:
        checksum_of(function)
    assert "pass name='...'" in str(caught.value)
    one, again, two = (checksum_of(function, name=name) for name in ("1", "1", "2"))
    assert one == again != two


@pytest.mark.parametrize("length", [250, pytest.param(400, marks=pytest.mark.slow)])
def test_long_chains_of_functions_are_no_matter_of_depth(length):
    def chain(last):
        lines = [f"def f{k}():\n    return f{k + 1}()\n" for k in range(length)]
        return cell("".join([*lines, f"def f{length}():\n    return {last}\n"]))["f0"]

    assert digest(chain(1)) == digest(chain(1)) != digest(chain(2))


SCRIPT = """
import argparse, functools, torch
from torch import nn
from outvote.user_code import checksum_of
args = argparse.Namespace(kinds={"a", "b", "c", "d"}, functions={print, len, repr})
class Net(nn.Module):
    names = frozenset(["x", "y", "z"])
    def __init__(self):
        super().__init__()
        self.layer, self.tags, self.function = nn.Linear(2, 2), {"p", "q", "r"}, lambda x: x
        self.register_buffer("mask", torch.ones(2), persistent=False)
        self.register_buffer("other", torch.ones(2), persistent=False)
        self.layer.register_forward_hook(lambda *given: None)
    def forward(self, x):
        return self.layer(x) if args.kinds & self.names else teacher(x)
torch.manual_seed(0)
teacher = nn.TransformerEncoderLayer(8, 2, 8)
nn.Identity().register_forward_hook(print)
def loss(outputs, targets):
    return outputs if args in {"a", "b", "c"} else Net
print(checksum_of(Net), checksum_of(Net()), checksum_of(teacher), checksum_of(loss))
inside = nn.Linear(2, 2)
inside.compile()
for compiled in (torch.compile(Net()), torch.compile(loss), inside):
    print(checksum_of(compiled))
"""


@pytest.mark.slow  # It compiles.
def test_another_process_gives_the_same_checksums(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    one, two = (
        subprocess.run(
            [sys.executable, tmp_path / "script.py"],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    )
    assert one == two
    assert len(set(one.split())) == 7
