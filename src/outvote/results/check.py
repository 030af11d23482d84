"""The check of a run: every reader of run folders relies on it.

A run that is over has the checksums of its files in status.json.
"""

import hashlib
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, final

import msgspec

from outvote.results.checkpoint import NEWEST, read_checkpoint
from outvote.results.disk import (
    DamagedFileError,
    StoreError,
    is_locked,
    open_regular,
    read_bounded,
    read_lines,
)
from outvote.results.folder import CONFIG_NAME, CONTENT, ENVIRONMENT_NAME, METRICS_NAME, RunFolder
from outvote.results.folder import STATUS_NAME as STATUS
from outvote.results.round import Round
from outvote.results.schema import Environment, Status, Sums
from outvote.text import MOST_LETTERS, MOST_NESTED, nesting, short_line, shortened

NEEDED = (STATUS, CONFIG_NAME, ENVIRONMENT_NAME, METRICS_NAME)
"""Without one of these, the numbers of a run are not known."""
NAME = re.compile(r"-seed(\d+)-([0-9a-f]{12})$")
"""The end of the name of a run folder."""
MOST_CLIENTS = 10_000_000
MOST_COUNTED = 1 << 53
"""Counts below are exact as floats, too."""
REMEDY = "the command that made the run repairs it, or runs it again"


class Fault(NamedTuple):
    """What is wrong with a file of a run."""

    file: str
    text: str


@final
@dataclass(slots=True)
class CheckedRun:
    """The content of a run folder, as far as it can be read, and its faults."""

    folder: RunFolder
    status: Status | None = None
    """None: never started, or damaged. A run whose process has ended is "interrupted"."""
    config: Mapping[str, Any] | None = None
    environment: Environment | None = None
    rounds: list[Round] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    @property
    def is_usable(self) -> bool:
        """Whether its numbers are sound."""
        return not any(fault.file in NEEDED for fault in self.faults)

    def add(self, file: str, text: str) -> None:
        """Add a fault."""
        self.faults.append(Fault(file, shortened(text)))

    def raise_fault(self) -> None:
        """Raise the first fault that concerns its numbers."""
        for fault in self.faults:
            if fault.file in NEEDED:
                raise DamagedFileError(f"{self.folder.path / fault.file} {fault.text}")

    def texts(self) -> tuple[str, ...]:
        """Return the faults, each with the path of its file."""
        return tuple(f"{self.folder.path / each.file} {each.text}" for each in self.faults)


def check_run(folder: RunFolder, *, deep: bool = False) -> CheckedRun:
    """Read and check all files of a run; `deep`: the checkpoint too, which may be large.

    A folder of a newer outvote is a StoreError.
    """
    found = CheckedRun(folder)
    _read_status(found)
    _read_settings(found)
    _read_environment(found)
    _read_rounds(found)
    status = found.status
    if status is not None and (status.is_over or status.sums is not None):
        _check_sums(found, status, status.sums)
    if deep and (folder.path / NEWEST).exists():
        _check_checkpoint(found)
    return found


def read_settings(path: Path) -> dict[str, Any]:
    """Read config.toml; a damaged one is a DamagedFileError."""
    try:
        config = tomllib.loads(read_bounded(path).decode())
    # A ValueError: no UTF-8, no TOML, or a number of thousands of digits.
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedFileError(f"cannot be read: {short_line(error)}") from error
    check_settings(config)
    return config


def check_settings(config: Mapping[str, Any]) -> None:
    """Refuse settings that lack what every run has."""
    for key, kind in (("rule", str), ("attack", str), ("seed", int)):
        found = config.get(key)
        if not isinstance(found, kind) or not str(found).strip():
            raise DamagedFileError(f"is damaged: its {key} is {repr(found)[:80]}")
        if isinstance(found, str) and nesting(found) > MOST_NESTED:
            raise DamagedFileError(f"is damaged: its {key} has too many parentheses")
        if isinstance(found, str) and len(found) > MOST_LETTERS:
            raise DamagedFileError(f"is damaged: its {key} has {len(found):,} characters")
    federation = config.get("federation")
    number = federation.get("num_clients") if isinstance(federation, Mapping) else None
    if isinstance(number, int) and not 0 <= number <= MOST_CLIENTS:
        raise DamagedFileError(f"is damaged: it has {short_line(number)} clients")


def _read_status(found: CheckedRun) -> None:
    folder = found.folder
    try:
        status = folder.status()
    except DamagedFileError as error:
        found.add(STATUS, str(error).removeprefix(f"{folder.path / STATUS} "))
        return
    if status is None:
        if folder.is_begun():
            found.add(STATUS, "is gone")
        return
    if status.outcome == "running" and is_locked(folder.path) is False:
        reason = f"its process ended after round {status.round}; run it again to resume"
        status = msgspec.structs.replace(status, outcome="interrupted", reason=reason)
    found.status = status
    if not 0 <= status.round <= status.num_rounds:
        found.add(STATUS, f"is damaged: {status.round} of {status.num_rounds} rounds are done")
    elif status.outcome == "finished" and status.round != status.num_rounds:
        found.add(
            STATUS, f"is damaged: finished after {status.round} of {status.num_rounds} rounds"
        )


