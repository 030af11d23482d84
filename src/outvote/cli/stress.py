"""`outvote stress`: every attack against every rule, on synthetic gradients, in about a minute."""

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from outvote.cli.output import (
    NumberColumn,
    one_line,
    print_json,
    print_table,
    print_text,
    terminal_width,
)
from outvote.cli.progress import file_bars
from outvote.cli.verb import Verb, WorkFailed, read_attack, read_rule, usage_errors
from outvote.errors import plural

if TYPE_CHECKING:
    from outvote.attacks.attack import Attack
    from outvote.testing.stress import Cell, Stress


# Fewer tries than the attack makes by default: it asks every rule some hundred times.
GAS_AWARE = "gas-aware(draws=4, steps=5)"
LEFT_OUT = {"label-flip": "it changes labels, and no client trains here"}
INSIDE = "multi-krum"
GAP = 3
"""Characters between two columns."""


@click.command("stress", cls=Verb)
@click.option("--rule", "rule_texts", multiple=True, help="As in 'gas(bulyan)'. Default: all.")
@click.option("--attack", "attack_texts", multiple=True, help="As in 'lie(z=2)'. Default: all.")
@click.option("--clients", type=click.IntRange(1, 10_000), default=50)
@click.option("--byzantine", type=click.IntRange(1), default=10)
@click.option("--dim", type=click.IntRange(1), default=10_000)
@click.option(
    "--heterogeneity",
    type=click.FloatRange(0),
    default=2.0,
    help="Length of a client's own shift, in lengths of what is common to all.",
)
@click.option("--noise", type=click.FloatRange(0), default=1.0)
@click.option(
    "--groups",
    type=click.IntRange(1),
    default=50,
    help="Groups of the GAS variants where no --rule is given.",
)
@click.option(
    "--servers",
    type=click.IntRange(1, 1000),
    default=3,
    help="How many seeds of a random rule; the errors are averaged.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0)
def command(
    rule_texts: tuple[str, ...],
    attack_texts: tuple[str, ...],
    groups: int,
    servers: int,
    as_json: bool,
    **recipe: Any,
) -> None:
    """Measure how far each attack moves each rule from the honest mean.

    Gradients are synthetic: a common part, a shift of each client's own on a tenth of the
    coordinates, and noise. Attackers know them and the rule, not the randomness of the server.

    --rule and --attack may be given many times, and take path.py:MyRule and path.py:MyAttack.

    Example: outvote stress --rule median --rule 'gas(median)' --attack lie --attack gas-aware
    """
    from outvote.testing.stress import SyntheticGradients, stress

    recipe["num_clients"], recipe["num_byzantine"] = recipe.pop("clients"), recipe.pop("byzantine")
    with usage_errors(ValueError):
        gradients = SyntheticGradients(**recipe)
    rules = [read_rule(text) for text in rule_texts or default_rules(groups)]
    attacks = [_on_gradients(text) for text in attack_texts or default_attacks()]
    with file_bars() as show:
        count = None if show is None else partial(show, "cells")
        table = stress(rules, attacks, gradients, num_servers=servers, on_progress=count)
    if all(cell.failure for cell in table.cells):
        raise WorkFailed(f"nothing could be measured; {failures(table)[0]}")
    limits = {str(rule): rule.max_byzantine(gradients.num_clients) for rule in rules}
    lowered = {rule: limit for rule, limit in limits.items() if limit < gradients.num_byzantine}
    if as_json:
        print_json({**as_data(table, servers), "lowered": lowered})
        return
    short = {} if attack_texts else {GAS_AWARE: "gas-aware"}
    if not rule_texts:
        short |= {text: text.replace(f", num_groups={groups})", ")") for text in table.rules}
    print_stress(table, short, servers)
    if lowered:
        listed = ", ".join(f"{short.get(rule, rule)} {limit}" for rule, limit in lowered.items())
        print_text(f"Rules that assume fewer attackers, as many as they tolerate: {listed}.")
    if not rule_texts:
        print_text(
            f"gas(...) has {plural(groups, 'group')} here; its default of 1000 resists more, and "
            "takes minutes (--groups 1000).\n"
            "fltrust gets the mean of 5 honest clients; rules with state are in round one."
        )
    if not attack_texts:
        left_out = "; ".join(f"{name} is left out: {why}" for name, why in LEFT_OUT.items())
        print_text(
            f"gas-aware is {GAS_AWARE}, fewer tries than its default; it is made for GAS, and "
            f"against other rules a plain attack may do more.\n{left_out}."
        )


def default_rules(num_groups: int) -> list[str]:
    """Name every rule, alone and inside GAS where that is possible, and a rule in each wrapper."""
    from outvote.rules.rule import Wrapper
    from outvote.rules.rule_spec import RULES

    plain = [name for name, rule in RULES.items() if not issubclass(rule, Wrapper)]
    wrappers = [name for name, rule in RULES.items() if issubclass(rule, Wrapper) and name != "gas"]
    return [
        *plain,
        *(f"{wrapper}({INSIDE})" for wrapper in wrappers),
        *(f"gas({n}, num_groups={num_groups})" for n in plain if RULES[n]().traits.can_be_wrapped),
    ]


def default_attacks() -> list[str]:
    """Name every attack that acts on gradients, and both forms of Fang's."""
    from outvote.attacks.attack_spec import ATTACKS

    forms = {"gas-aware": [GAS_AWARE], "fang": ["fang", "fang(target=krum)"]}
    names = [name for name in ATTACKS if name not in LEFT_OUT]
    return [text for name in names for text in forms.get(name, [name])]


def as_data(table: "Stress", num_servers: int) -> dict[str, Any]:
    """Return the table as plain values."""
    safest = table.safest()
    worst = {rule: table.worst(rule) for rule in table.rules}
    return {
        "gradients": {"synthetic": True, **asdict(table.gradients)},
        "num_servers": num_servers,
        "attacks": list(table.attacks),
        "rules": list(table.rules),
        "cells": [asdict(cell) for cell in table.cells],
        "worst": {rule: cell.attack for rule, cell in worst.items() if cell is not None},
        "safest": None if safest is None else safest.rule,
    }


def _on_gradients(text: str) -> "Attack":
    attack = read_attack(text)
    if attack.poisons_data:
        raise click.UsageError(
            f"attack {text!r} cannot be tried here: it changes samples or labels, and no client "
            "trains here."
        )
    return attack


def print_stress(table: "Stress", short: dict[str, str], num_servers: int) -> None:
    """Print errors, worst cases and failures; `short` holds shorter names of rules and attacks."""
    made = table.gradients
    print_text(
        f"Synthetic gradients: {plural(made.num_clients, 'client')}, {made.num_byzantine} of them "
        f"Byzantine, {made.dim:,} coordinates, heterogeneity {made.heterogeneity:g}, "
        f"seed {made.seed}.\n"
        "Distance of the update to the honest mean, relative to its length (0 is perfect); * marks "
        f"the worst attack on a rule.\nMean over {plural(num_servers, 'seed')} of the server."
    )
    labels = {rule: short.get(rule, rule) for rule in table.rules}
    worst = {rule: table.worst(rule) for rule in table.rules}

    def shown(attack: str, rule: str) -> str:
        cell = table.cell(attack, rule)
        return "*" * (cell is worst[rule]) + _error(cell)

    for block in blocks_of(table.attacks, short, max(len(label) for label in labels.values())):
        columns = ["rule", *(NumberColumn(short.get(name, name)) for name in block)]
        rows = [[label, *(shown(name, rule) for name in block)] for rule, label in labels.items()]
        print_table(columns, rows)
    ranked = sorted(
        (cell for cell in worst.values() if cell is not None), key=lambda cell: cell.severity
    )
    print_table(
        ["worst case of", NumberColumn("error"), "under"],
        [[labels[c.rule], _error(c), short.get(c.attack, c.attack)] for c in ranked],
    )
    for line in failures(table):
        print_text(line)
    safest = table.safest()
    if safest is not None:
        print_text(f"Smallest worst case: {labels[safest.rule]} with {_error(safest)}.")


def blocks_of(attacks: Sequence[str], short: dict[str, str], label_width: int) -> list[list[str]]:
    """Share the attacks out among tables that fit the terminal."""
    width = terminal_width()
    blocks: list[list[str]] = [[]]
    used = label_width + GAP
    for attack in attacks:
        wanted = max(len(short.get(attack, attack)), len("*1.2e+05")) + GAP
        if blocks[-1] and used + wanted > width:
            blocks.append([])
            used = label_width + GAP
        blocks[-1].append(attack)
        used += wanted
    return blocks


def _error(cell: "Cell") -> str:
    if cell.error is None:
        return "failed"
    return f"{cell.error:.3f}" if cell.error < 1000 else f"{cell.error:.1e}"


def failures(table: "Stress") -> list[str]:
    """Return each failure in one line; a rule or attack that always fails the same way, once."""
    by_cause: dict[tuple[str, str, str], list[str]] = {}
    for cell in table.cells:
        if cell.failure:
            pair = (cell.attack, cell.rule)
            who, other = pair if cell.failed == "attack" else pair[::-1]
            cause = (cell.failed, who, one_line(cell.failure))
            by_cause.setdefault(cause, []).append(other)
    lines = []
    for (failed, who, why), others in by_cause.items():
        is_always = len(others) == len(table.rules if failed == "attack" else table.attacks)
        lines.append(f"{who} failed{'' if is_always else ' with ' + ', '.join(others)}: {why}")
    return lines
