"""What the settings of runs differ in."""

from collections.abc import Iterable, Sequence
from typing import Any

from outvote.grids import flat
from outvote.report.naming import title_of
from outvote.results.run import Result

NO_SETTINGS = ("suite", "seed", "rule", "attack", "diagnostics")
"""Told otherwise, or without influence on a result."""


def differing(results: Iterable[Result], ignored: Iterable[str] = ()) -> dict[str, list[Any]]:
    """Return the settings that the runs differ in, with their values in order."""
    leave = {*NO_SETTINGS, *ignored}
    tables = [flat(each.config) for each in results]
    keys = sorted({key for table in tables for key in table} - leave)
    found = {key: ordered(_value(table, key) for table in tables) for key in keys}
    return {key: values for key, values in found.items() if len(values) > 1}


def split(results: Sequence[Result], keys: Sequence[str]) -> list[tuple[str, list[Result]]]:
    """Divide runs by some settings; each group comes with a text that says which it is."""
    groups: dict[tuple[Any, ...], list[Result]] = {}
    for each in results:
        table = flat(each.config)
        groups.setdefault(tuple(_value(table, key) for key in keys), []).append(each)
    return [
        (", ".join(map(title_of, keys, values)), groups[values])
        for values in sorted(groups, key=lambda values: [order(value) for value in values])
    ]


def ordered(values: Iterable[Any]) -> list[Any]:
    """Return each value once: numbers in order, then words."""
    return sorted(dict.fromkeys(values), key=order)


def order(value: Any) -> tuple[int, float, str]:
    """Return what values of any kind can be sorted by."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return 0, float(value), ""
    return 1, 0.0, str(value)


def _value(table: dict[str, Any], key: str) -> Any:
    """Return a setting; one that an older run has not got is none."""
    value = table.get(key, "none")
    return str(value) if isinstance(value, list) else value