def _read_settings(found: CheckedRun) -> None:
    path = found.folder.path / CONFIG_NAME
    if not path.exists():
        # The status of a run that could not be built is written without settings.
        if found.status is not None and (found.status.is_over or found.status.round > 0):
            found.add(CONFIG_NAME, "is gone")
        return
    try:
        found.config = read_settings(path)
    except DamagedFileError as error:
        found.add(CONFIG_NAME, str(error))
        return
    name = NAME.search(found.folder.path.name)
    if name is not None and int(name[1]) != found.config["seed"]:
        found.add(CONFIG_NAME, f"belongs to another run: its seed is {found.config['seed']}")


def _read_environment(found: CheckedRun) -> None:
    path = found.folder.path / ENVIRONMENT_NAME
    try:
        found.environment = found.folder.environment()
    except DamagedFileError as error:
        found.add(ENVIRONMENT_NAME, str(error).removeprefix(f"{path} "))
        return
    status = found.status
    if found.environment is None and status is not None and status.is_over:
        found.add(ENVIRONMENT_NAME, "is gone")


def _read_rounds(found: CheckedRun) -> None:
    status, path = found.status, found.folder.metrics
    try:
        found.rounds = read_lines(path, Round)
    except OSError as error:
        found.add(METRICS_NAME, f"cannot be read: {error}")
        return
    if status is None:
        return
    num_rounds = len(found.rounds)
    if [each.round for each in found.rounds] != list(range(1, num_rounds + 1)):
        found.add(METRICS_NAME, "is damaged: its rounds are not 1, 2, 3, ...")
    elif status.is_over and num_rounds != status.round:
        what = f"{status.round} rounds are done, and {num_rounds} can be read"
        found.add(METRICS_NAME, f"is damaged: {what}" if path.exists() else f"is gone: {what}")
    elif num_rounds < status.round and is_locked(found.folder.path) is not True:
        found.add(
            METRICS_NAME,
            f"is damaged: {status.round} rounds are saved, and {num_rounds} can be read",
        )
    elif fault := _fault_of_rounds(found.rounds, found.config or {}):
        found.add(METRICS_NAME, f"is damaged: {fault}")


def _fault_of_rounds(rounds: Sequence[Round], config: Mapping[str, Any]) -> str:
    """Return a record that no run can have; "" if there is none."""
    federation = config.get("federation")
    limit = federation.get("num_clients") if isinstance(federation, Mapping) else None
    limit = limit if isinstance(limit, int) else MOST_CLIENTS
    for each in rounds:
        if fault := _fault_of_round(each, limit):
            return f"round {each.round} {fault}"
    accuracies = rounds[-1].client_accuracies if rounds else None
    most = max((max(each.clients, default=-1) for each in rounds), default=-1)
    if accuracies is not None and most >= len(accuracies):
        return f"its last line has {len(accuracies)} clients, and others took part"
    return ""


def _fault_of_round(each: Round, limit: int) -> str:
    clients = set(each.clients)
    others = (*each.byzantine, *(each.kept or ()), *each.rejected)
    counts = (each.num_samples, each.num_byzantine_assumed, each.num_byzantine_used)
    if len(clients) != len(each.clients) or len(each.scores) != len(each.clients):
        return "has not one score for each client"
    if clients and not (min(clients) >= 0 and max(clients) < limit):
        return f"has clients outside 0 to {limit - 1}"
    if not clients.issuperset(others):
        return "names clients that were not sampled"
    if any(abs(count) >= MOST_COUNTED for count in counts):
        return "has a count that is too large"
    if each.accuracy is not None and not 0 <= each.accuracy <= 1:
        return f"has the accuracy {each.accuracy}"
    return ""


def _check_sums(found: CheckedRun, status: Status, sums: Sums | None) -> None:
    path = found.folder.path
    if sums is None:
        found.add(STATUS, "is damaged: it has no checksums")
        return
    if status.checksum() != sums.checksum:
        found.add(STATUS, "is damaged: its checksum is wrong")
        return
    name = NAME.search(path.name)
    if name is not None and name[2] != sums.run:
        found.add(STATUS, f"belongs to another run: {sums.run}")
    known = {fault.file for fault in found.faults}
    if others := [file for file in sums.files if file not in CONTENT]:
        # A path from elsewhere may lead anywhere.
        found.add(STATUS, f"is damaged: it has the checksum of {short_line(others[0])}")
        return
    for file, wanted in sums.files.items():
        if file not in known and (fault := _fault_of_file(path / file, wanted)):
            found.add(file, fault)


def _fault_of_file(path: Path, wanted: str) -> str:
    try:
        with open_regular(path) as file:
            got = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    except FileNotFoundError:
        return "is gone"
    except OSError as error:
        return f"cannot be read: {error}"
    return "" if got == wanted else "is damaged: its checksum is wrong"


def _check_checkpoint(found: CheckedRun) -> None:
    path, status = found.folder.path, found.status
    name = NAME.search(path.name)
    try:
        checkpoint = read_checkpoint(path / NEWEST)
    except StoreError as error:
        found.add(NEWEST, str(error).removeprefix(f"{path / NEWEST} "))
        return
    if name is not None and checkpoint.config != name[2]:
        found.add(NEWEST, f"belongs to another run: {checkpoint.config}")
    elif status is not None and status.is_over and checkpoint.round != status.round:
        found.add(NEWEST, f"is that of round {checkpoint.round}, and {status.round} are done")
