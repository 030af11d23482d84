"""Bars for downloads, on stderr, and only if somebody is looking."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from outvote.cli.output import one_line

Show = Callable[[str, int, int | None], None]
Say = Callable[[str], None]


@contextmanager
def download_bars() -> Iterator[tuple[Show, Say]]:
    """Show a bar and what is tried on stderr, if that is a terminal."""
    if not sys.stderr.isatty():
        yield (lambda *_: None), (lambda *_: None)
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    console = Console(stderr=True, highlight=False, markup=False)
    with Progress(
        "{task.description}", BarColumn(), DownloadColumn(), TimeRemainingColumn(), console=console
    ) as bars:
        tasks: dict[str, Any] = {}

        def show(name: str, done: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name)
            bars.update(tasks[name], completed=done, total=total)

        yield show, lambda text: console.print(one_line(text))
