"""Errors of data that is missing or damaged."""

FETCH_AGAIN = "delete it and fetch it again"


class MissingDataError(FileNotFoundError):
    """A dataset is not in the folders that were searched."""


class DamagedDataError(ValueError):
    """Files are there, but they are not what they should be."""


class FetchError(OSError):
    """A download failed; no unfinished file has the name of a finished one."""


def fetch_again(fault: str) -> DamagedDataError:
    """Return the error of a file that fetching repairs."""
    return DamagedDataError(f"{fault}; {FETCH_AGAIN}.")
