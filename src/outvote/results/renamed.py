"""Names of version 0.1 in files on disk, and their new names.

Settings, stores and exports of 0.1 are read for one more version.
"""

import warnings
from collections.abc import Mapping
from typing import Any

from outvote.errors import OutvoteWarning

METRICS = {
    "num_told": "num_byzantine_assumed",
    "num_used": "num_byzantine_used",
    "num_pictures": "num_samples",
}
COLUMNS = {**METRICS, "rounds_played": "rounds_completed", "num_images": "num_samples"}
SETTINGS = {"federation.told": "federation.assumed_byzantine"}

_KEYS = [(f'"{old}":'.encode(), f'"{new}":'.encode()) for old, new in METRICS.items()]


def renamed_line(line: bytes) -> bytes:
    """Return a line of metrics.jsonl with the new names."""
    for old, new in _KEYS:
        line = line.replace(old, new)
    return line


def renamed_settings(table: Mapping[str, Any], *, warns: bool = False) -> dict[str, Any]:
    """Return the settings of a run with the new names; `table` is unchanged."""
    result = dict(table)
    for old, new in SETTINGS.items():
        section, _, key = old.partition(".")
        inside = result.get(section)
        if isinstance(inside, Mapping) and key in inside:
            if warns:
                text = f"{old} is now {new}; the old name goes with 0.3."
                warnings.warn(text, OutvoteWarning, stacklevel=3)
            new_key = new.partition(".")[2]
            result[section] = {new_key if name == key else name: v for name, v in inside.items()}
    return result
