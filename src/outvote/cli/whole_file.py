"""Writing a text, a picture or a model so that it is there in full or not at all."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from outvote.cli.verb import WorkFailed

if TYPE_CHECKING:
    from torch import Tensor


def write_file(path: Path, content: bytes) -> None:
    """Write beside the target, then replace it; on failure what was there stays."""
    from outvote.results.atomic import write_whole
    from outvote.results.faults import StoreError

    try:
        write_whole(path, content, stays="what was there stays")
    except StoreError as error:
        raise WorkFailed(str(error)) from error


def write_tensors(path: Path, tensors: "Mapping[str, Tensor]", metadata: Mapping[str, str]) -> None:
    """Write a safetensors file in the same way."""
    from safetensors.torch import save

    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    write_file(path, save(whole, metadata=dict(metadata) or None))
