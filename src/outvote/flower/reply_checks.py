"""Replies, checked against the model that was sent, as one matrix of updates.

Updates that would take too much memory are not put into a matrix: they are read from the replies
some coordinates at a time.

No claim of a client is trusted: not its labels, not its sizes, not its counts. A reply that cannot
be used is left out, with the reason.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, final

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, RecordDict
from numpy.typing import NDArray

from outvote.files.sources import ArraySource, MovedSource, Source
from outvote.flower.model_record import ExpectedArray, SentModel
from outvote.ops.process import mapped
from outvote.rules.values import squared_norms
from outvote.server.replies import (
    NOT_FINITE,
    Malformed,
    check_names,
    example_count,
    is_number,
    measure_rows,
    needed_count,
    quote,
)

# So many times the size of the updates are needed to aggregate them as one matrix.
NUM_COPIES = 3
READ_AT_ONCE = 1 << 20
STORED_AS = "numpy.ndarray"
MANY_METRICS, LONG_METRIC, LARGE_SETTINGS = 100, 1000, 1_000_000
"""Beyond these numbers of names, values and bytes a reply is odd, though it can be used."""


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reply:
    """A reply that can be used."""

    weights: tuple[NDArray[Any], ...]
    """As they were sent, each as a vector."""
    statistics: tuple[NDArray[Any], ...]
    metrics: Mapping[str, Any]
    note: str
    """What is odd about it, though it can be used."""
    count: float
    """How many examples the client claims to have; 1 if counts are ignored."""


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NodeUpdates:
    """The updates of a round, and the nodes whose replies cannot be used."""

    replies: Mapping[int, Reply]
    """The usable replies by node, in the order of the rows."""
    rows: torch.Tensor | None
    """Their updates, ``[nodes, dim]``: the weights that were sent, minus the model."""
    sources: tuple[Source, ...]
    """The same to be read some coordinates at a time, where `rows` would be too large."""
    statistics: tuple[NDArray[Any], ...]
    """What the networks counted by themselves, ``[nodes, values]`` each, as it was sent."""
    norms: tuple[float, ...]
    """Of the updates."""
    malformed: Mapping[int, str]
    """The nodes whose replies cannot be used, and why."""


def read_updates(
    sent: SentModel,
    contents: Mapping[int, RecordDict],
    counts_key: str,
    *,
    use_counts: bool,
    max_bytes: int | None = None,
) -> NodeUpdates:
    """Check the replies of the nodes, and compute their updates.

    With more than `max_bytes` for the matrix of them and its copies there is none.
    """
    replies: dict[int, Reply] = {}
    malformed: dict[int, str] = {}
    for node in sorted(contents):
        try:
            replies[node] = read_reply(sent, contents[node], counts_key, use_counts=use_counts)
        except Malformed as fault:
            malformed[node] = str(fault)
    num_bytes = NUM_COPIES * len(replies) * sent.vector.nbytes
    is_large = max_bytes is not None and num_bytes > max_bytes
    sources = tuple(_source(sent, reply) for reply in replies.values()) if is_large else ()
    rows = None if is_large else _subtract(sent, list(replies.values()))
    statistics = tuple(
        np.stack(parts)
        for parts in zip(*(reply.statistics for reply in replies.values()), strict=True)
    )
    norms, are_finite = _streamed_norms(sources) if rows is None else measure_rows(rows)
    is_fine = [
        is_finite and all(bool(np.isfinite(part[row]).all()) for part in statistics)
        for row, is_finite in enumerate(are_finite)
    ]
    pairs = list(zip(replies, is_fine, strict=True))
    return NodeUpdates(
        replies={node: replies[node] for node, ok in pairs if ok},
        rows=rows if rows is None or all(is_fine) else rows[torch.tensor(is_fine)],
        sources=tuple(source for source, ok in zip(sources, is_fine, strict=False) if ok),
        statistics=tuple(part if all(is_fine) else part[is_fine] for part in statistics),
        norms=tuple(norm for norm, ok in zip(norms, is_fine, strict=True) if ok),
        malformed={**malformed, **{node: NOT_FINITE for node, ok in pairs if not ok}},
    )


def read_reply(sent: SentModel, content: RecordDict, counts_key: str, *, use_counts: bool) -> Reply:
    """Read a reply, or raise Malformed."""
    arrays = list(content.array_records.values())
    if len(arrays) != 1:
        raise Malformed(f"it has {len(arrays)} ArrayRecords, 1 is needed")
    named = _arrays(sent, arrays[0])
    metrics = read_metrics(content)
    count = needed_count(metrics, counts_key) if use_counts else 1.0
    return Reply(
        weights=tuple(named[each.name] for each in sent.weights),
        statistics=tuple(named[each.name] for each in sent.statistics),
        metrics=metrics,
        note=_note(metrics, counts_key) or _note_of_size(content, metrics),
        count=count,
    )


def read_metrics(content: RecordDict) -> Mapping[str, Any]:
    """Return the metrics of a reply; none if it has none."""
    metrics = list(content.metric_records.values())
    if len(metrics) > 1:
        raise Malformed(f"it has {len(metrics)} MetricRecords, at most 1 is allowed")
    return metrics[0] if metrics else {}


def _source(sent: SentModel, reply: Reply) -> Source:
    """Return the update of a reply, which is computed when it is read."""
    named = {each.name: part for each, part in zip(sent.weights, reply.weights, strict=True)}
    return MovedSource(ArraySource(named), ArraySource({"": sent.vector}))


def _streamed_norms(sources: tuple[Source, ...]) -> tuple[list[float], list[bool]]:
    def measure(source: Source) -> float:
        total = 0.0
        for start in range(0, source.size, READ_AT_ONCE):
            part = torch.empty(min(READ_AT_ONCE, source.size - start), dtype=source.dtype)
            source.read(start, part)
            total += float(squared_norms(part.view(1, -1, 1)))
        return float(total**0.5)

    norms = mapped(measure, sources)
    return norms, [isfinite(norm) for norm in norms]


def _subtract(sent: SentModel, replies: list[Reply]) -> torch.Tensor:
    rows = np.empty((len(replies), len(sent.vector)), sent.vector.dtype)

    def fill(row: int) -> None:
        start = 0
        with np.errstate(all="ignore"):
            for values in replies[row].weights:
                part = slice(start, start + len(values))
                np.subtract(values, sent.vector[part], out=rows[row, part])
                start += len(values)

    mapped(fill, range(len(replies)))
    return torch.from_numpy(rows)


def _arrays(sent: SentModel, record: ArrayRecord) -> dict[str, NDArray[Any]]:
    expected = sent.expected
    check_names(expected, record)
    return {name: _values(each, record[name]) for name, each in expected.items()}


def _values(expected: ExpectedArray, array: Array) -> NDArray[Any]:
    which = f"array {quote(expected.name)}"
    if array.stype != STORED_AS:
        raise Malformed(f"{which} is stored as {quote(array.stype)}, not as {STORED_AS}")
    if array.dtype != str(expected.dtype):
        raise Malformed(f"{which} is of {quote(array.dtype)}, the model's of {expected.dtype}")
    if tuple(array.shape) != expected.shape:
        raise Malformed(f"{which} has the shape {quote(array.shape)}, the model's {expected.shape}")
    return expected.read(array.data)


def _note(metrics: Mapping[str, Any], key: str) -> str:
    if not metrics:
        return "it sent no metrics"
    if key in metrics and not example_count(metrics, key):
        return f"its {key} is {quote(metrics[key])}"
    for name, value in metrics.items():
        values = value if isinstance(value, list) else [value]
        if not all(is_number(each) for each in values):
            return f"its {quote(name)} is not finite"
    return ""


def _note_of_size(content: RecordDict, metrics: Mapping[str, Any]) -> str:
    """Return what a reply has far too much of: each is stored and sent around."""
    if len(metrics) > MANY_METRICS:
        return f"it sent {len(metrics):,} metrics"
    for name, value in metrics.items():
        if isinstance(value, list) and len(value) > LONG_METRIC:
            return f"its {quote(name)} has {len(value):,} values"
        if len(name) > LONG_METRIC:
            return f"a metric has a name of {len(name):,} characters"
    num_bytes = sum(
        len(value)
        for record in content.config_records.values()
        for value in record.values()
        if isinstance(value, bytes | str)
    )
    return f"it sent {num_bytes:,} bytes of settings" if num_bytes > LARGE_SETTINGS else ""
