"""`outvote aggregate`: a folder of client updates in, one robust update or model out."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outvote.cli.client_files import check_base, check_output, find_files
from outvote.cli.output import Column, number, one_line, print_json, print_table
from outvote.cli.verb import Verb, read_rule

if TYPE_CHECKING:
    from outvote.cli.vote import Told
    from outvote.rules.rule import Rule

TITLES = ("client", "status", "score", "share", "norm", "cosine", "reason")
NUMBERS = ("score", "share", "norm", "cosine")


@click.command("aggregate", cls=Verb)
@click.argument("updates", nargs=-1, required=True)
@click.option("--rule", "rule_text", required=True, help="As in 'gas(bulyan)', or path.py:MyRule.")
@click.option("--num-byzantine", type=click.IntRange(min=0), help="How many clients may lie.")
@click.option(
    "--byzantine-fraction", type=float, help="If the number is unknown: which share, below 0.5."
)
@click.option(
    "--when-too-many",
    type=click.Choice(["raise", "lower"]),
    default="raise",
    show_default=True,
    help="If the rule does not tolerate so many: stop, or lower the number.",
)
@click.option("--seed", type=click.IntRange(min=0), help="For rules that draw; fresh by default.")
@click.option(
    "--base",
    type=click.Path(path_type=Path),
    help="The global model: the files are then whole models, and so is the output.",
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True, help="The file to write."
)
def command(
    updates: tuple[str, ...],
    rule_text: str,
    base: Path | None,
    output: Path,
    as_json: bool,
    **told: Any,
) -> None:
    """Aggregate the safetensors files of many clients into one.

    UPDATES are files, folders or a quoted pattern. Without --base the files are updates (gradients
    or differences), and the output is one too. With --base they are whole models: what counts is
    their difference to the base, and the output is the new model.

    A file that is unreadable, not finite, or unlike the base (or unlike most files) is named,
    counted as one Byzantine client, and left out. Integer tensors are not voted on: they become
    the maximum over the kept clients. The output is written in full or not at all.

    Example: outvote aggregate 'updates/*.safetensors' --rule 'gas(bulyan)' --num-byzantine 2
    -o update.safetensors
    """
    paths = find_files(updates)
    check_base(base, paths)
    check_output(output, paths if base is None else [*paths, base])
    rule = read_rule(rule_text)
    from outvote.cli.vote import Told

    facts = aggregate(rule, paths, base, output, Told(**told))
    if as_json:
        print_json(facts)
    else:
        _print(facts)


def aggregate(
    rule: "Rule", paths: list[Path], base: Path | None, output: Path, told: "Told"
) -> dict[str, Any]:
    """Read the files, let the rule judge, write the result; return what there is to tell."""
    from outvote.cli.collect import collect
    from outvote.cli.vote import judgements, new_model, num_tolerated, vote
    from outvote.cli.whole_file import write_tensors

    tolerated = num_tolerated(rule, len(paths), told)
    clients, start = collect(paths, base)
    verdict = vote(rule, clients, tolerated, told.seed)
    model = new_model(verdict, clients, start)
    write_tensors(output, model, {"format": "pt"} if start is None else start.metadata)
    rows = judgements(verdict, clients)
    counters = [name for name in model if name not in verdict.update]
    num_rejected = sum(bool(client.reason) for client in clients)
    return {
        "rule": str(rule),
        "output": str(output),
        "num_clients": len(clients),
        "num_rejected": num_rejected,
        "num_byzantine_told": told.num_byzantine_assumed(len(clients)),
        "num_byzantine": tolerated,
        "num_byzantine_left": max(0, tolerated - num_rejected),
        "base_num_byzantine": verdict.base_num_byzantine,
        "num_groups": verdict.num_groups,
        "seed": verdict.seed,
        "notes": [*verdict.notes, *_notes(counters, rows)],
        "clients": rows,
    }


def _notes(counters: list[str], rows: list[dict[str, Any]]) -> list[str]:
    notes = []
    if counters:
        listed = ", ".join(counters[:5]) + (", ..." if len(counters) > 5 else "")
        notes.append(
            "not voted on but the maximum over the kept clients, as these are integers: " + listed
        )
    if any(row["status"] == "used" for row in rows):
        notes.append("the rule does not tell shares")
    return notes


def _print(facts: dict[str, Any]) -> None:
    cells = [
        [number(row[title]) if title in NUMBERS else row[title] for title in TITLES]
        for row in facts["clients"]
    ]
    print_table([Column(title, title in NUMBERS) for title in TITLES], cells)
    told = facts["num_byzantine_told"]
    f = f"f told {'nothing' if told is None else told}, used {facts['num_byzantine']}"
    parts = [
        f"{facts['rule']}: {f} of {facts['num_clients']}",
        f"{facts['num_rejected']} rejected, {facts['num_byzantine_left']} expected among the rest",
        *([] if facts["num_groups"] is None else [f"groups {facts['num_groups']}"]),
        f"seed {facts['seed']}",
        *facts["notes"],
    ]
    click.echo(one_line("; ".join(parts)))
    click.echo(one_line(f"wrote {facts['output']}"))
