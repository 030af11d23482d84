"""Data: datasets as plain numpy arrays, checked against the originals, and how to get them."""

from outvote.data.array_dataset import ArrayDataset
from outvote.data.cache import data_root
from outvote.data.catalog import DATASETS
from outvote.data.faults import DamagedDataError, FetchError, MissingDataError
from outvote.data.fetch import fetch
from outvote.data.loader import load

__all__ = [
    "DATASETS",
    "ArrayDataset",
    "DamagedDataError",
    "FetchError",
    "MissingDataError",
    "data_root",
    "fetch",
    "load",
]
