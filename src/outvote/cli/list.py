"""`outvote list rules`: what there is."""

import click

from outvote.cli.output import Column, print_json, print_table
from outvote.cli.verb import Verb
from outvote.errors import closest

KINDS = ("rules",)


@click.command("list", cls=Verb)
@click.argument("kind")
def command(kind: str, as_json: bool) -> None:
    """List all rules: parameters, what they tolerate, what they do.

    n is the number of clients, f the number of Byzantine ones among them.

    Example: outvote list rules
    """
    if kind not in KINDS:
        raise click.UsageError(
            f"nothing of the kind {kind!r} can be listed; {closest(kind, KINDS)}"
        )
    from outvote.cli.describe import describe
    from outvote.rules.spec import ALIASES, RULES

    found = [describe(rule) for rule in RULES.values()]
    other_names = {
        name: [alias for alias, meant in ALIASES.items() if meant == name] for name in RULES
    }
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
