"""Output: tables for people, JSON for programs, whole files; control characters are escaped."""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

NO_TERMINAL_WIDTH = 160


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; text is aligned left, numbers right."""

    title: str
    is_number: bool = False


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[str]], title: str = "") -> None:
    """Print a table; what does not fit is folded, never cut off."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if title:
        click.echo(f"\n{clean(title)}")
    table = Table(box=box.SIMPLE_HEAD)
    for column in columns:
        justify = "right" if column.is_number else "left"
        table.add_column(column.title, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*(Text(clean(cell)) for cell in row))
    console = Console(width=None if sys.stdout.isatty() else NO_TERMINAL_WIDTH, highlight=False)
    with console.capture() as captured:
        console.print(table)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def print_json(data: object) -> None:
    """Print valid JSON: numbers that are not finite become null."""
    click.echo(json_text(data))


def json_text(data: object) -> str:
    """Return valid JSON: numbers that are not finite become null."""
    return json.dumps(_plain(data), indent=2, allow_nan=False)


def number(value: float | None, digits: int = 4) -> str:
    """Return a number for a table; "-" where there is none."""
    return "-" if value is None or not math.isfinite(value) else f"{value:.{digits}g}"


def percent(value: float | None) -> str:
    """Return a share as percent; "-" where there is none."""
    return "-" if value is None else f"{100 * value:.1f}"


def write_file(path: Path, content: bytes) -> None:
    """Write a file whole or not at all; on failure what was there stays."""
    from outvote.results.disk import write_whole

    write_whole(path, content, stays="what was there stays")


def clean(text: str) -> str:
    """Escape control characters, which a file name may hold."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


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
