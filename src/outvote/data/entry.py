"""What is known of a dataset before any file is read."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import final

from outvote.data.dataset import Arrays
from outvote.data.sources import Source


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """One way in which a dataset may lie in a folder."""

    doc: str
    is_there: Callable[[Path], bool]
    read: Callable[..., Arrays]
    """Takes the folder, and as keywords the options of the form."""
    options: tuple[str, ...] = ()
    is_in_package: bool = False
    """Whether it came with outvote, so that no folder matters."""

    def source(self, place: Path) -> str:
        """Tell the form and where it is."""
        return self.doc if self.is_in_package else f"{self.doc}, {place}"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A dataset: facts, forms it is read from, sources it is fetched from."""

    name: str
    doc: str
    num_train: int | None
    """None where it depends on the files."""
    num_test: int | None
    shape: tuple[int, int, int]
    num_classes: int | None
    mean: tuple[float, ...]
    std: tuple[float, ...]
    pixels: str
    checks: str
    """What is compared when it is read."""
    forms: tuple[Form, ...]
    """In the order of preference."""
    sources: tuple[Source, ...] = ()
    """In the order of preference; empty where nothing can be fetched."""
    advice: str = ""
    """How to get it by hand, where it cannot be fetched."""

    @property
    def how_to_get(self) -> str:
        """The command, or what to do where there is none."""
        return f"outvote data fetch {self.name}" if self.sources else self.advice


def has_all(*names: str) -> Callable[[Path], bool]:
    """Return a test whether a folder holds all files of these names."""
    return lambda folder: all((folder / name).is_file() for name in names)
