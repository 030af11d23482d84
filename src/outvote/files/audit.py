"""Adds the verdict on files to an audit log, which `outvote audit` reads."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

import outvote
from outvote.files.aggregate_files import FilesResult
from outvote.results import disk
from outvote.results.audit_log import (
    LINES,
    MANIFEST,
    AuditRound,
    ClientRecord,
    Manifest,
    read_audit,
    read_manifest,
)
from outvote.rules.rule import Rule


def add_round(folder: Path, rule: Rule, found: FilesResult, options: dict[str, Any]) -> AuditRound:
    """Write the next round of the log in `folder`; the first starts the log."""
    with disk.write_errors(folder, "the output is written"):
        folder.mkdir(parents=True, exist_ok=True)
        held = disk.lock(folder / ".lock")
    with held:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        if read_manifest(folder) is None:
            manifest = Manifest(
                rule=str(rule),
                num_byzantine=options.get("num_byzantine"),
                byzantine_fraction=options.get("byzantine_fraction"),
                outvote=outvote.__version__,
                started=now,
            )
            text = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
            disk.write_whole(folder / MANIFEST, text + b"\n", stays="the output is written")
        disk.cut_unfinished(folder / LINES)
        last = max((each.round for each in read_audit(folder)), default=0)
        entry = AuditRound(
            round=last + 1,
            time=now,
            num_byzantine=found.verdict.num_byzantine,
            is_updated=True,
            seed=found.verdict.seed,
            clients=tuple(_record(client) for client in found.clients),
        )
        disk.append_line(folder / LINES, entry)
        disk.sync_lines(folder / LINES)
    return entry


def _record(client: dict[str, Any]) -> ClientRecord:
    return ClientRecord(
        # A file's name may be no text: what is not UTF-8 is shown by its codes.
        client=client["client"].encode(errors="backslashreplace").decode(),
        standing="malformed" if client["status"] == "rejected" else "aggregated",
        score=client["score"],
        kept=None if client["status"] == "used" else client["status"] == "kept",
        reason=client["reason"].encode(errors="backslashreplace").decode(),
        norm=client["norm"],
        cosine=client["cosine"],
    )
