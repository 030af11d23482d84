"""The lines on the server's console: those of Flower's own strategies, and who was left out."""

import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from logging import getLogger
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp.strategy import Result

from outvote.flower.settings import Settings
from outvote.results.audit_log import (
    AuditRound,
    ClientRecord,
    is_cosine_outlier,
    is_norm_outlier,
    norm_ratios,
)
from outvote.server.replies import OUTVOTED

LOG = getLogger("flwr")
QUIET = ("aggregated", "excluded")
"""Standings that need no line of their own."""
VERY_LONG = 10.0
"""So many times the median norm is suspicious, whatever the direction."""
MEGABYTE = 1024**2


def log_start(
    name: str, num_rounds: int, arrays: ArrayRecord, configs: Mapping[str, ConfigRecord | None]
) -> None:
    """Print what is about to run."""
    LOG.info("Starting %s strategy:", name)
    LOG.info("\t├── Number of rounds: %d", num_rounds)
    size = sum(len(array.data) for array in arrays.values()) / MEGABYTE
    LOG.info("\t├── ArrayRecord (%.2f MB)", size)
    for purpose, config in configs.items():
        values = {k: "<bytes>" if isinstance(v, bytes) else v for k, v in (config or {}).items()}
        LOG.info("\t├── ConfigRecord (%s): %s", purpose, values or "(empty!)")


def log_settings(settings: Settings, round_: int, folder: Path | None) -> None:
    """Print the settings of the strategy."""
    fraction = settings.byzantine_fraction
    assumed = settings.num_byzantine or 0 if fraction is None else f"a share of {fraction}"
    LOG.info("\t├──> Rule: %s, assumed Byzantine nodes: %s", settings.rule, assumed)
    LOG.info("\t├──> Server optimiser: %s", settings.server_optimizer)
    LOG.info("\t├──> Log and checkpoint: %s", folder or settings.audit_dir or "none")
    LOG.info("\t├──> Continues after round: %d", round_)
    LOG.info("\t├──> Sampling:")
    shares = settings.fraction_train, settings.fraction_evaluate
    LOG.info("\t│\t├──Fraction: train (%.2f) | evaluate (%.2f)", *shares)
    least = settings.min_train_nodes, settings.min_evaluate_nodes
    LOG.info("\t│\t├──Minimum nodes: train (%d) | evaluate (%d)", *least)
    if settings.selection.uses_scores:
        LOG.info("\t│\t├──Selection: %s", settings.selection)
    LOG.info("\t│\t└──Minimum available nodes: %d", settings.min_available_nodes)
    LOG.info("\t└──> Keys in records:")
    used = "" if settings.use_num_examples else ", not used: it is a claim"
    LOG.info("\t\t├── Weighted by: '%s'%s", settings.weighted_by_key, used)
    LOG.info("\t\t├── ArrayRecord key: '%s'", settings.arrayrecord_key)
    LOG.info("\t\t└── ConfigRecord key: '%s'", settings.configrecord_key)


def log_sample(step: str, num_nodes: int, num_online: int) -> None:
    """Print how many nodes are asked."""
    LOG.info("%s: Sampled %d nodes (out of %d)", step, num_nodes, num_online)


def log_round(entry: AuditRound) -> None:
    """Print how many replies there were, the nodes left out, and updates that look forged."""
    counts = Counter(str(each.standing) for each in entry.clients)
    num_failed = len(entry.clients) - counts["aggregated"] - counts["excluded"]
    log_replies("aggregate_train", counts["aggregated"], num_failed)
    for each in entry.clients:
        if each.standing not in QUIET:
            LOG.warning("\t> node %s %s: %s", each.client, each.standing, each.reason)
    for line in _suspicious(entry.clients):
        LOG.warning("\t> %s", line)
    _log_nodes(OUTVOTED, [e for e in entry.clients if e.reason.startswith(OUTVOTED)])
    _log_nodes("excluded", [e for e in entry.clients if e.standing == "excluded"])
    if entry.reason:
        level = LOG.info if entry.is_updated else LOG.warning
        level("\t> %s%s", "" if entry.is_updated else "the model is kept: ", entry.reason)


def log_replies(step: str, num_results: int, num_failures: int) -> None:
    """Print how many nodes replied with something usable, and how many did not."""
    LOG.info("%s: Received %d results and %d failures", step, num_results, num_failures)


def log_metrics(metrics: MetricRecord | None) -> None:
    """Print the aggregated metrics of a step."""
    if metrics is not None:
        LOG.info("\t└──> Aggregated MetricRecord: %s", metrics)


def log_end(result: Result, seconds: float) -> None:
    """Print the duration and all results."""
    LOG.info("")
    LOG.info("Strategy execution finished in %.2fs", seconds)
    LOG.info("")
    LOG.info("Final results:")
    LOG.info("")
    for line in io.StringIO(str(result)):
        LOG.info("\t%s", line.strip("\n"))
    LOG.info("")


def _log_nodes(what: str, clients: Sequence[ClientRecord]) -> None:
    if clients:
        LOG.info("\t> %s: %s", what, ", ".join(each.client for each in clients))


def _suspicious(clients: Sequence[ClientRecord]) -> Iterator[str]:
    """Yield a line for each update that is far too long, or long and reversed."""
    norms = np.array([each.norm for each in clients], dtype=float)
    cosines = np.array([each.cosine for each in clients], dtype=float)
    ratios, is_reversed = norm_ratios(norms), is_cosine_outlier(cosines)
    is_long = is_norm_outlier(norms) & (ratios > 1)
    for k, each in enumerate(clients):
        if ratios[k] >= VERY_LONG or (is_long[k] and is_reversed[k]):
            against = f" and points against the update (cosine {cosines[k]:.2f})"
            outcome = "kept" if each.kept else each.reason or "not kept"
            yield (
                f"node {each.client}: its update is {ratios[k]:.3g} times as long as the median"
                f"{against if is_reversed[k] else ''}; {outcome}"
            )
