"""`outvote aggregate`: a folder of client updates in, one robust update or model out."""

import json
from pathlib import Path
from typing import Any

import click

from outvote.cli.output import NumberColumn, number, one_line, print_json, print_table
from outvote.cli.progress import file_bars
from outvote.cli.verb import Verb, WorkFailed, read_rule

TITLES = ("client", "status", "score", "z", "share", "norm", "cosine", "reason")
NUMBERS = ("score", "z", "share", "norm", "cosine")


@click.command("aggregate", cls=Verb)
@click.argument("updates", nargs=-1, required=True)
@click.option("--rule", "rule_text", required=True, help="As in 'gas(bulyan)', or path.py:MyRule.")
@click.option(
    "--num-byzantine", type=click.IntRange(min=0), help="How many clients may be Byzantine."
)
@click.option(
    "--byzantine-fraction", type=float, help="If the number is unknown: which share, below 0.5."
)
@click.option(
    "--when-too-many",
    type=click.Choice(["raise", "lower"]),
    default="raise",
    help="If the rule does not tolerate so many: stop, or lower the number.",
)
@click.option(
    "--sample-counts",
    type=click.Path(path_type=Path),
    help="A JSON file, client -> number of samples: weigh by it, at most 3 times the median.",
)
@click.option("--seed", type=click.IntRange(min=0), help="Of random rules; fresh by default.")
@click.option(
    "--base",
    type=click.Path(path_type=Path),
    help="The global model: the files are then whole models, and so is the output.",
)
@click.option("--max-memory", default="2GB", show_default=True, help="How much memory may be used.")
@click.option(
    "--audit",
    "audit_folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Add the verdict to the audit log in this folder, as a round.",
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True, help="The file to write."
)
def command(
    updates: tuple[str, ...],
    rule_text: str,
    as_json: bool,
    sample_counts: Path | None,
    audit_folder: Path | None,
    **options: Any,
) -> None:
    """Aggregate the safetensors files of many clients into one.

    UPDATES are files, folders or a quoted pattern. Without --base the files are updates (gradients
    or differences), and the output is one too. With --base they are whole models: updates are
    their differences to the base, and the output is the new model.

    A file that is unreadable, not finite, or unlike the base (or unlike most files) is named and
    left out, which does not lower --num-byzantine; if the rule does not tolerate so many among the
    other files, nothing is written. Files are read some numbers at a time: they need not fit into
    memory. Integer tensors are not aggregated: they become the maximum over the kept clients. The
    output is written in full or not at all. z is how far a score is above the median, in standard
    deviations.

    Example: outvote aggregate 'updates/*.safetensors' --rule 'gas(bulyan)' --num-byzantine 2
    -o update.safetensors
    """
    rule = read_rule(rule_text)
    options["sample_counts"] = None if sample_counts is None else _read_counts(sample_counts)
    from outvote.files.aggregate_files import aggregate_clients
    from outvote.files.client_files import FilesError

    try:
        with file_bars() as on_progress:
            found = aggregate_clients(
                updates, rule=rule, with_update=False, on_progress=on_progress, **options
            )
    except (ValueError, TypeError, FilesError) as error:  # There must be other files.
        raise click.UsageError(_as_options(str(error))) from error
    verdict = found.verdict
    facts = {
        "rule": str(rule),
        "output": str(options["output"]),
        "num_clients": len(found.clients),
        "num_rejected": len(verdict.rejected),
        "num_byzantine_assumed": options["num_byzantine"],
        "byzantine_fraction": options["byzantine_fraction"],
        "num_byzantine": verdict.num_byzantine,
        "base_num_byzantine": verdict.base_num_byzantine,
        "num_groups": verdict.num_groups,
        "seed": verdict.seed,
        "notes": [*verdict.notes, *_notes(found.counters, found.clients)],
        "clients": found.clients,
    }
    if audit_folder is not None:
        from outvote.files.audit import add_round
        from outvote.results.disk import BusyError

        try:
            add_round(audit_folder, rule, found, options)
        except BusyError as error:
            raise WorkFailed(f"the output is written, the audit log is not: {error}") from error
    if as_json:
        print_json(facts)
    else:
        _print(facts)


def _read_counts(path: Path) -> dict[str, float]:
    """Read how many samples each client has."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0]
        raise click.UsageError(f"--sample-counts: cannot read {path}: {reason}") from error
    numbers = found.values() if isinstance(found, dict) else [None]
    if not all(isinstance(each, int | float) and not isinstance(each, bool) for each in numbers):
        raise click.UsageError(
            f'--sample-counts must be a JSON object such as {{"client-0": 120}}, got {path} with '
            "something else"
        )
    return dict(found)


def _as_options(message: str) -> str:
    """Name the options of the command line instead of the arguments of the library."""
    if message.startswith(("output ", "base ", "base:")):
        return f"--{message}"
    for key in ("num_byzantine", "byzantine_fraction", "sample_counts"):
        message = message.replace(f"{key}=", key).replace(key, f"--{key.replace('_', '-')}")
    message = message.replace("when_too_many='lower'", "--when-too-many lower")
    return message.replace("pass --when", "add --when").replace("max_memory", "--max-memory")


def _notes(counters: list[str], clients: list[dict[str, Any]]) -> list[str]:
    notes = []
    if counters:
        listed = ", ".join(counters[:5]) + (", ..." if len(counters) > 5 else "")
        notes.append(f"the maximum over the kept clients, as these are integers: {listed}")
    if any(client["status"] == "used" for client in clients):
        notes.append("the rule does not report who was kept")
    return notes


def _print(facts: dict[str, Any]) -> None:
    cells = [
        [number(client[title]) if title in NUMBERS else client[title] for title in TITLES]
        for client in facts["clients"]
    ]
    print_table([NumberColumn(title) if title in NUMBERS else title for title in TITLES], cells)
    num_usable = facts["num_clients"] - facts["num_rejected"]
    parts = [
        f"{facts['rule']}: assumed {facts['num_byzantine']} Byzantine of {num_usable} clients",
        f"{facts['num_rejected']} rejected",
        *([] if facts["num_groups"] is None else [f"groups {facts['num_groups']}"]),
        f"seed {facts['seed']}",
        *facts["notes"],
    ]
    click.echo(one_line("; ".join(parts)))
    click.echo(one_line(f"wrote {facts['output']}"))
