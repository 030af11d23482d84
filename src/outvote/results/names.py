"""What rules and attacks are called: no more parameters than are needed to tell them apart."""

from collections.abc import Iterable, Sequence
from typing import Any

from outvote.results.labels import label, parameters


def names_of(texts: Iterable[str], ignored: Sequence[str] = ()) -> dict[str, str]:
    """Return a short name of each rule or attack; equal names mean equal but for `ignored`.

    >>> names_of(["gas(krum, num_groups=10)", "gas(krum, num_groups=20)", "dnc(num_iterations=2)"])
    {'gas(krum, num_groups=10)': 'gas(krum, num_groups=10)', \
'gas(krum, num_groups=20)': 'gas(krum, num_groups=20)', 'dnc(num_iterations=2)': 'dnc'}
    """
    alike: dict[str, list[str]] = {}
    for text in dict.fromkeys(texts):
        alike.setdefault(label(text), []).append(text)
    result = {}
    for short, group in alike.items():
        keys = _differing(group, ignored)
        names = {text: named(short, text, keys) for text in group}
        are_told_apart = len(set(names.values())) == len(group) or bool(ignored)
        # Parameters of the same name at different depths: only the whole text tells them apart.
        result.update(names if are_told_apart else {text: text for text in group})
    return result


def named(short: str, text: str, keys: Sequence[str]) -> str:
    """Add some parameters of a rule or attack to its name."""
    known = parameters(text)
    told = ", ".join(f"{key}={plain(known[key])}" for key in keys if key in known)
    if not told:
        return short
    return f"{short[:-1]}, {told})" if short.endswith(")") else f"{short}({told})"


def plain(value: Any) -> str:
    """Return a value as a text or a file of settings has it."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _differing(texts: Sequence[str], ignored: Sequence[str]) -> list[str]:
    """Return the parameters that the texts differ in, in the order that they are written."""
    found = [parameters(text) for text in texts]
    keys = dict.fromkeys(key for each in found for key in each if key not in ignored)
    return [key for key in keys if len({repr(each.get(key)) for each in found}) > 1]
