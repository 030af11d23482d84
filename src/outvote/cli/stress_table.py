"""The table of `outvote stress`, in blocks that fit the terminal."""

import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from outvote.cli.output import NO_TERMINAL_WIDTH, Column, one_line, print_table

if TYPE_CHECKING:
    from outvote.testing.stress import Cell, Stress

GAP = 3


def print_stress(table: "Stress", short: dict[str, str], num_servers: int) -> None:
    """Print errors, worst cases and failures; `short` holds shorter names of rules and attacks."""
    made = table.gradients
    click.echo(
        f"Made-up gradients: {made.num_clients} clients, {made.num_byzantine} of them Byzantine, "
        f"{made.dim:,} coordinates, heterogeneity {made.heterogeneity:g}, seed {made.seed}.\n"
        "Distance of the update to the honest mean, relative to its length (0 is perfect); * marks "
        f"the worst attack on a rule.\nMean over {num_servers} stream of the server's randomness."
    )
    labels = {rule: short.get(rule, rule) for rule in table.rules}
    worst = {rule: table.worst(rule) for rule in table.rules}
    for block in blocks_of(table.attacks, short, max(len(label) for label in labels.values())):
        columns = [Column("rule"), *(Column(short.get(name, name), True) for name in block)]
        rows = [
            [label, *(_cell(table.cell(name, rule), worst[rule]) for name in block)]
            for rule, label in labels.items()
        ]
        print_table(columns, rows)
    ranked = sorted((cell for cell in worst.values() if cell is not None), key=_severity)
    print_table(
        [Column("worst case of"), Column("error", True), Column("under")],
        [[labels[c.rule], _error(c), short.get(c.attack, c.attack)] for c in ranked],
    )
    for line in failures(table):
        click.echo(line)
    safest = table.safest()
    if safest is not None:
        click.echo(f"Smallest worst case: {labels[safest.rule]} with {_error(safest)}.")


def blocks_of(attacks: Sequence[str], short: dict[str, str], label_width: int) -> list[list[str]]:
    """Deal the attacks out to tables that fit the terminal."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else NO_TERMINAL_WIDTH
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


def _cell(cell: "Cell", worst: "Cell | None") -> str:
    mark = "*" if worst is not None and cell.attack == worst.attack else ""
    return mark + _error(cell)


def _error(cell: "Cell") -> str:
    if cell.error is None:
        return "failed"
    return f"{cell.error:.3f}" if cell.error < 1000 else f"{cell.error:.1e}"


def _severity(cell: "Cell") -> float:
    return cell.severity


def failures(table: "Stress") -> list[str]:
    """Tell each failure in one line; a rule or an attack that always fails the same way, once."""
    by_cause: dict[tuple[str, str], list[Cell]] = {}
    for cell in table.cells:
        if cell.failure:
            by_cause.setdefault((cell.failed, cell.failure), []).append(cell)
    return [
        f"{_who(failed, cells, table)} failed: {one_line(why)}"
        for (failed, why), cells in by_cause.items()
    ]


def _who(failed: str, cells: "list[Cell]", table: "Stress") -> str:
    rules, attacks = (
        list(dict.fromkeys(getattr(cell, key) for cell in cells)) for key in ("rule", "attack")
    )
    if failed == "attack":
        who, others, word, are_all = attacks, rules, "against", len(rules) == len(table.rules)
    else:
        who, others, word, are_all = rules, attacks, "under", len(attacks) == len(table.attacks)
    return ", ".join(who) + ("" if are_all else f" {word} {', '.join(others)}")
