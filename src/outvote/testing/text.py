"""A rule as text, both ways."""

import ast
from collections.abc import Iterator
from dataclasses import fields, is_dataclass

from outvote.rules.base import Rule
from outvote.rules.spec import RULES, make_rule
from outvote.testing.trial import Trial, require


def text_round_trip(trial: Trial) -> None:
    """The text of a rule makes the same rule again (if its class can be found by text)."""
    if not all(_has_text(type(rule)) for rule in _nested(trial.rule)):
        return
    text = str(trial.rule)
    again = make_rule(text)
    is_same = again == trial.rule if _is_value(trial.rule) else type(again) is type(trial.rule)
    require(is_same and str(again) == text, text, f"make_rule gave {again!r}")


def repr_round_trip(trial: Trial) -> None:
    """The repr of a rule is the Python expression that makes it."""
    if not all(_is_value(rule) for rule in _nested(trial.rule)):
        return
    classes = {type(rule).__name__: type(rule) for rule in _nested(trial.rule)}
    again = _evaluate(ast.parse(repr(trial.rule), mode="eval").body, classes)
    require(again == trial.rule, repr(trial.rule), f"it makes {again!r}")


def _nested(rule: Rule) -> Iterator[Rule]:
    """Yield a rule and all the rules inside."""
    yield rule
    for value in _parameters(rule):
        if isinstance(value, Rule):
            yield from _nested(value)


def _parameters(thing: object) -> list[object]:
    if not is_dataclass(thing):
        return []
    return [getattr(thing, field.name) for field in fields(thing)]


def _is_value(thing: object) -> bool:
    return is_dataclass(thing)


def _has_text(kind: type) -> bool:
    return kind in RULES.values() or hasattr(kind, "loaded_from")


def _evaluate(node: ast.expr, classes: dict[str, type]) -> object:
    """Evaluate a call of rule classes on literals, and nothing else."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in classes:
        parts = [_evaluate(part, classes) for part in node.args]
        named = {str(part.arg): _evaluate(part.value, classes) for part in node.keywords}
        return classes[node.func.id](*parts, **named)
    return ast.literal_eval(node)
