"""Audit logs as a server in production writes them."""

import msgspec

from outvote.results.audit_log import AuditRound, Manifest


def write_log(folder, rounds, **manifest):
    """Write a log."""
    folder.mkdir(exist_ok=True)
    about = Manifest(
        rule="gas(median)", outvote="0.1.0", started="2026-01-01T00:00:00Z", **manifest
    )
    (folder / "manifest.json").write_bytes(msgspec.json.encode(about))
    lines = [msgspec.json.encode(each) + b"\n" for each in rounds]
    (folder / "audit.jsonl").write_bytes(b"".join(lines))


def line(number, *clients, is_updated=True):
    """One round of a log."""
    return AuditRound(
        round=number,
        time=f"2026-01-01T00:0{number}:00Z",
        num_byzantine=1,
        is_updated=is_updated,
        clients=clients,
    )
