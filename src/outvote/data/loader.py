"""From a name to a dataset in memory."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from outvote.data.array_dataset import ArrayDataset
from outvote.data.cache import VARIABLE, search_folders
from outvote.data.catalog import DATASETS
from outvote.data.dataset_entry import DatasetEntry, Form
from outvote.data.faults import MissingDataError
from outvote.errors import closest
from outvote.plugins import plugin_names
from outvote.user_objects import is_own


def load(
    name: str,
    *,
    folder: str | Path | None = None,
    size: int | None = None,
    split_seed: int | None = None,
) -> ArrayDataset:
    """Load a dataset into memory and check it against the original.

    Looked for in `folder`, or else in the cache folder (see `data_root`). `size` is for folders of
    images: their height and width. `split_seed` is for LEAF's JSON without a split of its own.

    >>> small = load("fashion-mnist-small")
    >>> small.train_images.shape, small.num_classes
    ((6000, 28, 28, 1), 10)
    """
    return load_entry(find_entry(name), folder, size=size, split_seed=split_seed)


def find_entry(name: str) -> DatasetEntry:
    """Return the entry of a dataset; an unknown name is an error that names the closest."""
    if name not in DATASETS:
        known = [*DATASETS, *plugin_names("dataset")]
        raise ValueError(f"unknown dataset {name!r}; {closest(str(name), known)}")
    return DATASETS[name]


def is_own_dataset(name: str) -> bool:
    """Return whether a dataset is a user's or another package's."""
    return is_own("dataset", name, DATASETS)


def load_entry(
    entry: DatasetEntry, folder: str | Path | None = None, **options: Any
) -> ArrayDataset:
    """Load what an entry describes."""
    form, where = locate(entry, folder)
    given = {key: value for key, value in options.items() if value is not None}
    if unknown := [key for key in given if key not in form.options]:
        raise ValueError(
            f"{entry.name} as {form.doc} takes no {unknown[0]}, got {given[unknown[0]]!r}; "
            "leave it out."
        )
    return replace(
        form.read(where, **given),
        name=entry.name,
        source=form.source(where),
        mean=entry.mean or None,
        std=entry.std or None,
        pixels=entry.pixels,
    )


def locate(entry: DatasetEntry, folder: str | Path | None = None) -> tuple[Form, Path]:
    """Return the form of a dataset that was found, and its folder; files are not opened."""
    searched = search_folders(entry.name, folder)
    for where in searched:
        for form in entry.forms:
            if form.is_in_package and folder is not None:
                raise ValueError(f"{entry.name} is {form.doc} and takes no folder, got {folder}.")
            if form.is_there(where):
                return form, where
    forms = " or ".join(form.doc for form in entry.forms)
    raise MissingDataError(
        f"{entry.name} is not in {' or '.join(str(where) for where in searched)} (as {forms}); get "
        f"it: {entry.how_to_get}; if it is elsewhere, set {VARIABLE} or pass folder=."
    )
