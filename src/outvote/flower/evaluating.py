"""What nodes measured, averaged so that one of them can neither poison nor move the report far."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from logging import getLogger
from typing import Any

import numpy as np
from flwr.app import Message, MetricRecord

from outvote.flower.answers import sort_answers
from outvote.flower.npy import Malformed
from outvote.flower.reply import is_number, read_metrics
from outvote.flower.settings import Settings

LOG = getLogger("flwr")


def merge_metrics(
    told: Sequence[Mapping[str, Any]],
    num_byzantine: int,
    counts_key: str,
    counts: Sequence[float] | None = None,
) -> MetricRecord | None:
    """Average each metric over the nodes without the largest and smallest values.

    As many as may lie are left out at either end, at most all but the middle. Values that are not
    finite do not count. Lists are averaged place by place over those of the usual length. None: no
    metric was told by more nodes than may lie.
    """
    weights = [1.0] * len(told) if counts is None else list(counts)
    tellers = Counter(name for metrics in told for name in metrics if name != counts_key)
    merged: dict[str, Any] = {}
    for name in (name for name, count in tellers.items() if count > num_byzantine):
        values = [metrics.get(name) for metrics in told]
        usable = [
            (_as_list(value), weight)
            for value, weight in zip(values, weights, strict=True)
            if value is not None and all(is_number(each) for each in _as_list(value))
        ]
        average = _average(usable, num_byzantine)
        if average is not None:
            num_lists = sum(isinstance(value, list) for value in values)
            is_list = len(average) > 1 or num_lists * 2 > len(usable)
            merged[name] = average if is_list else average[0]
    return MetricRecord(merged) if merged else None


def _average(told: list[tuple[list[float], float]], num_byzantine: int) -> list[float] | None:
    lengths = [len(values) for values, _ in told]
    usual = max(sorted(set(lengths)), key=lengths.count, default=0)
    told = [(values, weight) for values, weight in told if len(values) == usual]
    if usual == 0 or len(told) <= num_byzantine:
        return None
    table = np.array([values for values, _ in told])
    weights = np.array([weight for _, weight in told])
    cut = min(num_byzantine, (len(told) - 1) // 2)
    order = np.argsort(table, axis=0, kind="stable")[cut : len(told) - cut]
    inner = np.take_along_axis(table, order, axis=0)
    shares = weights[order]
    shares = np.where(shares.sum(axis=0) > 0, shares, 1.0)
    return [float(value) for value in np.average(inner, axis=0, weights=shares)]


def num_distrusted(settings: Settings, num_byzantine: int, num_byzantine_assumed: int) -> int:
    """Return how many may lie about a metric: as many as the rule bears, if nobody said."""
    if settings.num_byzantine is None and settings.byzantine_fraction is None:
        return max(
            0,
            min(
                settings.rule.max_byzantine(num_byzantine_assumed), (num_byzantine_assumed - 1) // 2
            ),
        )
    return num_byzantine


def _as_list(value: Any) -> list[float]:
    return value if isinstance(value, list) else [value]


def merge_replies(
    settings: Settings, round_: int, asked: Sequence[Message], replies: Iterable[Message]
) -> MetricRecord | None:
    """Average what the nodes that were asked to evaluate say."""
    answers = sort_answers(asked, replies)
    told: list[Mapping[str, Any]] = []
    bad = {**answers.malformed, **answers.errors, **answers.late}
    for node, content in sorted(answers.contents.items()):
        try:
            told.append(read_metrics(content))
        except Malformed as fault:
            bad[node] = str(fault)
    for node, reason in sorted(bad.items()):
        LOG.warning("\tnode %d, evaluation of round %d: %s", node, round_, reason)
    counts = None
    if settings.use_num_examples:
        counts = [_count(metrics, settings.weighted_by_key) for metrics in told]
    num_byzantine = num_distrusted(settings, settings.num_byzantine_of(len(asked)), len(told))
    return merge_metrics(told, num_byzantine, settings.weighted_by_key, counts)


def _count(metrics: Mapping[str, Any], key: str) -> float:
    value = metrics.get(key, 0)
    return float(value) if is_number(value) and value > 0 else 0.0
