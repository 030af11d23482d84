"""What the log of a federation says about itself: its rule, settings, rounds without an update."""

from typing import Any

from outvote.results.audit_log import AuditLog, Manifest


def log_facts(manifest: Manifest, told: AuditLog) -> dict[str, Any]:
    """Return what is known; a setting does not hide it."""
    rounds = told.rounds
    kept = [each for each in rounds if not each.is_updated]
    facts = {
        "rule": manifest.rule,
        "num_byzantine": manifest.num_byzantine,
        "byzantine_fraction": manifest.byzantine_fraction,
        "outvote": manifest.outvote,
        "started": manifest.started,
        "last round": rounds[-1].time if rounds else None,
        "rounds without an update": len(kept),
        "last of them": f"round {kept[-1].round}: {kept[-1].reason or 'no reason'}"
        if kept
        else None,
        "lines that cannot be read": told.num_unreadable or None,
    }
    return {
        key: value
        for key, value in {**facts, **manifest.settings, **facts}.items()
        if value is not None
    }
