"""Who was kept, client by round: audit.npz of a simulation, the audit log of a server."""

import io
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from outvote.limits import check_members
from outvote.results.disk import (
    DamagedFileError,
    StoreError,
    open_regular,
    read_json,
    read_readable,
)
from outvote.results.round import Round
from outvote.text import short_line, shortened


def audit_arrays(
    rounds: Sequence[Round], *, is_byzantine: Sequence[bool], label_counts: NDArray[np.int64]
) -> dict[str, NDArray[Any]]:
    """Return the audit of a simulation: scores (NaN: not sampled, inf: rejected), who was kept.

    Arrays are ``[rounds, clients]``, but `round` and `is_kept_known [rounds]` (False: the rule
    cannot report who was kept), `is_byzantine [clients]` and `label_counts [clients, classes]`.
    """
    shape = (len(rounds), len(is_byzantine))
    scores = np.full(shape, np.nan)
    is_sampled, is_kept = np.zeros(shape, dtype=bool), np.zeros(shape, dtype=bool)
    for row, each in enumerate(rounds):
        clients = list(each.clients)
        is_sampled[row, clients] = True
        is_kept[row, list(each.kept or ())] = True
        scores[row, clients] = [np.inf if s is None else s for s in each.scores]
    return {
        "round": np.array([each.round for each in rounds], dtype=np.int64),
        "scores": scores,
        "is_sampled": is_sampled,
        "is_kept": is_kept,
        "is_kept_known": np.array([each.kept is not None for each in rounds], dtype=bool),
        "is_byzantine": np.array(is_byzantine, dtype=bool),
        "label_counts": label_counts,
    }


def to_npz(arrays: dict[str, NDArray[Any]]) -> bytes:
    """Return the arrays as an npz file."""
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


AUDIT_NAME = "audit.npz"
MOST_AUDIT_BYTES = 1 << 27
"""Of the arrays of an audit.npz that are read, in all."""


def read_arrays(path: Path, *names: str) -> list[NDArray[Any]]:
    """Read some arrays of an audit.npz; a damaged or a too large one is a DamagedFileError."""
    try:
        # Opened here, because numpy leaves a file that is no archive open.
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            check_members(archive, [f"{name}.npy" for name in names], MOST_AUDIT_BYTES)
            file.seek(0)
            with np.load(file, allow_pickle=False) as arrays:
                found = [arrays[name] for name in names]
    except FileNotFoundError:
        raise
    # An archive has many ways to be wrong: its directory, its compression, its encryption.
    except Exception as error:
        raise DamagedFileError(f"{path} is damaged: {shortened(str(error))}") from error
    for name, array in zip(names, found, strict=True):
        if not isinstance(array, np.ndarray):  # Bytes, where the member is no npy file.
            raise DamagedFileError(f"{path} is damaged: its {name} is no array")
    return found


def read_label_counts(path: Path) -> NDArray[np.int64]:
    """Return how many samples of each class a client owns; damage is a DamagedFileError."""
    (counts,) = read_arrays(path, "label_counts")
    if counts.ndim != 2 or counts.dtype.kind not in "iu":
        raise DamagedFileError(f"{path} is damaged: its label counts are no table of counts")
    if counts.size and (counts.min() < 0 or counts.max() >= 1 << 32):
        raise DamagedFileError(f"{path} is damaged: its label counts are outside 0 to {1 << 32}")
    return counts.astype(np.int64)


FORMAT = "outvote-audit"
VERSION = 1
MANIFEST, LINES = "manifest.json", "audit.jsonl"

Standing = Literal["aggregated", "malformed", "error", "missing", "late", "excluded"]
"""Whether a reply reached the rule, or why not: it cannot be read, the client failed, no reply
came, it came too late, or the client was excluded because of earlier rounds."""


class ClientRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One client in one round."""

    client: str
    standing: Standing = "aggregated"
    score: float | None = None
    """The larger, the more suspicious; None: not finite, or not aggregated."""
    kept: bool | None = False
    """Whether it has a share in the update; None: the rule cannot report it."""
    reason: str = ""
    norm: float | None = None
    """Of the client's update."""
    cosine: float | None = None
    """Between the client's update and the aggregated one."""
    distance: float | None = None
    """From the average of the others, over the median of these distances in the round."""


