"""What other packages add to the lists: each with its package, a broken one as a line on stderr."""

from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, TypeVar

from outvote.cli.output import print_message

if TYPE_CHECKING:
    from outvote.plugins import Plugin

Made = TypeVar("Made")


def loaded(
    kind: str, taken: Collection[str], make: "Callable[[Plugin], Made]"
) -> "Iterator[tuple[Made, Plugin]]":
    """Yield what is made of each plugin; one that cannot be used is a line on stderr."""
    from outvote.plugins import usable_plugins

    usable, faults = usable_plugins(kind, taken)
    for fault in faults:
        print_message(f"left out: {fault}")
    for plugin in usable:
        try:
            made = make(plugin)
        except Exception as error:  # noqa: BLE001  (one package never stops the others)
            what = str(error) if isinstance(error, ValueError) else f"{plugin}: {error}"
            print_message(f"left out: {what}")
        else:
            yield made, plugin


def listed_plugins(kind: str, taken: Collection[str]) -> list[dict[str, str | None]]:
    """Return the models or datasets of other packages: name, summary, package."""
    from outvote.plugins import load_plugin

    return [
        {
            "name": plugin.name,
            "summary": first_sentence(getattr(made, "__doc__", None) or ""),
            "package": plugin.source,
        }
        for made, plugin in loaded(kind, taken, load_plugin)
    ]


def first_sentence(doc: str) -> str:
    """Return what a docstring begins with."""
    what = " ".join(doc.split()).split(". ")[0].rstrip(".").removeprefix("Return ")
    return what[:1].upper() + what[1:]
