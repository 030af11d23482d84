"""The cache folder: where datasets are searched, and files that are decoded once."""

import hashlib
import json
import os
import secrets
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

VARIABLE = "OUTVOTE_DATA"


def data_root() -> Path:
    """Return the folder that holds one folder per dataset; it need not exist yet."""
    if chosen := os.environ.get(VARIABLE):
        return Path(chosen).expanduser()
    return _platform_cache(sys.platform) / "outvote"


def search_folders(name: str, folder: str | Path | None = None) -> tuple[Path, ...]:
    """Return where to look for a dataset, the likeliest first."""
    if folder is not None:
        return (Path(folder).expanduser(),)
    return (data_root() / name, data_root())


def _platform_cache(platform: str) -> Path:
    if platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return Path(local) if local else Path.home() / "AppData" / "Local"
    if platform == "darwin":
        return Path.home() / "Library" / "Caches"
    # By convention a path which is not absolute is ignored.
    chosen = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return chosen if chosen.is_absolute() else Path.home() / ".cache"


def decoded_once(
    root: Path, files: Iterable[Path], variant: str, make: Callable[[Path], None]
) -> Path:
    """Return the kept file for some files below `root`; `make` writes it where it is missing.

    Its name holds a hash of paths, sizes and times of change: a changed folder is decoded again.
    `make` gets a temporary path with the suffix of `variant`, the name of what is made.
    """
    where = _short_hash(str(root.resolve()))
    path = data_root() / "decoded" / f"{where}-{_fingerprint(root, files)}-{variant}"
    if path.is_file():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{secrets.token_hex(4)}-{path.name}")
    try:
        make(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    for stale in path.parent.glob(f"{where}-*-{variant}"):
        if stale != path:
            stale.unlink(missing_ok=True)
    return path


def _fingerprint(root: Path, files: Iterable[Path]) -> str:
    found = [(str(path.relative_to(root)), path.stat()) for path in files]
    return _short_hash(json.dumps([[name, it.st_size, it.st_mtime_ns] for name, it in found]))


def _short_hash(text: str) -> str:
    return hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=8).hexdigest()
