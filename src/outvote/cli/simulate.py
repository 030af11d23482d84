"""What `run` and `demo` share: playing a plan, and the table at the end."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outvote.cli.output import Column, print_json, print_table
from outvote.cli.progress import shown_progress
from outvote.cli.signals import listening
from outvote.cli.verb import WorkFailed

if TYPE_CHECKING:
    import torch

    from outvote.experiment.job import Ended
    from outvote.experiment.reading import Plan

COLUMNS = ("best", "final", "last_ten", "kept_byzantine")


def play(plan: "Plan", output: Path, device: str, checkpoint_every: float) -> "Played":
    """Play all runs; bars, signals and the disk are looked after."""
    from outvote.experiment.runner import Runner
    from outvote.results.faults import StoreError

    chosen = find_device(device)
    check_data(plan)
    with listening() as asked, shown_progress() as listener:
        runner = Runner(
            output=output,
            device=chosen,
            checkpoint_every=checkpoint_every,
            listener=listener,
            should_stop=asked,
        )
        try:
            runner.check(plan)
        except ValueError as error:
            raise click.UsageError(str(error)) from error
        try:
            ends = runner.play(plan)
        except StoreError as error:
            raise WorkFailed(str(error)) from error
    return Played(ends, asked.exit_code if asked() else 0)


def check_data(plan: "Plan") -> None:
    """Refuse to begin if a dataset is not there."""
    from outvote.data.faults import MissingDataError
    from outvote.data.loader import find_entry, locate

    for name in dict.fromkeys(spec.data.name for spec in plan.specs):
        try:
            locate(find_entry(name))
        except MissingDataError as error:
            raise click.UsageError(str(error)) from error


def find_device(name: str) -> "torch.device":
    """Return a device; "auto" is a GPU if there is one."""
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise click.UsageError(f"unknown device {name!r}; take cpu, cuda or cuda:0.") from error
    if device.type not in ("cpu", "cuda"):
        raise click.UsageError(f"device must be cpu or cuda, got {name!r}.")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise click.UsageError(f"device {name!r}: torch finds no CUDA device; take cpu.")
    return device


class Played:
    """What became of all runs."""

    def __init__(self, ends: Sequence["Ended"], signal_code: int) -> None:
        """Read the results of those that are over or half done."""
        from outvote.results.summary import summarise

        self.ends, self.signal_code = ends, signal_code
        self.summaries = [summarise(end.job.folder.rounds()) for end in ends]

    @property
    def exit_code(self) -> int:
        """0, 1 if a run failed or is busy elsewhere, or 128 + the signal that stopped it."""
        is_bad = any(end.outcome in ("failed", "busy") for end in self.ends)
        return self.signal_code or int(is_bad)

    def as_json(self) -> list[dict[str, Any]]:
        """Return one entry per run."""
        return [
            {
                "rule": end.job.spec.rule,
                "attack": end.job.spec.attack,
                "seed": end.job.spec.seed,
                "outcome": end.outcome,
                "reason": end.reason,
                "folder": str(end.job.folder.path),
                **asdict(summary),
            }
            for end, summary in zip(self.ends, self.summaries, strict=True)
        ]

    def print(self, as_json: bool) -> None:
        """Print one row per run, with the settings that differ between them."""
        if as_json:
            print_json(self.as_json())
            return
        differing = _differing([_flat(end.job.spec) for end in self.ends])
        titles = ["rule", "attack", *differing]
        columns = [Column(title) for title in titles]
        columns += [
            Column(title, is_number=True) for title in ("best", "final", "last 10", "liars kept")
        ]
        rows = []
        for end, summary in zip(self.ends, self.summaries, strict=True):
            flat = _flat(end.job.spec)
            numbers = [getattr(summary, name) for name in COLUMNS]
            state = "" if end.outcome == "finished" else end.outcome
            cells = [str(flat[key]) for key in titles] + [percent(value) for value in numbers]
            rows.append([*cells, state])
        if all(row[-1] == "" for row in rows):
            rows = [row[:-1] for row in rows]
        else:
            columns.append(Column("outcome"))
        print_table(columns, rows)
        click.echo("Accuracies in percent; liars kept: the share of them with a say in the update.")

    def how_to_go_on(self, command: str) -> None:
        """Say what to do if it was stopped."""
        if self.signal_code:
            click.echo(f"stopped and saved; to go on: {command}", err=True)


def percent(value: float | None) -> str:
    """Return a share as percent."""
    return "-" if value is None else f"{100 * value:.1f}"


def _flat(spec: Any) -> dict[str, Any]:
    import msgspec

    flat: dict[str, Any] = {}
    for key, value in msgspec.to_builtins(spec).items():
        if isinstance(value, dict):
            flat |= {f"{key}.{name}": each for name, each in value.items()}
        else:
            flat[key] = value
    return flat


def _differing(flats: Sequence[dict[str, Any]]) -> list[str]:
    keys = [key for key in flats[0] if key not in ("rule", "attack")]
    return [key for key in keys if len({str(flat[key]) for flat in flats}) > 1]
