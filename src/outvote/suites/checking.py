"""Mistakes in the file of a suite, each told in one line."""

from collections.abc import Mapping
from dataclasses import fields
from importlib.resources import files
from typing import Any

from outvote.errors import closest
from outvote.grids import Table
from outvote.suites.paper import Wanted


def check_keys(table: Table, known: tuple[str, ...], above: str) -> None:
    """Refuse a key that means nothing."""
    for key in table:
        if key not in known:
            raise ValueError(f"unknown key {above + key!r}; {closest(key, known)}")


def as_table(what: str, value: Any) -> Table:
    """Return a table; what is none is refused."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{what} is a table, got {value!r}; write [{what}].")  # noqa: TRY004
    return value


def check_texts(part: str, settings: Table) -> None:
    """Refuse a part that does not say which rules and attacks it has."""
    for key in ("rule", "attack"):
        if key not in settings:
            raise ValueError(f"part {part!r} names no {key}; add {key} = ... to its settings.")
        found = settings[key]
        for each in found if isinstance(found, list) else [found]:
            if not isinstance(each, str):
                raise ValueError(  # noqa: TRY004
                    f"part {part!r}: {key} is a text or a list of texts, got {each!r}."
                )


def read_wanted(value: Any) -> Wanted | None:
    """Return where the paper's numbers are; None if that is not said."""
    if value is None:
        return None
    table = as_table("part.paper", value)
    check_keys(table, tuple(field.name for field in fields(Wanted)), "part.paper.")
    for key in ("file", "column"):
        if key not in table:
            raise ValueError(f"part.paper needs {key!r}, got {dict(table)}.")
    shipped = (files("outvote.suites") / "paper").iterdir()
    known = sorted(each.name.removesuffix(".csv") for each in shipped)
    if table["file"] not in known:
        raise ValueError(
            f"part.paper.file: unknown value {table['file']!r}; "
            f"{closest(str(table['file']), known)}"
        )
    return Wanted(**table)
