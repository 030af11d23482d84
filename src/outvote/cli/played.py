"""What became of runs: the table at the end, and how to go on."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from outvote.cli.output import Column, print_json, print_table

if TYPE_CHECKING:
    from outvote.experiment.job import Ended

COLUMNS = ("best", "final", "last_ten", "kept_byzantine")


class Played:
    """What became of all runs."""

    def __init__(
        self, ends: Sequence["Ended"], signal_code: int, *, is_time_up: bool = False
    ) -> None:
        """Read the results of those that are over or half done."""
        from outvote.results.series import series_of
        from outvote.results.summary import summary_of

        self.ends, self.signal_code, self.is_time_up = ends, signal_code, is_time_up
        self.summaries = [
            summary_of(series_of(end.job.folder.rounds()), attack=end.job.spec.attack)
            for end in ends
        ]

    @property
    def exit_code(self) -> int:
        """0, 1 if a run failed or is not over, or 128 + the signal that stopped it.

        Runs that are left because the time is up are what was asked for.
        """
        bad = ("failed", "busy") if self.is_time_up else ("failed", "busy", "interrupted")
        is_bad = any(end.outcome in bad for end in self.ends)
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
        """Say what to do if it was stopped, or if another process has some of the runs."""
        busy = [end for end in self.ends if end.outcome == "busy"]
        if busy:
            click.echo(
                f"another process works on {len(busy)} of the {len(self.ends)} runs, such as "
                f"{busy[0].job.name}; when it has ended: {command}",
                err=True,
            )
        left = [end for end in self.ends if end.outcome == "interrupted"]
        if self.signal_code:
            click.echo(f"stopped and saved; to go on: {command}", err=True)
        elif self.is_time_up and left:
            num_over = sum(end.outcome in ("finished", "diverged") for end in self.ends)
            click.echo(
                f"time is up, {num_over} of {len(self.ends)} runs are over, the others are saved; "
                f"to go on: {command}",
                err=True,
            )


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
