"""Tables of settings: laid over each other, written as "a.b", multiplied where they hold lists."""

import itertools
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

# A list is a grid, but here it is one value.
LISTS = ("training.schedule",)

MOST_RUNS = 20_000
"""Of one grid."""

Table = Mapping[str, Any]


def merged(base: Table, over: Table) -> dict[str, Any]:
    """Return a table with the values of another put over it, table by table."""
    result = dict(base)
    for key, value in over.items():
        old = result.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        result[key] = merged(old, value) if both else value  # type: ignore[arg-type]
    return result


def nested(key: str, value: Any) -> dict[str, Any]:
    """Return {"a": {"b": value}} for "a.b"."""
    for word in reversed(key.split(".")):
        value = {word: value}
    assert isinstance(value, dict)
    return value


def flat(table: Table, above: str = "") -> dict[str, Any]:
    """Return {"a.b": value} for {"a": {"b": value}}."""
    result: dict[str, Any] = {}
    for word, value in table.items():
        if isinstance(value, Mapping):
            result |= flat(value, f"{above}{word}.")
        else:
            result[f"{above}{word}"] = value
    return result


def axes(table: Table) -> dict[str, list[Any]]:
    """Return the keys that hold lists, and these."""
    return {
        key: value
        for key, value in flat(table).items()
        if isinstance(value, list) and key not in LISTS
    }


def expand(table: Table) -> Iterator[dict[str, Any]]:
    """Yield one table for each way to pick a value from every list; the last varies fastest."""
    found = axes(table)
    for key, values in found.items():
        if not values:
            raise ValueError(f"{key} is an empty list; give it a value.")
    number = prod(len(values) for values in found.values())
    if number > MOST_RUNS:
        raise ValueError(
            f"these lists make {number:,} runs, at most {MOST_RUNS:,} are allowed; make several "
            "files of them."
        )
    for picked in itertools.product(*found.values()):
        result = dict(table)
        for key, value in zip(found, picked, strict=True):
            result = merged(result, nested(key, value))
        yield result
