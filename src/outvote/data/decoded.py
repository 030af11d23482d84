"""What takes long to decode is decoded once and kept in the cache.

The name of the kept file tells the content of the folder it was made from (paths, sizes, times of
change), so a changed folder is decoded again.
"""

import hashlib
import json
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path

from outvote.data.cache import data_root


def decoded_once(
    root: Path, files: Iterable[Path], variant: str, make: Callable[[Path], None]
) -> Path:
    """Return the kept file for some files below `root`; `make` writes it where it is missing.

    `make` gets a path of another name and of the same ending, which takes its place when all is
    well. `variant` tells apart what is made from the same files; its ending is that of the file.
    """
    where = _short_hash(str(root.resolve()))
    path = data_root() / "decoded" / f"{where}-{_fingerprint(root, files)}-{variant}"
    if path.is_file():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{secrets.token_hex(4)}-{path.name}")
    try:
        make(draft)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    for stale in path.parent.glob(f"{where}-*-{variant}"):
        if stale != path:
            stale.unlink(missing_ok=True)
    return path


def _fingerprint(root: Path, files: Iterable[Path]) -> str:
    facts = []
    for path in files:
        about = path.stat()
        facts.append([str(path.relative_to(root)), about.st_size, about.st_mtime_ns])
    return _short_hash(json.dumps(facts))


def _short_hash(text: str) -> str:
    return hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=8).hexdigest()
