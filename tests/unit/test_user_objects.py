"""Checksums of a user's objects: what changes them, and what they do not cover."""

import functools
import linecache

import numpy as np
import pytest

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
