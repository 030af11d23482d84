"""`outvote show NAME`: what a rule, an attack, a model, a dataset or a suite is."""

import re
from collections.abc import Sequence
from dataclasses import asdict
from math import ceil, inf
from typing import TYPE_CHECKING, Any

import click

from outvote.cli.output import one_line, print_json, print_table, print_text
from outvote.cli.run_plan import allow_code_option, consent
from outvote.cli.show_experiment import show_dataset, show_model, show_suite
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
        SHOW[_kind_of(name)](name, as_json)


def _kind_of(text: str) -> str:
    """Return the kind of thing that a text names: what is built in goes before plugins."""
    from outvote.attacks.attack import Attack
    from outvote.attacks.attack_spec import ALIASES as ATTACK_ALIASES
    from outvote.attacks.attack_spec import ATTACKS
    from outvote.data.catalog import DATASETS
    from outvote.loading import load_class
    from outvote.models.model_spec import MODELS
    from outvote.plugins import plugin_names
    from outvote.rules.rule import Rule
    from outvote.rules.rule_spec import ALIASES, RULES
    from outvote.suites.suite import suite_names

    if text.endswith(".toml"):
        return "suite"
    name = re.split(r"[\s(]", text.strip(), maxsplit=1)[0]
    if re.search(r"\.py:\w+$", name):
        with usage_errors(ValueError):
            found = load_class(name, "rule or attack", Rule, Attack)
        return "attack" if issubclass(found, Attack) else "rule"
    name = name.lower()
    named: dict[str, set[str]] = {
        "rule": {*RULES, *ALIASES},
        "attack": {*ATTACKS, *ATTACK_ALIASES},
        "model": {*MODELS},
        "dataset": {*DATASETS},
        "suite": {*suite_names()},
    }
    plugins = {kind: plugin_names(kind) for kind in ("rule", "attack", "model", "dataset")}
    for kind, names in [*named.items(), *plugins.items()]:
        if name in names:
            return kind
    if not re.fullmatch(r"[\w-]+", name):
        return "rule"  # Whose mistake is explained where rules are read.
    hint = closest(name, {each for names in (*named.values(), *plugins.values()) for each in names})
    lists = "outvote list rules, attacks, models, datasets or suites names what there is."
    raise click.UsageError(
        f"nothing is called {name!r}; {hint if hint.startswith('did') else lists}"
    )


def show_attack(name: str, as_json: bool) -> None:
    """Show an attack with the values of its parameters."""
    from outvote.cli.describe import describe, kind_of, traits

    attack = read_attack(name)
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

    rule = _find(name)
    layers = _layers(rule)
    inside = _limits(layers)
    limits = inside.pop(str(rule))
    is_wrapper_alone = "(" not in name and len(layers) > 1
    described = [(each, describe(type(each))) for each in layers[: 1 if is_wrapper_alone else None]]
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


def _layers(rule: "Rule") -> "list[Rule]":
    """Return a rule and the rules inside it, the outermost first."""
    from outvote.rules.rule import Wrapper

    layers = [rule]
    while isinstance(layers[-1], Wrapper):
        layers.append(layers[-1].rule)
    return layers


def _limits(layers: "Sequence[Rule]") -> dict[str, dict[int, int]]:
    """Return for each layer how many Byzantine clients of some numbers it tolerates."""
    from outvote.rules.rule import Wrapper

    limits: dict[str, dict[int, int]] = {}
    seen = {num: num for num in NUM_CLIENTS}
    for layer in layers:
        limits[str(layer)] = {num: layer.max_byzantine(inside) for num, inside in seen.items()}
        if isinstance(layer, Wrapper):
            seen = {num: layer.inside_num_clients(inside) for num, inside in seen.items()}
    return limits


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
    none: dict[str, Any] = {"kind": "none", "constants": []}
    search: dict[str, Any] = {**SEARCHED, "num_byzantine": asked[SEARCHED["num_clients"]]}
    if not search["num_byzantine"]:
        return none
    try:
        ratio = worst_case(rule, **search).ratio
    except Exception as error:  # noqa: BLE001  (a user's rule may raise anything)
        return none | {"search": search | {"failure": one_line(f"{type(error).__name__}: {error}")}}
    return none | {"search": search | {"lambda_at_least": ratio, "has_no_lambda": ratio == inf}}


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
    who = f"{search['num_byzantine']} of {search['num_clients']} clients"
    if "failure" in search:
        return f"lambda: none known. The search for a lower bound failed: {search['failure']}"
    if search["has_no_lambda"]:
        return (
            "lambda: none exists. A search found honest clients that agree exactly, and a result "
            f"elsewhere ({who} Byzantine)."
        )
    return (
        f"lambda: none known. A search found that it is at least {search['lambda_at_least']:.3g} "
        f"({who}, {search['dim']} coordinates); the true one may be larger."
    )


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


SHOW = {
    "rule": show_rule,
    "attack": show_attack,
    "model": show_model,
    "dataset": show_dataset,
    "suite": show_suite,
}
