"""Where data lies: the cache folder of the platform, or OUTVOTE_DATA."""

import os
import sys
from pathlib import Path

VARIABLE = "OUTVOTE_DATA"


def data_root() -> Path:
    """Return the folder that holds one folder per dataset; it need not exist yet."""
    if chosen := os.environ.get(VARIABLE):
        return Path(chosen).expanduser()
    return _platform_cache(sys.platform) / "outvote"


def places(name: str, folder: str | Path | None = None) -> tuple[Path, ...]:
    """Return where to look for a dataset, the likeliest place first."""
    if folder is not None:
        return (Path(folder).expanduser(),)
    return (data_root() / name, data_root())


def _platform_cache(platform: str) -> Path:
    if platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return Path(local) if local else Path.home() / "AppData" / "Local"
    if platform == "darwin":
        return Path.home() / "Library" / "Caches"
    # The convention says that a path which is not absolute is to be ignored.
    chosen = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return chosen if chosen.is_absolute() else Path.home() / ".cache"
