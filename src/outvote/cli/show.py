"""`outvote show NAME`: what a rule, an attack, a model, a dataset or a suite is."""

import re
from dataclasses import asdict
from math import ceil, inf
from typing import TYPE_CHECKING, Any

import click

from outvote.aliases import ATTACK_ALIASES, RULE_ALIASES
from outvote.cli.output import print_json, print_table, print_text
from outvote.cli.run_plan import allow_code_option, consent
from outvote.cli.show_experiment import (
    is_dataset,
    is_model,
    is_suite,
    show_dataset,
    show_model,
    show_suite,
)
from outvote.cli.verb import Verb, read_attack, read_rule, usage_errors
from outvote.errors import closest

if TYPE_CHECKING:
    from outvote.attacks.attack import Attack
    from outvote.cli.describe import Description
    from outvote.rules.rule import Rule

NUM_CLIENTS = (5, 10, 20, 50)
# Of the clients, where lambda is shown; fewer if the rule tolerates fewer.
BYZANTINE_SHARE = 0.2
# A search that takes about a second.
SEARCHED: dict[str, Any] = {"num_clients": 10, "dim": 4, "num_steps": 3}
# A wrapper's limit is that of the rule inside; this one shows it.
EXAMPLE_INSIDE = "multi-krum"


@click.command("show", cls=Verb)
@click.argument("name")
@allow_code_option
def command(name: str, allow_code: bool, as_json: bool) -> None:
    """Show a rule or an attack, a model, a dataset or a suite.

    NAME is a rule (outvote list rules) or an attack (outvote list attacks), a whole text such as
    'gas(bucketing(rfa, size=2))' or 'lie(z=2)', or path.py:MyRule or path.py:MyAttack for your own;
    or a model, a dataset or a suite (outvote list models, ...), or the path.toml of a suite, whose
    Python files are executed with --allow-code only.

    \b
    outvote show 'gas(multi-krum)'
    outvote show alexnet
    outvote show table1-cifar10
    """  # noqa: D301  (click wants the backspace)
    with consent(allow_code, [name]):
        for is_one, show in OTHERS:
            if is_one(name) and not _is_built_in(name):
                show(name, as_json)
                return
        if _is_attack(name):
            show_attack(read_attack(name), as_json)
        else:
            show_rule(name, as_json)


def show_attack(attack: "Attack", as_json: bool) -> None:
    """Show an attack with the values of its parameters."""
    from outvote.cli.describe import describe, kind_of, traits

    about = describe(type(attack))
    if as_json:
        shown = {**about.of_attack(), **traits(attack), "values": _values(attack, about)}
        print_json({"attack": str(attack), **shown})
        return
    rows = _rows(attack, about)
    where = sum(row[0] in ("formula", "needs") for row in rows)
    rows.insert(where, ["kind", kind_of(attack) or "each sends its own row"])
    print_table([about.name, about.summary], rows)
    if not attack.poisons_data:
        print_text(f"How far it moves each rule: outvote stress --attack '{attack}'")


def show_rule(name: str, as_json: bool) -> None:
    """Show a rule, layer by layer if it wraps others."""
    from outvote.cli.describe import describe
    from outvote.rules.rule import Wrapper

    rule = _find(name)
    is_wrapper_alone = "(" not in name and hasattr(rule, "rule")
    layers = [rule]
    while isinstance(layers[-1], Wrapper) and not is_wrapper_alone:
        layers.append(layers[-1].rule)
    described = [(layer, describe(type(layer))) for layer in layers]
    limits = {num: rule.max_byzantine(num) for num in NUM_CLIENTS}
    inside = {str(layer): limits_inside(rule, layer) for layer in inner_rules(rule)}
    if as_json:
        shown = [{**asdict(about), "values": _values(layer, about)} for layer, about in described]
        every: dict[str, Any] = {"max_byzantine": limits, "max_byzantine_inside": inside}
        every["resilience"] = _resilience(rule, limits)
        print_json({"rule": str(rule), **every, "layers": shown})
        return
    for layer, about in described:
        print_table([about.name, about.summary], _rows(layer, about))
    print_text(f"Byzantine clients that {rule} tolerates: {_listed(limits)}.")
    before = limits
    for text, tolerated in inside.items():
        if tolerated != before:
            above = "above that, it assumes its limit and promises nothing"
            print_text(f"{text} inside tolerates: {_listed(tolerated)}; {above}.")
        before = tolerated
    print_text(_resilience_text(_resilience(rule, limits)))


def inner_rules(rule: "Rule") -> "list[Rule]":
    """Return the rules inside a rule, the outermost first."""
    from outvote.rules.rule import Wrapper

    found: list[Rule] = []
    while isinstance(rule, Wrapper):
        rule = rule.rule
        found.append(rule)
    return found


def limits_inside(rule: "Rule", inner: "Rule") -> dict[int, int]:
    """Return how many of the clients of `rule` a rule inside it tolerates."""
    from outvote.rules.rule import Wrapper

    found = {}
    for num in NUM_CLIENTS:
        layer: Rule = rule
        seen = num
        while layer is not inner and isinstance(layer, Wrapper):
            seen = layer.inside_num_clients(seen)
            layer = layer.rule
        found[num] = layer.max_byzantine(seen)
    return found


def _listed(limits: dict[int, int]) -> str:
    return ", ".join(f"{limit} of {num}" for num, limit in limits.items())


