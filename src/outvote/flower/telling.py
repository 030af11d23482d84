"""What the server's console shows of a round."""

from collections import Counter
from logging import getLogger

from outvote.flower.settings import Settings
from outvote.results.audit_log import AuditRound

LOG = getLogger("flwr")
OUTVOTED = "outvoted"
QUIET = ("aggregated", "excluded")
"""Standings that need no line of their own."""


def log_round(told: AuditRound) -> None:
    """Show who was left out, and how many of each kind there were."""
    counts = Counter(str(each.standing) for each in told.clients)
    for each in told.clients:
        if each.standing not in QUIET:
            LOG.warning("\tnode %s %s: %s", each.client, each.standing, each.reason)
    outvoted = [each.client for each in told.clients if each.reason.startswith(OUTVOTED)]
    if outvoted:
        LOG.info("\toutvoted: %s", ", ".join(outvoted))
    parts = ", ".join(f"{count} {standing}" for standing, count in sorted(counts.items()))
    LOG.info("aggregate_train: %s", parts or "nobody was asked")
    if told.reason:
        level = LOG.info if told.is_updated else LOG.warning
        level("\t%s%s", "" if told.is_updated else "the model is kept: ", told.reason)


def log_settings(settings: Settings, round_: int) -> None:
    """Show what the strategy was told."""
    liars = (
        f"a share of {settings.byzantine_fraction}"
        if settings.byzantine_fraction is not None
        else str(settings.num_byzantine or 0)
    )
    LOG.info("\t├──> Rule: %s, liars: %s", settings.rule, liars)
    LOG.info("\t├──> Server optimiser: %s", settings.server_optimizer)
    LOG.info("\t├──> Log and checkpoint: %s", settings.audit_dir or "none")
    LOG.info("\t└──> Goes on after round: %d", round_)
