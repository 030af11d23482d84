"""What rows and columns are called."""

from typing import Any

from outvote.results.labels import outline, plain

SYMBOLS = {
    "data.beta": "β",
    "federation.byzantine": "f",
    "federation.num_clients": "n",
    "federation.sampled": "sampled",
    "federation.assumed_byzantine": "δ",
    "rule.num_groups": "p",
}
BY_ITSELF = ("attack", "rule", "data.name", "data.partition", "model.name", "precision")
"""Settings whose values say what they are."""


def title_of(key: str, value: Any) -> str:
    """Return the heading of a column.

    >>> title_of("data.beta", 0.3), title_of("attack", "lie"), title_of("rule.num_groups", 10000)
    ('β = 0.3', 'lie', 'p = 10,000')
    """
    if value is None:
        return f"no {SYMBOLS.get(key, key)}"
    if key in BY_ITSELF or (key == "federation.assumed_byzantine" and value == "oracle"):
        return plain(value)
    shown = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else plain(value)
    return f"{SYMBOLS.get(key, key)} = {shown}"


def family(row: str) -> str:
    """Return the rule inside all wrappers: rows that share it are compared with each other.

    >>> family("gas(bucketing(rfa))"), family("gas(krum, num_groups=10)"), family("median")
    ('rfa', 'krum', 'median')
    """
    found = outline(row)
    while found.inside:
        found = found.inside[0]
    return found.name
