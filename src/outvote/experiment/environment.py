"""The machine of a run: device, cores, versions, commit."""

import platform
import subprocess
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

import outvote
from outvote.experiment.run_spec import PROTOCOL, REVISION
from outvote.ops import native
from outvote.results.schema import DataUsed, Environment


def choose_device(name: str, *, must_be_here: bool = True) -> torch.device:
    """Return a device; "auto" is a GPU if there is one. A dry run may name a GPU that is absent.

    >>> choose_device("cpu")
    device(type='cpu')
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"unknown device {name!r}; take cpu, cuda or cuda:0.") from error
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device must be cpu or cuda, got {name!r}.")
    if must_be_here and device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {name!r}: torch finds no CUDA device; take cpu.")
    if must_be_here and device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        last = torch.cuda.device_count() - 1
        found = "cuda:0 alone" if last == 0 else f"cuda:0 to cuda:{last}"
        raise ValueError(f"device {name!r}: torch finds {found}; take one that is there.")
    return device


PACKAGE = Path(outvote.__file__).parent


def describe_environment(
    device: torch.device, precision: str, data: DataUsed | None = None, trainer: str | None = None
) -> Environment:
    """Return everything that a result may depend on besides its settings."""
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
        protocol=PROTOCOL,
        revision=REVISION,
        trainer=trainer,
        native=native.level(),
    )


def device_name(device: torch.device) -> str:
    """Return the name of a GPU, or "cpu"; a GPU that is not here is called "cuda"."""
    is_here = device.type == "cuda" and torch.cuda.is_available()
    return torch.cuda.get_device_name(device) if is_here else device.type


@lru_cache(maxsize=1)
def commit() -> str | None:
    """Return the commit of outvote's own source, marked if it was changed; None if unknown."""
    # Installed into the checkout of another project, outvote is not part of it.
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
