"""Rules, attacks, models and datasets of other packages, found by their entry points.

A package lists them in its pyproject.toml, and their names are then names like all others. An entry
point is what path.py:name may be: a class of rules or attacks, a class or function that makes a
network, a dataset or a function that returns one. Nothing of a package is imported before one of
its names is used.
"""

import re
import sys
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, final

from outvote.errors import an

GROUPS = {
    "rule": "outvote.rules",
    "attack": "outvote.attacks",
    "model": "outvote.models",
    "dataset": "outvote.datasets",
}
"""The group of entry points for each kind."""
_classes: dict[type, str] = {}
"""The rules and attacks that were loaded, and their names."""
NAME = re.compile(r"[a-z0-9]+([-_.][a-z0-9]+)*")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """A name of another package."""

    kind: str
    name: str
    package: str
    version: str
    entry: EntryPoint

    @property
    def source(self) -> str:
        """The package with its version."""
        return f"{self.package} {self.version}"

    def __str__(self) -> str:
        return f"the {self.kind} {self.name!r} of {self.source}"


def find_plugin(kind: str, name: str) -> Plugin | None:
    """Return the plugin of a name that is not built in; it is not loaded yet."""
    found = [each for each in all_plugins(kind) if each.name == name]
    if len(found) > 1:
        raise ValueError(_of_several(found))
    return found[0] if found else None


def plugin_names(kind: str) -> list[str]:
    """Return the names of a kind that other packages have."""
    return [each.name for each in all_plugins(kind)]


def usable_plugins(kind: str, taken: Collection[str]) -> tuple[list[Plugin], list[str]]:
    """Return the plugins that can be used by name, and a line for each that cannot.

    `taken` are the names that are built in.
    """
    usable, faults = [], []
    found = all_plugins(kind)
    for each in found:
        same = [other for other in found if other.name == each.name]
        if each.name in taken:
            faults.append(f"{each} has a name that is built in; its package must choose another.")
        elif not NAME.fullmatch(each.name):
            faults.append(f"{each}: a name is lower-case words joined by '-', '_' or '.'.")
        elif len(same) == 1:
            usable.append(each)
        elif each is same[0]:
            faults.append(_of_several(same))
    return usable, faults


def load_plugin(plugin: Plugin) -> Any:
    """Import what a plugin names; any failure is a ValueError of one line."""
    try:
        return plugin.entry.load()
    except (Exception, SystemExit) as error:
        what = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".: ")
        raise ValueError(
            f"{plugin} cannot be loaded ({plugin.entry.value}): {what}; repair or uninstall it."
        ) from error


def load_plugin_class(plugin: Plugin, base: type) -> type[Any]:
    """Import the class of a rule or an attack, which is then known by the name of the plugin."""
    found = load_plugin(plugin)
    if not isinstance(found, type) or not issubclass(found, base):
        raise ValueError(  # noqa: TRY004  (a package is as wrong as a text)
            f"{plugin} must be a class that is {an(base.__name__)}, got {plugin.entry.value}."
        )
    own = _classes.get(found) or getattr(found, "name", "") or plugin.name
    if own != plugin.name:
        raise ValueError(
            f"{plugin}: its class is called {own!r}; write `name = {plugin.name!r}` in the class "
            "or rename the entry point."
        )
    _classes[found] = found.name = plugin.name  # type: ignore[attr-defined]
    return found


def is_plugin_class(kind: type) -> bool:
    """Return whether a class was loaded by its name: its texts need no file and no checksum."""
    return kind in _classes


def all_plugins(kind: str) -> tuple[Plugin, ...]:
    """Return all plugins of a kind, by name and package."""
    return _found(GROUPS[kind], kind, tuple(sys.path)) if kind in GROUPS else ()


@lru_cache(maxsize=16)
def _found(group: str, kind: str, path: tuple[str, ...]) -> tuple[Plugin, ...]:
    """Read the metadata of all packages on a path: some milliseconds, so only once."""
    del path
    found = []
    for entry in entry_points(group=group):
        package, version = (entry.dist.name, entry.dist.version) if entry.dist else ("?", "?")
        found.append(
            Plugin(kind=kind, name=entry.name, package=package, version=version, entry=entry)
        )
    return tuple(sorted(found, key=lambda each: (each.name, each.package)))


def _of_several(same: list[Plugin]) -> str:
    packages = " and ".join(each.source for each in same)
    return f"the {same[0].kind} {same[0].name!r} is in {packages}; uninstall one of them."