def _resilience(rule: "Rule", limits: dict[int, int]) -> dict[str, Any]:
    """Return lambda for some numbers of clients; where none is known, what a search found."""
    from outvote.rules.resilience import resilience
    from outvote.testing.worst_case import worst_case

    asked = {n: min(limit, ceil(BYZANTINE_SHARE * n)) for n, limit in limits.items()}
    found = [(n, f, resilience(rule, n, f)) for n, f in asked.items() if f]
    known = [(n, f, each) for n, f, each in found if each.constant is not None]
    if known:
        rows = [
            {"num_clients": n, "num_byzantine": f, "lambda": each.constant} for n, f, each in known
        ]
        return {"kind": known[0][2].kind, "constants": rows}
    f = asked[SEARCHED["num_clients"]]
    if not f:
        return {"kind": "none", "constants": []}
    search: dict[str, Any] = {**SEARCHED, "num_byzantine": f}
    try:
        ratio = worst_case(rule, num_byzantine=f, **SEARCHED).ratio
    except Exception as error:  # noqa: BLE001  (a user's rule may raise anything)
        search["failure"] = " ".join(f"{type(error).__name__}: {error}".split())
    else:
        search |= {"lambda_at_least": ratio, "has_no_lambda": ratio == inf}
    return {"kind": "none", "constants": [], "search": search}


def _resilience_text(found: dict[str, Any]) -> str:
    """Return it as a sentence."""
    if found["constants"]:
        listed = ", ".join(
            f"{each['lambda']:.3g} ({each['num_byzantine']} of {each['num_clients']})"
            for each in found["constants"]
        )
        return f"lambda, {found['kind']}, for any number of coordinates: {listed}."
    search = found.get("search")
    if search is None:
        n = SEARCHED["num_clients"]
        return f"lambda: none known; of {n} clients, no Byzantine one is tolerated."
    if "failure" in search:
        return f"lambda: none known. The search for a lower bound failed: {search['failure']}"
    if search["has_no_lambda"]:
        return (
            "lambda: none exists. A search found honest clients that agree exactly, and a result "
            f"elsewhere ({search['num_byzantine']} of {search['num_clients']} clients Byzantine)."
        )
    return (
        f"lambda: none known. A search found that it is at least {search['lambda_at_least']:.3g} "
        f"({search['num_byzantine']} of {search['num_clients']} clients, {search['dim']} "
        "coordinates); the true one may be larger."
    )


def _is_attack(text: str) -> bool:
    """Return whether a text names an attack; raise if it names neither that nor a rule."""
    from outvote.attacks import attack_spec as attacks
    from outvote.attacks.attack import Attack
    from outvote.loading import load_class
    from outvote.plugins import plugin_names
    from outvote.rules import rule_spec as rules
    from outvote.rules.rule import Rule

    name = re.split(r"[\s(]", text.strip(), maxsplit=1)[0]
    if re.search(r"\.py:\w+$", name):
        with usage_errors(ValueError):
            return issubclass(load_class(name, "rule or attack", Rule, Attack), Attack)
    name = name.lower()
    known = {*rules.RULES, *rules.ALIASES, *plugin_names("rule")}
    of_attacks = {*attacks.ATTACKS, *attacks.ALIASES, *plugin_names("attack")}
    if name in of_attacks and name not in {*rules.RULES, *rules.ALIASES}:
        return True
    if re.fullmatch(r"[\w-]+", name) and name not in known:
        raise click.UsageError(f"nothing is called {name!r}; {_hint(name, known | of_attacks)}")
    return False


def _is_built_in(name: str) -> bool:
    """Return whether a name is that of a rule or an attack, which no package can take."""
    from outvote.attacks.attack_spec import ATTACKS
    from outvote.rules.rule_spec import RULES

    return name in {*RULES, *ATTACKS, *RULE_ALIASES, *ATTACK_ALIASES}


OTHERS = ((is_model, show_model), (is_dataset, show_dataset), (is_suite, show_suite))


def _hint(name: str, known: set[str]) -> str:
    """Return the closest name of anything; if there is none, where names are listed."""
    from outvote.data.catalog import DATASETS
    from outvote.models.model_spec import MODELS
    from outvote.suites.suite import suite_names

    hint = closest(name, {*known, *MODELS, *DATASETS, *suite_names()})
    lists = "outvote list rules, attacks, models, datasets or suites names what there is."
    return hint if hint.startswith("did") else lists


def _find(name: str) -> "Rule":
    """Build the rule; a wrapper that is named alone gets a rule inside."""
    from outvote.rules.rule import Wrapper
    from outvote.rules.rule_spec import RULES

    known = RULES.get(name.strip().lower())
    is_wrapper = known is not None and issubclass(known, Wrapper)
    return read_rule(f"{name}({EXAMPLE_INSIDE})" if is_wrapper else name)


def _values(layer: "Rule | Attack", about: "Description") -> dict[str, Any]:
    return {parameter.name: getattr(layer, parameter.name) for parameter in about.parameters}


def _rows(layer: "Rule | Attack", about: "Description") -> list[list[str]]:
    from outvote.cli.describe import value_text

    titles = ("formula", "needs", "tolerates", "differs from the paper", "notes", "reference")
    rows = [[title, getattr(about, title.split()[0])] for title in titles]
    for parameter in about.parameters:
        value = getattr(layer, parameter.name)
        default = "" if value == parameter.default else f" (default {parameter.text})"
        doc = parameter.doc or "no description"
        rows.append([f"{parameter.name}={value_text(value)}", doc + default])
    rows.append(["example", about.example])
    return [row for row in rows if row[1]]
