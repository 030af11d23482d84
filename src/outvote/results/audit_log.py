"""Logs of who was judged how: what a federation in production writes, round by round."""

from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct

from outvote.results.faults import DamagedFileError, StoreError
from outvote.results.lines import read_readable

FORMAT = "outvote-audit"
VERSION = 1
MANIFEST, LINES = "manifest.json", "audit.jsonl"

Standing = Literal["judged", "malformed", "error", "missing", "late", "excluded"]
"""Judged by the rule; or why not: a reply that cannot be read, that the client failed, that none
came, that it came too late, or that the client was not asked because of what it did before."""


class Judgement(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was thought of one client in one round."""

    client: str
    standing: Standing = "judged"
    score: float | None = None
    """The larger, the more suspicious; None: not finite, or not judged."""
    kept: bool | None = False
    """Whether it has a share in the update; None: the rule cannot report it."""
    reason: str = ""
    norm: float | None = None
    """Of what it sent."""
    cosine: float | None = None
    """Between what it sent and the update."""


class AuditRound(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of audit.jsonl."""

    round: Annotated[int, Meta(ge=0, lt=1 << 32)]
    time: str
    """When it was over, ISO 8601, UTC."""
    num_byzantine: int
    """How many liars the rule reckoned with."""
    is_updated: bool
    """False: the model was kept as it was."""
    reason: str = ""
    """Why it was kept."""
    update_norm: float | None = None
    seed: int | None = None
    """What the rule's randomness came from; None if the rule has none."""
    clients: tuple[Judgement, ...]


class Manifest(Struct, frozen=True, kw_only=True):
    """What the log is about: manifest.json."""

    format: str = FORMAT
    version: int = VERSION
    rule: str
    num_byzantine: int | None = None
    byzantine_fraction: float | None = None
    outvote: str
    started: str
    """ISO 8601, UTC."""
    settings: dict[str, str | int | float | bool | None] = {}
    """Whatever else was set."""


def read_manifest(folder: Path) -> Manifest | None:
    """Read what a log is about; None if there is no log here."""
    path = folder / MANIFEST
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        found = msgspec.json.decode(content, type=Manifest)
    except msgspec.DecodeError as error:
        raise DamagedFileError(f"{path} cannot be read: {error}") from error
    if found.format != FORMAT or found.version > VERSION:
        raise StoreError(
            f"{path} was written by a newer outvote ({found.format} {found.version}, known up to "
            f"{FORMAT} {VERSION}); upgrade outvote"
        )
    return found


class Told(NamedTuple):
    """What a log tells."""

    rounds: list[AuditRound]
    """In order; a round told twice counts as last told."""
    num_unreadable: int
    """How many whole lines make no sense, such as what a full disk or an editor left behind."""


def read_audit(folder: Path) -> list[AuditRound]:
    """Read all rounds; none if there is no log.

    >>> read_audit(Path("no/such/folder"))
    []
    """
    return read_told(folder).rounds


def read_told(folder: Path) -> Told:
    """Read all rounds; a last line without an end is being written and does not count yet.

    A damaged line hides no other: who looks for an attacker must not lose the rounds after it.
    """
    path = folder / LINES
    try:
        lines, num_unreadable = read_readable(path, AuditRound)
    except OSError as error:
        raise DamagedFileError(f"{path} cannot be read: {error}") from error
    by_round = {line.round: line for line in lines}
    return Told([by_round[number] for number in sorted(by_round)], num_unreadable)
