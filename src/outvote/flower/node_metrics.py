"""Metrics that nodes report, averaged so that one node can neither poison nor move them far."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from logging import getLogger
from typing import Any, Literal

import numpy as np
from flwr.app import Message, MetricRecord, RecordDict

from outvote.flower.console import log_replies
from outvote.flower.reply_checks import read_metrics
from outvote.flower.reply_collection import sort_replies
from outvote.flower.settings import Settings
from outvote.rules.sample_counts import capped_counts
from outvote.server.replies import Malformed, example_count, is_number, quote

LOG = getLogger("flwr")


def average_evaluations(
    settings: Settings, round_: int, messages: Sequence[Message], replies: Iterable[Message]
) -> MetricRecord | None:
    """Average the metrics of the nodes that evaluated."""
    found = sort_replies(messages, replies)
    reports: list[Mapping[str, Any]] = []
    usable: list[RecordDict] = []
    bad = {**found.malformed, **found.errors, **found.late}
    for node, content in sorted(found.contents.items()):
        try:
            reports.append(read_metrics(content))
            usable.append(content)
        except Malformed as fault:
            bad[node] = str(fault)
    if messages:
        log_replies("aggregate_evaluate", len(reports), len(messages) - len(reports))
    for node, reason in sorted(bad.items()):
        LOG.warning("\t> node %d, evaluation of round %d: %s", node, round_, reason)
    if settings.evaluate_metrics_aggr_fn is not None:
        return metrics_by(settings, "evaluate_metrics_aggr_fn", usable)
    counts = None
    if settings.use_num_examples:
        counts = [example_count(metrics, settings.weighted_by_key) for metrics in reports]
    num_byzantine = num_distrusted(settings, settings.num_byzantine_of(len(messages)), len(reports))
    return average_metrics(reports, num_byzantine, settings.weighted_by_key, counts)


def metrics_by(
    settings: Settings,
    name: Literal["train_metrics_aggr_fn", "evaluate_metrics_aggr_fn"],
    contents: list[RecordDict],
) -> MetricRecord | None:
    """Call a function of the user; its failure costs the metrics, not the run.

    Nodes send its input, and may send what it does not expect.
    """
    function = getattr(settings, name)
    if not contents:
        return None
    try:
        metrics = function(contents, settings.weighted_by_key)
    except Exception as error:  # noqa: BLE001  (a function of the user, fed by nodes)
        reason = f"{type(error).__name__}: {quote(error)}"
    else:
        if isinstance(metrics, MetricRecord):
            return metrics
        reason = f"it returned {type(metrics).__name__}, not a MetricRecord"
    LOG.warning("\t> no metrics in this round, %s failed: %s", name, reason)
    return None


def average_metrics(
    reports: Sequence[Mapping[str, Any]],
    num_byzantine: int,
    counts_key: str,
    counts: Sequence[float] | None = None,
) -> MetricRecord | None:
    """Average each metric over the nodes without the largest and smallest values.

    `num_byzantine` values are left out at either end, at most all but the middle. Values that are
    not finite do not count. Lists are averaged entry by entry over those of the usual length.
    Counts are capped as for a rule. None: no metric was reported by more than `num_byzantine`
    nodes.
    """
    capped = None if counts is None else capped_counts(counts, num_byzantine)
    weights = [1.0] * len(reports) if capped is None else capped.tolist()
    num_reports = Counter(name for metrics in reports for name in metrics if name != counts_key)
    averages: dict[str, Any] = {}
    for name in (name for name, count in num_reports.items() if count > num_byzantine):
        values = [metrics.get(name) for metrics in reports]
        usable = [
            (_as_list(value), weight)
            for value, weight in zip(values, weights, strict=True)
            if value is not None and all(is_number(each) for each in _as_list(value))
        ]
        average = _trimmed_average(usable, num_byzantine)
        if average is not None:
            num_lists = sum(isinstance(value, list) for value in values)
            is_list = len(average) > 1 or num_lists * 2 > len(usable)
            averages[name] = average if is_list else average[0]
    return MetricRecord(averages) if averages else None


def num_distrusted(settings: Settings, num_byzantine: int, num_reports: int) -> int:
    """Return how many reports may be false: as many as the rule tolerates, if no number is set."""
    if settings.num_byzantine is None and settings.byzantine_fraction is None:
        return max(0, min(settings.rule.max_byzantine(num_reports), (num_reports - 1) // 2))
    return num_byzantine


def _trimmed_average(
    reports: list[tuple[list[float], float]], num_byzantine: int
) -> list[float] | None:
    lengths = [len(values) for values, _ in reports]
    usual = max(sorted(set(lengths)), key=lengths.count, default=0)
    reports = [(values, weight) for values, weight in reports if len(values) == usual]
    if usual == 0 or len(reports) <= num_byzantine:
        return None
    table = np.array([values for values, _ in reports])
    weights = np.array([weight for _, weight in reports])
    cut = min(num_byzantine, (len(reports) - 1) // 2)
    order = np.argsort(table, axis=0, kind="stable")[cut : len(reports) - cut]
    inner = np.take_along_axis(table, order, axis=0)
    shares = weights[order]
    shares = np.where(shares.sum(axis=0) > 0, shares, 1.0)
    return [float(value) for value in np.average(inner, axis=0, weights=shares)]


def _as_list(value: Any) -> list[float]:
    return value if isinstance(value, list) else [value]
