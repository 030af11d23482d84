"""What can go wrong with a folder of results."""


class StoreError(Exception):
    """Results could not be written or read; what was there before is still there."""


class BusyError(Exception):
    """Another process works on the run."""
