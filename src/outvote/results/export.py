"""Exports: many runs in one CSV file, small enough to commit; tables need nothing else.

One row is one run. What is told round by round is one field: numbers with spaces between them.
Diagnostics have columns only if a run has them.
"""

import csv
import gzip
import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np

from outvote.results.run import Result
from outvote.results.schema import Environment
from outvote.results.series import OPTIONAL, REAL, SERIES, Series, to_digits

VERSION = 2
MARK = "outvote-export"
PLACE = re.compile(r", (/|~|[A-Za-z]:[\\/]|\\\\).*$")
"""Where on somebody's disk data lay, at the end of what is told of its form."""
"""The first column: every row tells the version of the format."""
ABOUT = (
    "suite",
    "name",
    "outcome",
    "reason",
    "rounds_completed",
    "num_rounds",
    "config",
    "environment",
    "seconds",
    "num_samples",
)


def to_export(results: Iterable[Result], *, is_packed: bool = True) -> bytes:
    """Return the file: the same runs always give the same bytes, even those of an export."""
    ordered = sorted(results, key=lambda result: (result.suite, result.name))
    columns = (*SERIES, *(name for name in OPTIONAL if _is_known(ordered, name)))
    text = io.StringIO(newline="")
    table = csv.writer(text, lineterminator="\n")
    table.writerow([MARK, *ABOUT, *columns])
    for each in ordered:
        table.writerow([str(VERSION), *_about(each), *_by_round(each.series, columns)])
    # Names of folders need not be text.
    content = text.getvalue().encode(errors="backslashreplace")
    return _packed(content) if is_packed else content


def _about(result: Result) -> list[str]:
    config = json.dumps(result.config, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    environment = _without_places(result.environment)
    return [
        result.suite,
        result.name,
        result.status.outcome,
        result.status.reason,
        str(result.status.round),
        str(result.status.num_rounds),
        config,
        "" if environment is None else msgspec.json.encode(environment, order="sorted").decode(),
        f"{result.seconds:.3f}",
        str(result.num_samples),
    ]


def _without_places(environment: Environment | None) -> Environment | None:
    """Leave out what is nobody's business: the checksum says which pictures they were."""
    if environment is None or environment.data is None:
        return environment
    data = msgspec.structs.replace(environment.data, source=PLACE.sub("", environment.data.source))
    return msgspec.structs.replace(environment, data=data)


def _is_known(results: Sequence[Result], name: str) -> bool:
    return any(not np.isnan(getattr(each.series, name)).all() for each in results)


def _by_round(series: Series, columns: Sequence[str]) -> Iterator[str]:
    # Plain numbers: counting repetitions was tried, and gzip makes the same size of both.
    for name in columns:
        values = getattr(series, name).tolist()
        # Accuracies are what tables print: to the last bit.
        is_rounded = name in REAL and name != "accuracy"
        yield " ".join(to_digits(value) if is_rounded else repr(value) for value in values)


def _packed(content: bytes) -> bytes:
    file = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=file, mtime=0) as pack:
        pack.write(content)
    return file.getvalue()
