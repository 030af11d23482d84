"""Output: tables for people, JSON for programs, whole files; control characters are escaped."""

import json
import math
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any, TypeVar

import click

from outvote.markup import clean

NO_TERMINAL_WIDTH = 160
WIDEST_TEXT = 100
"""Of sentences on a terminal, in characters."""
NARROWEST_COLUMN = 10
"""Words of a table that are longer may be broken on a narrow terminal; shorter ones are not."""
UNKNOWN = "–"
FC = TypeVar("FC", bound=Callable[..., Any] | click.Command)
"""What click decorates: a function, or the command made of it."""


class NumberColumn(str):
    """The title of a column of numbers, which is aligned right; other titles are those of text."""

    __slots__ = ()


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> None:
    """Print a table; what does not fit is folded, never cut off.

    On a terminal that is too narrow for the columns, every row is a list of its fields instead.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if title:
        print_text(f"\n{clean(title)}")
    if _least_width(columns, rows) > terminal_width():
        _print_fields(columns, rows)
        return
    table = Table(box=box.SIMPLE_HEAD)
    for column in columns:
        justify = "right" if isinstance(column, NumberColumn) else "left"
        table.add_column(column, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*(Text(clean(cell)) for cell in row))
    console = Console(width=terminal_width(), highlight=False)
    with console.capture() as captured:
        console.print(table)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def is_terminal() -> bool:
    """Return whether people read the output as it is printed."""
    return sys.stdout.isatty()


def terminal_width() -> int:
    """Return how many characters a line has; without a terminal, as many as a wide one."""
    return shutil.get_terminal_size().columns if is_terminal() else NO_TERMINAL_WIDTH


def print_text(text: str) -> None:
    """Print sentences, each line of them wrapped at words to fit a terminal; else as they are."""
    if is_terminal():
        width = min(terminal_width(), WIDEST_TEXT)
        text = "\n".join(_wrapped(line, width) for line in text.split("\n"))
    click.echo(text)


def _wrapped(line: str, width: int) -> str:
    indent = line[: len(line) - len(line.lstrip())] + "  " * line.startswith(" ")
    return fill(
        line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _least_width(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Return the width of a table in which no short word is broken."""
    words = [
        max((len(word) for text in texts for word in text.split()), default=0)
        for texts in zip(columns, *rows, strict=True)
    ]
    return sum(min(word, NARROWEST_COLUMN) + 2 for word in words)


def _print_fields(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print each row as a line for each field, all but the first indented."""
    width = terminal_width()
    for row in rows:
        click.echo("")
        named = [(title, text) for title, text in zip(columns, row, strict=True) if text]
        for number, (title, value) in enumerate(named):
            indent, text = "  " * (number > 0), f"{title}: {value}" if title else value
            line = fill(
                clean(" ".join(text.split())),
                width,
                initial_indent=indent,
                subsequent_indent=f"{indent}  ",
                break_on_hyphens=False,
            )
            click.echo(line)
    click.echo("")


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
        print_text(note)


def print_message(text: str) -> None:
    """Print one line on stderr."""
    click.echo(one_line(text), err=True)


def print_error(text: str, code: int, *, as_json: bool) -> None:
    """Print a failure as one line on stderr; for programs, as an object with the exit code."""
    if as_json:
        click.echo(json.dumps({"error": one_line(text), "code": code}), err=True)
    else:
        print_message(f"error: {text}")


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


def write_or_print(text: str, path: Path | None) -> None:
    """Write a text to a file; without one, print it."""
    if path is None:
        click.echo(text, nl=False)
    else:
        write_file(path, text.encode())


def print_written(path: Path, as_json: bool, what: str = "", **facts: Any) -> None:
    """Print that a file was written, what is in it, and how large it is."""
    num_bytes = path.stat().st_size
    if as_json:
        print_json({"path": str(path), **facts, "bytes": num_bytes})
    else:
        print_text(f"{path}: {what}{num_bytes:,} bytes.")


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
