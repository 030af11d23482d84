"""`outvote list rules`: rules, attacks, models, datasets, suites, runs."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from outvote.cli.output import Column, one_line, percent, print_json, print_table
from outvote.cli.run_plan import NUMBERS, NUMBERS_NOTE
from outvote.cli.verb import Verb
from outvote.errors import closest

if TYPE_CHECKING:
    pass


@click.command("list", cls=Verb)
@click.argument("kind")
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, file_okay=False),
    help="Of runs: the folder of the results.  [default: runs]",
)
@click.option("--suite", help="Of runs: only those of a suite.")
@click.option("--rebuild", is_flag=True, help="Of runs: read all of them again.")
def command(
    kind: str, output: Path | None, suite: str | None, rebuild: bool, as_json: bool
) -> None:
    """List all rules, attacks, models, datasets, suites or runs.

    n is the number of clients, f the number of Byzantine ones among them.

    \b
    outvote list rules
    outvote list runs --suite smoke
    """  # noqa: D301  (click wants the backspace)
    if kind == "runs":
        list_runs(output or Path("runs"), suite, rebuild, as_json)
        return
    if kind not in KINDS:
        known = [*KINDS, "runs"]
        raise click.UsageError(
            f"nothing of the kind {kind!r} can be listed; {closest(kind, known)}"
        )
    if output is not None or suite is not None or rebuild:
        raise click.UsageError("--output, --suite and --rebuild are for `outvote list runs` alone.")
    KINDS[kind](as_json)


def list_rules(as_json: bool) -> None:
    """List the rules and wrappers."""
    from outvote.cli.describe import describe
    from outvote.rules.rule_spec import ALIASES, RULES

    found = [describe(rule) for rule in RULES.values()]
    other_names = _other_names(RULES, ALIASES)
    if as_json:
        print_json([{**each.as_dict(), "aliases": other_names[each.name]} for each in found])
        return
    rows = [
        [
            "\n".join([each.name + ("(...)" if each.is_wrapper else ""), *other_names[each.name]]),
            "\n".join(parameter.text for parameter in each.parameters),
            each.tolerates_in_short,
            each.summary,
        ]
        for each in found
    ]
    print_table([Column(title) for title in ("rule", "parameters", "tolerates", "what")], rows)
    click.echo("name(...) wraps a rule: gas(multi-krum), gas(bucketing(rfa, size=2)).")
    click.echo("More on one of them: outvote show NAME")


def list_attacks(as_json: bool) -> None:
    """List the attacks."""
    from outvote.attacks.attack_spec import ALIASES, ATTACKS
    from outvote.cli.describe import describe, kind_of, traits

    found = [(describe(attack), attack()) for attack in ATTACKS.values()]
    other_names = _other_names(ATTACKS, ALIASES)
    if as_json:
        print_json(
            [
                {**about.of_attack(), **traits(attack), "aliases": other_names[about.name]}
                for about, attack in found
            ]
        )
        return
    rows = [
        [
            "\n".join([about.name, *other_names[about.name]]),
            "\n".join(parameter.text for parameter in about.parameters),
            kind_of(attack),
            about.summary,
        ]
        for about, attack in found
    ]
    print_table([Column(title) for title in ("attack", "parameters", "kind", "what")], rows)
    click.echo("More on one of them: outvote show NAME. How strong they are: outvote stress")


def list_models(as_json: bool) -> None:
    """List the networks."""
    from outvote.models.model_spec import MODELS

    found = {name: _first_sentence(model.__doc__ or "") for name, model in MODELS.items()}
    if as_json:
        print_json([{"name": name, "summary": what} for name, what in found.items()])
        return
    rows = [[name, what] for name, what in found.items()]
    print_table([Column("model"), Column("what")], rows)


def list_datasets(as_json: bool) -> None:
    """List the datasets, as `outvote data list` does."""
    from outvote.cli.data import list_datasets as verb

    assert verb.callback is not None
    verb.callback(as_json)


def list_runs(output: Path, suite: str | None, rebuild: bool, as_json: bool) -> None:
    """List the runs of a store."""
    from outvote.results.disk import StoreError
    from outvote.results.index import list_runs as indexed

    if not output.is_dir():
        raise click.UsageError(f"there is no folder {output}; give another --output.")
    try:
        found = indexed(output, lambda text: click.echo(one_line(text), err=True), rebuild=rebuild)
    except StoreError as error:
        raise click.UsageError(str(error)) from error
    suites = list(dict.fromkeys(entry.suite for entry in found))
    if suite is not None and suite not in suites:
        raise click.UsageError(
            f"no runs of a suite {suite!r} in {output}; {closest(suite, suites)}"
        )
    chosen = [entry for entry in found if suite in (None, entry.suite)]
    if as_json:
        print_json([{k: v for k, v in e._asdict().items() if k != "stamp"} for e in chosen])
        return
    if not chosen:
        click.echo(f"No runs in {output}.")
        return
    rows = [
        [
            entry.suite,
            entry.rule,
            entry.attack,
            str(entry.seed),
            entry.hash,
            entry.outcome,
            f"{entry.round}/{entry.num_rounds}",
            *(percent(getattr(entry, name)) for name in NUMBERS),
        ]
        for entry in chosen
    ]
    texts = [Column(title) for title in ("suite", "rule", "attack")]
    about = [Column("seed", True), Column("hash"), Column("outcome"), Column("rounds", True)]
    print_table([*texts, *about, *(Column(title, True) for title in NUMBERS.values())], rows)
    click.echo(NUMBERS_NOTE)


def list_suites(as_json: bool) -> None:
    """List the suites that come with outvote."""
    from outvote.experiment.plan import plan_suite
    from outvote.suites.suite import read_suite, suite_names

    suites = [read_suite(name) for name in suite_names()]
    num_runs = {suite.name: len(plan_suite(suite).specs) for suite in suites}
    if as_json:
        print_json(
            [
                {
                    "name": suite.name,
                    "title": suite.title,
                    "description": suite.description.strip(),
                    "num_runs": num_runs[suite.name],
                    "parts": [{"name": part.name, "title": part.title} for part in suite.parts],
                }
                for suite in suites
            ]
        )
        return
    rows = [
        [
            suite.name,
            suite.title,
            str(num_runs[suite.name]),
            ", ".join(part.name for part in suite.parts),
        ]
        for suite in suites
    ]
    print_table([Column("suite"), Column("title"), Column("runs", True), Column("parts")], rows)
    click.echo("To run one: outvote bench NAME")


KINDS = {
    "rules": list_rules,
    "attacks": list_attacks,
    "models": list_models,
    "datasets": list_datasets,
    "suites": list_suites,
}


def _other_names(table: Mapping[str, object], aliases: Mapping[str, str]) -> dict[str, list[str]]:
    return {name: [alias for alias, meant in aliases.items() if meant == name] for name in table}


def _first_sentence(doc: str) -> str:
    what = " ".join(doc.split()).split(". ")[0].rstrip(".").removeprefix("Return ")
    return what[:1].upper() + what[1:]
