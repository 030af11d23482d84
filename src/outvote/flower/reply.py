"""One reply, checked against the model that was sent.

Nothing that a client says is believed: not its labels, not its sizes, not its counts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, TypeGuard, TypeVar, final

from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from outvote.flower.npy import Expected, Malformed, short
from outvote.flower.sent_model import SentModel

STORED_AS = "numpy.ndarray"
Kind = TypeVar("Kind", ArrayRecord, MetricRecord)


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reply:
    """What can be used of a reply."""

    weights: tuple[NDArray[Any], ...]
    """As they were sent, each as a vector."""
    statistics: tuple[NDArray[Any], ...]
    metrics: Mapping[str, Any]
    remark: str
    """What is odd about it, though it can be used."""
    count: float
    """How many examples the client says it has; 1 if that shall not matter."""


def read_reply(sent: SentModel, content: RecordDict, counts_key: str, *, use_counts: bool) -> Reply:
    """Read a reply, or raise Malformed."""
    arrays = _records(content, ArrayRecord)
    if len(arrays) != 1:
        raise Malformed(f"it has {len(arrays)} ArrayRecords, 1 is needed")
    named = _arrays(sent, arrays[0])
    metrics = read_metrics(content)
    count = 1.0
    if use_counts:
        count = _count(metrics, counts_key)
    return Reply(
        weights=tuple(named[each.name] for each in sent.weights),
        statistics=tuple(named[each.name] for each in sent.statistics),
        metrics=metrics,
        remark=_remark(metrics, counts_key),
        count=count,
    )


def read_metrics(content: RecordDict) -> Mapping[str, Any]:
    """Return the metrics of a reply; none if it has none."""
    metrics = _records(content, MetricRecord)
    if len(metrics) > 1:
        raise Malformed(f"it has {len(metrics)} MetricRecords, at most 1 is allowed")
    return metrics[0] if metrics else {}


def _records(content: RecordDict, kind: type[Kind]) -> list[Kind]:
    return [record for record in content.values() if isinstance(record, kind)]


def _arrays(sent: SentModel, record: ArrayRecord) -> dict[str, NDArray[Any]]:
    expected = sent.expected
    missing = [name for name in expected if name not in record]
    if missing:
        raise Malformed(f"array {short(missing[0])} is missing")
    extra = [name for name in record if name not in expected]
    if extra:
        raise Malformed(f"array {short(extra[0])} is unknown to the model")
    return {name: _values(each, record[name]) for name, each in expected.items()}


def _values(expected: Expected, array: Array) -> NDArray[Any]:
    who = f"array {short(expected.name)}"
    if array.stype != STORED_AS:
        raise Malformed(f"{who} is stored as {short(array.stype)}, not as {STORED_AS}")
    if array.dtype != str(expected.dtype):
        raise Malformed(f"{who} is of {short(array.dtype)}, the model's of {expected.dtype}")
    if tuple(array.shape) != expected.shape:
        raise Malformed(f"{who} has the shape {short(array.shape)}, the model's {expected.shape}")
    return expected.read(array.data)


def _count(metrics: Mapping[str, Any], key: str) -> float:
    value = metrics.get(key)
    if not is_number(value) or not value > 0:
        raise Malformed(f"{key} must be a positive number, got {short(value)}")
    return float(value)


def _remark(metrics: Mapping[str, Any], key: str) -> str:
    if not metrics:
        return "it sent no metrics"
    count = metrics.get(key, 1)
    if not is_number(count) or not count > 0:
        return f"its {key} is {short(count)}"
    for name, value in metrics.items():
        values = value if isinstance(value, list) else [value]
        if not all(is_number(each) for each in values):
            return f"its {short(name)} is not finite"
    return ""


def is_number(value: object) -> TypeGuard[int | float]:
    """Tell numbers that can be reckoned with from NaN, infinity and everything else."""
    return isinstance(value, int | float) and abs(value) < 1e300 and isfinite(value)
