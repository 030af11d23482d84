"""Writing a file so that it is there in full or not at all."""

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from outvote.cli.verb import WorkFailed


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write beside the target, then replace it; on failure what was there stays."""
    draft = path.parent / f".{path.name}.{secrets.token_hex(4)}.tmp"
    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    try:
        # Created by hand, because its mode is then what the user's umask asks for.
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        mode = (path if path.exists() else draft).stat().st_mode
        safetensors.torch.save_file(whole, draft, metadata=dict(metadata) or None)
        draft.chmod(mode & 0o7777)
        _sync(draft)
        draft.replace(path)
        _sync(path.parent)
    except (OSError, SafetensorError) as error:
        raise WorkFailed(f"{path} could not be written: {error}; nothing was changed") from error
    finally:
        draft.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
