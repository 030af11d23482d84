"""What can go wrong with a folder of results."""


class StoreError(Exception):
    """Results could not be written or read; what was there before is still there."""


class DamagedFileError(StoreError):
    """A file is there, but it is not what it should be."""


class BusyError(Exception):
    """Another process works on the run."""
