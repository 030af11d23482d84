"""Settings as TOML: the file in a run's folder plays the same run again."""

import json
from collections.abc import Mapping
from typing import Any

from outvote.experiment.spec import Spec, as_table


def to_toml(spec: Spec, suite: str) -> str:
    """Return the file that describes one run."""
    table = {"suite": suite, **as_table(spec)}
    lines = [f"{key} = {_value(value)}" for key, value in table.items() if not _is_table(value)]
    for key, value in table.items():
        if _is_table(value):
            lines += ["", f"[{key}]", *(f"{name} = {_value(each)}" for name, each in value.items())]
    return "\n".join(lines) + "\n"


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping)


def _value(value: Any) -> str:
    if value is None:
        return '"none"'
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(each) for each in value)}]"
    return json.dumps(value, ensure_ascii=False)