class AuditRound(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of audit.jsonl."""

    round: Annotated[int, Meta(ge=0, lt=1 << 32)]
    time: str
    """The end of the round, ISO 8601, UTC."""
    num_byzantine: int
    """How many Byzantine clients the rule assumed."""
    is_updated: bool
    """False: the model is unchanged."""
    reason: str = ""
    """Why it is unchanged."""
    update_norm: float | None = None
    seed: int | None = None
    """Of the rule; None if the rule is not random."""
    clients: tuple[ClientRecord, ...]


class Manifest(Struct, frozen=True, kw_only=True):
    """The federation that the log belongs to: manifest.json."""

    format: str = FORMAT
    version: int = VERSION
    rule: str
    num_byzantine: int | None = None
    byzantine_fraction: float | None = None
    outvote: str
    started: str
    """ISO 8601, UTC."""
    settings: dict[str, str | int | float | bool | None] = {}
    """All other settings."""


def find_log(folder: Path) -> Path:
    """Return the folder of the newest log: the folder itself, or one in it; itself if none is here.

    A server keeps every run in a folder of its own.
    """
    found = _logs(folder)
    return max(found)[2] if found else folder


def num_logs(folder: Path) -> int:
    """Return how many logs are here."""
    return len(_logs(folder))


def _logs(folder: Path) -> list[tuple[str, str, Path]]:
    """Return when each log was started, and where it is."""
    inside = [path for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
    return [
        (manifest.started, "" if path == folder else path.name, path)
        for path in (folder, *inside)
        if (manifest := _manifest_in(path)) is not None
    ]


def read_manifest(folder: Path) -> Manifest | None:
    """Read the manifest of a log, of several the newest; None if there is no log here."""
    return _manifest_in(find_log(folder))


def _manifest_in(folder: Path) -> Manifest | None:
    path = folder / MANIFEST
    found = read_json(path, Manifest)
    if found is not None and (found.format != FORMAT or found.version > VERSION):
        raise StoreError(
            f"{path} was written by a newer outvote ({short_line(found.format)} "
            f"{short_line(found.version)}, known up to "
            f"{FORMAT} {VERSION}); upgrade outvote"
        )
    return found


class AuditLog(NamedTuple):
    """The content of a log."""

    rounds: list[AuditRound]
    """In order; of a round that is written twice, the last line counts."""
    num_unreadable: int
    """How many whole lines cannot be decoded, such as what a full disk or an editor left."""


def read_audit(folder: Path) -> list[AuditRound]:
    """Read all rounds of a log, of several the newest; none if there is no log.

    >>> read_audit(Path("no/such/folder"))
    []
    """
    return read_log(folder).rounds


def read_log(folder: Path) -> AuditLog:
    """Read all rounds; a last line without an end is being written and does not count yet.

    Of several logs the newest is read. A damaged line hides no other: an audit must not lose the
    rounds after it.
    """
    path = find_log(folder) / LINES
    try:
        lines, num_unreadable, _ = read_readable(path, AuditRound)
    except OSError as error:
        raise DamagedFileError(f"{path} cannot be read: {error}") from error
    by_round = {line.round: line for line in lines}
    return AuditLog([by_round[number] for number in sorted(by_round)], num_unreadable)


LONG_OR_SHORT = 3.0
"""By which factor the norm of an outlier differs from the median of its round."""
FEWEST = 3
"""Of two clients nobody is the outlier."""
REVERSED = 0.25
"""By how much the cosine of an outlier is below the median of its round; it is negative, too."""


def norm_ratios(norms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return norms over the median of their round, ``[..., clients]``; NaN: not known."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios: NDArray[np.float64] = norms / _median(norms)
    return np.where(np.isfinite(norms), ratios, np.nan)


def is_norm_outlier(norms: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return whether a norm is unlike those of its round, ``[..., clients]``.

    >>> is_norm_outlier(np.array([1.0, 1.2, 0.9, 40.0, np.nan])).tolist()
    [False, False, False, True, False]
    """
    ratios = norm_ratios(norms)
    with np.errstate(invalid="ignore"):
        return (ratios > LONG_OR_SHORT) | (ratios < 1 / LONG_OR_SHORT)


def is_cosine_outlier(cosines: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return whether a client points against the update, unlike its round, ``[..., clients]``.

    >>> is_cosine_outlier(np.array([0.8, 0.7, 0.9, -0.9, -0.1])).tolist()
    [False, False, False, True, True]
    >>> is_cosine_outlier(np.array([0.1, 0.05, 0.1, -0.1])).tolist()
    [False, False, False, False]
    """
    with np.errstate(invalid="ignore"):
        return (cosines < 0) & (cosines < _median(cosines) - REVERSED)


def _median(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the median of the known values of each round, ``[..., 1]``; NaN if they are few."""
    is_enough = (~np.isnan(values)).sum(axis=-1, keepdims=True) >= FEWEST
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.where(is_enough, np.nanmedian(values, axis=-1, keepdims=True), np.nan)
