"""Output: tables for people, JSON for programs, whole files; control characters are escaped."""

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from outvote.markup import clean

NO_TERMINAL_WIDTH = 160
UNKNOWN = "–"
FC = TypeVar("FC", bound=Callable[..., Any] | click.Command)
"""What click decorates: a function, or the command made of it."""


class NumberColumn(str):
    """The title of a column of numbers, which is aligned right; other titles are those of text."""

    __slots__ = ()


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> None:
    """Print a table; what does not fit is folded, never cut off."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if title:
        click.echo(f"\n{clean(title)}")
    table = Table(box=box.SIMPLE_HEAD)
    for column in columns:
        justify = "right" if isinstance(column, NumberColumn) else "left"
        table.add_column(column, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*(Text(clean(cell)) for cell in row))
    console = Console(width=None if sys.stdout.isatty() else NO_TERMINAL_WIDTH, highlight=False)
    with console.capture() as captured:
        console.print(table)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def print_listing(
    as_json: bool,
    data: object,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    note: str = "",
) -> None:
    """Print data as JSON; or else a table of it, and a note below."""
    if as_json:
        print_json(data)
        return
    print_table(columns, rows)
    if note:
        click.echo(note)


def print_message(text: str) -> None:
    """Print one line on stderr."""
    click.echo(one_line(text), err=True)


def print_json(data: object) -> None:
    """Print valid JSON: numbers that are not finite become null."""
    click.echo(json_text(data))


def json_text(data: object) -> str:
    """Return valid JSON: numbers that are not finite become null."""
    return json.dumps(_plain(data), indent=2, allow_nan=False)


def number(value: float | None, digits: int = 4) -> str:
    """Return a number for a table; "–" where there is none."""
    return UNKNOWN if value is None or not math.isfinite(value) else f"{value:.{digits}g}"


def percent(value: float | None) -> str:
    """Return a share as percent; "–" where there is none."""
    return UNKNOWN if value is None else f"{100 * value:.1f}"


def file_option(help_text: str, **more: Any) -> Callable[[FC], FC]:
    """Return the option of a verb that writes a file."""
    kind = click.Path(path_type=Path, dir_okay=False)
    return click.option("--output", "-o", type=kind, help=help_text, **more)


def write_file(path: Path, content: bytes) -> None:
    """Write a file whole or not at all; on failure what was there stays."""
    from outvote.results.disk import write_whole

    write_whole(path, content, stays="what was there stays")


def one_line(text: str) -> str:
    """Put a message on one line."""
    return clean(" ".join(text.split()))


def _plain(data: object) -> object:
    if isinstance(data, Mapping):
        return {str(key): _plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(value) for value in data]
    if isinstance(data, float) and not math.isfinite(data):
        return None
    return data
