"""`outvote show NAME`: what a rule does, needs and tolerates."""

from typing import TYPE_CHECKING, Any

import click

from outvote.cli.output import Column, print_json, print_table
from outvote.cli.verb import Verb, read_rule

if TYPE_CHECKING:
    from outvote.cli.describe import Description
    from outvote.rules.base import Rule

NUM_CLIENTS = (5, 10, 20, 50)
# A wrapper's limit is that of the rule inside; this one shows it.
EXAMPLE_INSIDE = "multi-krum"


@click.command("show", cls=Verb)
@click.argument("name")
def command(name: str, as_json: bool) -> None:
    """Show a rule: formula, needs, tolerance, reference, parameters.

    NAME is a rule (outvote list rules), a whole text such as 'gas(bucketing(rfa, size=2))', or
    path.py:MyRule for your own.
    """
    from outvote.cli.describe import describe

    rule = _find(name)
    is_wrapper_alone = "(" not in name and hasattr(rule, "rule")
    layers = _layers(rule)[: 1 if is_wrapper_alone else None]
    described = [(layer, describe(type(layer))) for layer in layers]
    limits = {num: rule.max_byzantine(num) for num in NUM_CLIENTS}
    if as_json:
        shown = [{**about.as_dict(), "values": _values(layer, about)} for layer, about in described]
        print_json({"rule": str(rule), "max_byzantine": limits, "layers": shown})
        return
    for layer, about in described:
        print_table([Column(about.name), Column(about.summary)], _rows(layer, about))
    listed = ", ".join(f"{limit} of {num}" for num, limit in limits.items())
    click.echo(f"Byzantine clients that {rule} tolerates: {listed}.")


def _find(name: str) -> "Rule":
    """Build the rule; a wrapper that is named alone gets a rule inside."""
    from outvote.rules.spec import RULES
    from outvote.rules.wrapper import Wrapper

    known = RULES.get(name.strip().lower())
    is_wrapper = known is not None and issubclass(known, Wrapper)
    return read_rule(f"{name}({EXAMPLE_INSIDE})" if is_wrapper else name)


def _layers(rule: "Rule") -> "list[Rule]":
    """List the rule and what it wraps, from the outside in."""
    from outvote.rules.wrapper import Wrapper

    return [rule, *_layers(rule.rule)] if isinstance(rule, Wrapper) else [rule]


def _values(layer: "Rule", about: "Description") -> dict[str, Any]:
    return {parameter.name: getattr(layer, parameter.name) for parameter in about.parameters}


def _rows(layer: "Rule", about: "Description") -> list[list[str]]:
    from outvote.cli.describe import value_text

    rows = [
        ["formula", about.formula],
        ["needs", about.needs],
        ["tolerates", about.tolerates],
        ["differs from the paper", about.differs],
        ["notes", about.notes],
        ["reference", about.reference],
    ]
    for parameter in about.parameters:
        value = getattr(layer, parameter.name)
        default = "" if value == parameter.default else f" (default {parameter.text})"
        rows.append([f"{parameter.name}={value_text(value)}", parameter.doc + default])
    rows.append(["example", about.example])
    return [row for row in rows if row[1]]
