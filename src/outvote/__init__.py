"""outvote: federated learning in which some clients may be Byzantine.

Names are loaded when they are first used, so that ``import outvote`` costs nothing.
"""

import importlib
from pathlib import Path
from typing import Any

__version__ = "0.2.0.dev0"

# The module of each public name. The stub has a line for each: from MODULE import NAME as NAME.
_WHERE = {
    words[3]: words[1]
    for words in map(str.split, Path(__file__).with_suffix(".pyi").read_text("utf-8").splitlines())
    if words[:1] == ["from"]
}
__all__ = [*_WHERE]


def __getattr__(name: str) -> Any:
    """Load a public name from the module it lives in."""
    if name not in _WHERE:
        raise AttributeError(f"module 'outvote' has no attribute {name!r}")
    value = getattr(importlib.import_module(_WHERE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return sorted([*_WHERE, "__version__"])
