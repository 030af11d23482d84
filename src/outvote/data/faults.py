"""What can be wrong with data: it is missing, it is damaged, or it could not be fetched."""


class MissingDataError(FileNotFoundError):
    """A dataset is not where it was looked for."""


class DamagedDataError(ValueError):
    """Files are there, but they are not what they should be."""


class FetchError(OSError):
    """A download failed; nothing half-done has the name of a finished file."""
