"""Checksums of a user's objects: what changes them, and what they do not cover."""

import argparse
import enum
import functools
import io
import linecache
import logging
import os
import random
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

from outvote import user_objects
from outvote.user_objects import checksum_of, find_object, named, registered, text_of

SIZES = {"width": 4}


def digest(thing):
    found, gaps = checksum_of(thing)
    assert gaps == ()
    return found


def sized():
    return SIZES["width"]


def test_lambdas_on_one_line_are_several():
    one, two, again = lambda: 3 + 1, lambda: 3 + 2, lambda: 3 + 1
    assert len({digest(one), digest(two)}) == 2
    assert digest(one) == digest(again)
    nested = lambda: lambda: 3 + 1  # noqa: E731
    assert digest(nested) != digest(nested())


def test_the_rest_of_the_line_is_no_part_of_a_lambda():
    def made(text):
        return cell(f"calls = [{text}]")["calls"][0]

    assert digest(made("lambda: 5, 1")) == digest(made("lambda: 5, 2"))
    assert digest(made("lambda: 5")) != digest(made("lambda: 6"))


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


def test_own_modules_that_a_function_uses_count(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_layers.py").write_text("def block():\n    return 1\n")
    import own_layers

    function = cell("def network():\n    return own_layers.block()", own_layers=own_layers)[
        "network"
    ]
    before = digest(function)
    monkeypatch.setattr(own_layers, "block", cell("def block():\n    return 2")["block"])
    assert digest(function) != before


def cell(text, **known):
    """Execute a cell of a notebook: its lines are known, and its module has no file."""
    name = f"<cell {abs(hash(text))}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    scope = {"__name__": "__main__", **known}
    exec(compile(text, name, "exec"), scope)
    return scope


CLASS = "class Net:\n    def width(self):\n        return {}\n"


def test_classes_of_notebooks_have_a_source():
    four, five, again = (cell(CLASS.format(width))["Net"] for width in (4, 5, 4))
    assert digest(four) == digest(again) != digest(five)


def test_of_two_classes_with_one_name_each_has_its_own_source():
    scope = cell(f"{CLASS.format(4)}first = Net\n{CLASS.format(5)}second = Net\n")
    assert digest(scope["first"]) != digest(scope["second"])


@pytest.mark.parametrize("known", [{}, {"__name__": "__main__"}])
def test_without_a_source_the_compiled_code_counts_and_that_is_reported(known):
    def made(text):
        scope = dict(known)
        exec(text, scope)
        return scope["Net"]

    (one, gaps), (two, _) = (checksum_of(made(CLASS.format(width))) for width in (4, 5))
    assert one != two
    (gap,) = gaps
    assert gap.startswith("the source of the class Net is not available; its compiled code stands")


def test_what_python_and_packages_define_is_known_by_name():
    for thing in (dict, np.mean, functools.partial(np.mean, axis=0)):
        assert digest(thing) == digest(thing)


def test_an_object_is_known_while_one_of_several_calls_needs_it():
    text, _ = text_of(sized)
    with registered({text: sized}):
        with registered({text: sized}):
            pass
        assert find_object(text, "model") is sized
    with pytest.raises(ValueError, match="is not known here"):
        find_object(text, "model")


def test_a_class_keeps_its_name_while_one_of_several_calls_needs_it():
    class Own:
        pass

    with named({Own: "Own#0123456789ab"}):
        with named({Own: "Own#0123456789ab"}):
            pass
        assert Own.loaded_from == "Own#0123456789ab"
    assert not hasattr(Own, "loaded_from")


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


def test_a_network_may_refer_to_itself():
    network = nn.Sequential(Scaled())
    network.whole, network[0].whole = [network], [network]
    assert digest(network) == digest(network)


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


class Faulty:
    def __repr__(self):
        raise OSError("no such thing")


@pytest.mark.parametrize(
    "thing",
    [
        io.StringIO("text"),
        threading.Lock(),
        random.Random(0),
        np.random.default_rng(0),
        torch.Generator(),
        (each for each in ()),
        os.environ,
        object(),
        Faulty(),
        torch.zeros(2, device="meta"),
        random.shuffle,
    ],
    ids=lambda thing: type(thing).__name__,
)
def test_globals_whose_content_is_not_known_are_reported(thing):
    scope = cell("def f():\n    return given", given=thing)
    (found, gaps), again = checksum_of(scope["f"]), checksum_of(scope["f"])
    assert again == (found, gaps)
    (gap,) = gaps
    assert "given" in gap
    assert gap.endswith("is not part of the names of runs.")


def test_beside_an_open_file_the_other_settings_count():
    one, two = (argparse.Namespace(lr=lr, log=io.StringIO()) for lr in (0.1, 0.2))
    (first, gaps), (second, _) = (
        checksum_of(cell("def f():\n    return args", args=args)["f"]) for args in (one, two)
    )
    assert first != second
    assert len(gaps) == 1
    assert "args.log" in gaps[0]


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
    ("line", "value"),
    [
        ("seen.append(x); return seen[0]", []),
        ("return seen.append(x)", []),
        ("seen[x] = 1", {}),
        ("seen.last = x", SimpleNamespace()),
        ("global seen; seen += 1", 0),
    ],
)
def test_what_a_function_changes_itself_is_no_part_but_reported(line, value):
    function = cell(f"def f(x):\n    {line}", seen=value)["f"]
    before = checksum_of(function)
    function(1)
    assert checksum_of(function) == before
    assert before[1] == (
        "seen is changed by the code that uses it; its value is not part of the names of runs.",
    )


