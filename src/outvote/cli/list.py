"""`outvote list rules`: rules, attacks, models, datasets, suites, runs."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outvote.cli.data import list_datasets
from outvote.cli.output import NumberColumn, percent, print_listing, print_message
from outvote.cli.plugins import first_sentence, listed_plugins, loaded
from outvote.cli.verb import Verb, usage_errors
from outvote.errors import closest

if TYPE_CHECKING:
    from outvote.cli.describe import Description
    from outvote.plugins import Plugin

NUMBERS = {
    "best": "best",
    "final": "final",
    "last_ten": "last 10",
    "kept_byzantine": "Byzantine selection rate",
}
"""The numbers of a run that are printed, and their titles."""
NUMBERS_NOTE = (
    "Accuracies in percent; Byzantine selection rate: the percentage of the sampled Byzantine "
    "clients that the rule kept."
)


@click.command("list", cls=Verb)
@click.argument("kind")
@click.option(
    "--store",
    type=click.Path(path_type=Path, file_okay=False),
    help="Of runs: the folder of the results.  [default: runs]",
)
@click.option("--suite", help="Of runs: only those of a suite.")
@click.option("--rebuild", is_flag=True, help="Of runs: read all of them again.")
def command(kind: str, store: Path | None, suite: str | None, rebuild: bool, as_json: bool) -> None:
    """List all rules, attacks, models, datasets, suites or runs.

    n is the number of clients, f the number of Byzantine ones among them.

    \b
    outvote list rules
    outvote list runs --suite smoke
    """  # noqa: D301  (click wants the backspace)
    if kind == "runs":
        list_runs(store or Path("runs"), suite, rebuild, as_json)
        return
    if kind not in KINDS:
        known = [*KINDS, "runs"]
        raise click.UsageError(
            f"nothing of the kind {kind!r} can be listed; {closest(kind, known)}"
        )
    if store is not None or suite is not None or rebuild:
        raise click.UsageError("--store, --suite and --rebuild are for `outvote list runs` alone.")
    KINDS[kind](as_json)


def list_rules(as_json: bool) -> None:
    """List the rules and wrappers."""
    from outvote.cli.describe import describe
    from outvote.plugins import load_plugin_class
    from outvote.rules.rule import Rule
    from outvote.rules.rule_spec import ALIASES, RULES

    taken = {*RULES, *ALIASES}
    others = loaded("rule", taken, lambda each: describe(load_plugin_class(each, Rule)))
    found = [*((describe(rule), None) for rule in RULES.values()), *others]
    rows = [(each, each.tolerates_in_short, asdict(each), plugin) for each, plugin in found]
    note = (
        "name(...) wraps a rule: gas(multi-krum), gas(bucketing(rfa, size=2)).\n"
        "More on one of them: outvote show NAME"
    )
    _list_described(as_json, ("rule", "parameters", "tolerates", "what"), rows, ALIASES, note)


def list_attacks(as_json: bool) -> None:
    """List the attacks."""
    from outvote.attacks.attack import Attack
    from outvote.attacks.attack_spec import ALIASES, ATTACKS
    from outvote.cli.describe import describe, kind_of, traits
    from outvote.plugins import load_plugin_class

    others = loaded("attack", {*ATTACKS, *ALIASES}, lambda each: load_plugin_class(each, Attack)())
    found = [*((attack(), None) for attack in ATTACKS.values()), *others]
    described = [(describe(type(attack)), attack, plugin) for attack, plugin in found]
    rows = [
        (each, kind_of(attack), {**each.of_attack(), **traits(attack)}, plugin)
        for each, attack, plugin in described
    ]
    note = "More on one of them: outvote show NAME. How strong they are: outvote stress"
    _list_described(as_json, ("attack", "parameters", "kind", "what"), rows, ALIASES, note)


def _list_described(
    as_json: bool,
    titles: Sequence[str],
    found: "Sequence[tuple[Description, str, dict[str, Any], Plugin | None]]",
    aliases: Mapping[str, str],
    note: str,
) -> None:
    """List rules or attacks: each with the text of its third column, and with its JSON."""
    rows, data = [], []
    for each, text, about, plugin in found:
        others = [alias for alias, meant in aliases.items() if meant == each.name]
        name = each.name + ("(...)" if each.is_wrapper else "")
        parameters = "\n".join(parameter.text for parameter in each.parameters)
        names = [name, *others, *([] if plugin is None else [f"({plugin.source})"])]
        rows.append(["\n".join(names), parameters, text, each.summary])
        data.append({**about, "aliases": others, "package": plugin and plugin.source})
    print_listing(as_json, data, titles, rows, note)


def list_models(as_json: bool) -> None:
    """List the networks."""
    from outvote.models.model_spec import MODELS

    data = [
        {"name": name, "summary": first_sentence(model.__doc__ or ""), "package": None}
        for name, model in MODELS.items()
    ]
    data += listed_plugins("model", MODELS)
    rows = [[str(each[key] or "") for key in ("name", "summary", "package")] for each in data]
    print_listing(as_json, data, ["model", "what", "package"], rows)


def list_runs(store: Path, suite: str | None, rebuild: bool, as_json: bool) -> None:
    """List the runs of a store."""
    from outvote.results.disk import StoreError
    from outvote.results.index import list_runs as indexed

    if not store.is_dir():
        raise click.UsageError(f"there is no folder {store}; give another --store.")
    with usage_errors(StoreError):
        found = indexed(store, print_message, rebuild=rebuild)
    suites = list(dict.fromkeys(entry.suite for entry in found))
    if suite is not None and suite not in suites:
        raise click.UsageError(f"no runs of a suite {suite!r} in {store}; {closest(suite, suites)}")
    chosen = [entry for entry in found if suite in (None, entry.suite)]
    if not chosen and not as_json:
        click.echo(f"No runs in {store}.")
        return
    data = [{**entry._asdict(), "settings": json.loads(entry.settings)} for entry in chosen]
    for each in data:
        del each["stamp"]
    rows = [
        [
            *(entry.suite, entry.rule, entry.attack, str(entry.seed), entry.hash, entry.outcome),
            f"{entry.round}/{entry.num_rounds}",
            *(percent(getattr(entry, name)) for name in NUMBERS),
        ]
        for entry in chosen
    ]
    about = ["suite", "rule", "attack", NumberColumn("seed"), "hash", "outcome"]
    numbers = [NumberColumn(title) for title in ("rounds", *NUMBERS.values())]
    print_listing(as_json, data, [*about, *numbers], rows, NUMBERS_NOTE)


def list_suites(as_json: bool) -> None:
    """List the suites that come with outvote."""
    from outvote.cli.show_experiment import suite_facts
    from outvote.suites.suite import read_suite, suite_names

    data = [{"name": name, **suite_facts(read_suite(name))} for name in suite_names()]
    rows = [
        [
            *(each["name"], each["title"], str(each["num_runs"])),
            ", ".join(part["name"] for part in each["parts"]),
        ]
        for each in data
    ]
    columns = ["suite", "title", NumberColumn("runs"), "parts"]
    print_listing(as_json, data, columns, rows, "To run one: outvote bench NAME")


KINDS = {
    "rules": list_rules,
    "attacks": list_attacks,
    "models": list_models,
    "datasets": list_datasets,
    "suites": list_suites,
}
