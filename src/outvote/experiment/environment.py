"""Where a run is played: versions, device, commit."""

import platform
import subprocess
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

import outvote
from outvote.results.schema import DataUsed, Environment

PACKAGE = Path(outvote.__file__).parent


def describe_environment(
    device: torch.device, precision: str, data: DataUsed | None = None
) -> Environment:
    """Tell what a result may depend on besides its settings."""
    return Environment(
        outvote=outvote.__version__,
        python=platform.python_version(),
        torch=str(torch.__version__),
        numpy=np.__version__,
        system=f"{platform.system()} {platform.machine()}",
        device=device_name(device),
        precision=precision,
        num_threads=torch.get_num_threads(),
        commit=commit(),
        data=data,
        date=datetime.now(UTC).date().isoformat(),
    )


def device_name(device: torch.device) -> str:
    """Return the name of a GPU, or "cpu"; a GPU that is not here is called "cuda"."""
    is_here = device.type == "cuda" and torch.cuda.is_available()
    return torch.cuda.get_device_name(device) if is_here else device.type


@lru_cache(maxsize=1)
def commit() -> str | None:
    """Return the commit of outvote's own source, marked if it was changed; None if unknown."""
    # Installed into somebody's checkout, outvote is not part of that checkout.
    if _git("ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    found, changes = _git("rev-parse", "HEAD"), _git("status", "--porcelain", "--", ".")
    return f"{found}+changes" if changes else found


def _git(*words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(PACKAGE), *words],
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