@pytest.mark.parametrize("owner", ["Net", "type(self)", "self.__class__"])
def test_a_counter_of_a_class_is_no_part_but_reported(owner):
    text = f"class Net:\n    made = 0\n    def __init__(self):\n        {owner}.made += 1\n"
    kind = cell(text)["Net"]
    before = checksum_of(kind)
    kind()
    assert checksum_of(kind) == before
    assert before[1] == (
        "Net.made is changed by its class; its value is not part of the names of runs.",
    )


def test_the_history_of_a_notebook_is_no_part():
    def used(last):
        known = {"get_ipython": object(), "In": [""], "Out": {1: last}, "_": last}
        return checksum_of(cell("def f():\n    return Out, _", **known)["f"])

    assert used(1) == used(2)
    assert len(used(1)[1]) == 2


def test_results_of_an_earlier_call_are_no_part_but_reported():
    from outvote.report.runs import Runs

    (gap,) = checksum_of(cell("def f():\n    return result", result=Runs([]))["f"])[1]
    assert gap.startswith("the content of result, an object of the class Runs,")


def test_own_packages_are_followed_into_their_modules(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_package").mkdir()
    (tmp_path / "own_package" / "__init__.py").write_text("from own_package import layers\n")
    (tmp_path / "own_package" / "layers.py").write_text("import own_package\nWIDTH = 1\n")
    import own_package

    function = cell("def f():\n    return p.layers.WIDTH", p=own_package)["f"]
    before = digest(function)
    monkeypatch.setattr(own_package.layers, "WIDTH", 2)
    assert digest(function) != before


def test_deep_and_long_globals_end(monkeypatch):
    monkeypatch.setattr(user_objects, "MAX_VALUES", 100)
    deep = []
    for _ in range(5000):
        deep = [deep]
    for thing, words in ((deep, "nested more than 60 deep"), (list(range(200)), "than 100 values")):
        (gap,) = checksum_of(cell("def f():\n    return given", given=thing)["f"])[1]
        assert words in gap


@pytest.mark.parametrize("length", [250, pytest.param(400, marks=pytest.mark.slow)])
def test_long_chains_of_functions_are_no_matter_of_depth(length):
    def chain(last):
        lines = [f"def f{k}():\n    return f{k + 1}()\n" for k in range(length)]
        return cell("".join([*lines, f"def f{length}():\n    return {last}\n"]))["f0"]

    assert digest(chain(1)) == digest(chain(1)) != digest(chain(2))


SCRIPT = """
import argparse, functools, torch
from torch import nn
from outvote.user_objects import checksum_of
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
exec("def run(x):\\n    return x in {'a', 'b', 'c'}")
print(checksum_of(run)[0])
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
    assert one.count("()") == 7


def test_a_list_that_only_collects_is_no_part():
    function = cell("def f(x):\n    seen.append(x)", seen=[])["f"]
    before = digest(function)
    function(1)
    assert digest(function) == before


def test_recurrent_layers_are_known():
    one, two = same_weights(functools.partial(nn.LSTM, 2, 2), {}, {"batch_first": True})
    assert digest(one) != digest(two)
