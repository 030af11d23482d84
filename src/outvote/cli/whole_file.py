"""Writing a text or a picture so that it is there in full or not at all."""

from pathlib import Path

from outvote.cli.verb import WorkFailed


def write_file(path: Path, content: bytes) -> None:
    """Write beside the target, then replace it; on failure what was there stays."""
    from outvote.results.atomic import write_whole
    from outvote.results.faults import StoreError

    try:
        write_whole(path, content, stays="what was there stays")
    except StoreError as error:
        raise WorkFailed(str(error)) from error
