"""From a file of settings or a suite to runs: presets, overrides, grids."""

import tomllib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, final, get_args, get_origin, get_type_hints

import msgspec
from msgspec import structs

from outvote.errors import closest, plural
from outvote.experiment.run_spec import DataSpec, RunSpec, as_table, checked, file_digests, to_toml
from outvote.grids import expand, flat, merged, nested
from outvote.limits import TooLargeError, read_settings_text
from outvote.loading import check_allowed, set_project
from outvote.results.check import CheckedRun, check_run
from outvote.results.disk import DamagedFileError
from outvote.results.folder import RunFolder, Writer
from outvote.results.labels import names_of, user_files, value_of
from outvote.results.run import KeptRun
from outvote.results.schema import CodeUsed, DataUsed, Environment, Outcome, PackageUsed, Status
from outvote.suites.presets import PRESETS
from outvote.suites.suite import Part, Suite
from outvote.text import LONGEST_MESSAGE, short_line, shortened

_hints = cache(get_type_hints)
LONGEST_NAME = 100
"""Of a suite, in bytes."""


class OutsideSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of a file that are not settings of a run."""

    preset: str | None = None
    """Settings to start from, which those of the file override; left out: the defaults. Allowed:
    the presets below."""
    suite: str | None = None
    """The name of the folder of the runs; left out: the name of the file. Allowed: up to 100
    printable characters, no slash, no dot in front."""


OUTSIDE = OutsideSpec.__struct_fields__


@final
@dataclass(frozen=True, slots=True)
class Job:
    """One run of a suite, and its folder."""

    spec: RunSpec
    suite: str
    root: Path
    hash: str
    """Of the settings when the plan was made."""
    kept: KeptRun | None = None
    """What holds its results instead of a folder, where nothing is to be stored."""

    @property
    def name(self) -> str:
        """The name of its folder."""
        return f"{self.spec.label}-{self.hash}"

    @property
    def folder(self) -> RunFolder:
        """The folder of its results."""
        return RunFolder(self.root / self.suite / self.name)

    @property
    def status(self) -> Status:
        """Its status; that of a new run, if it was never started or it is damaged."""
        return self.checked()[0]

    def checked(self) -> tuple[Status, CheckedRun | None]:
        """Return its status, and the check of a run that is damaged; None: there is no damage."""
        new = Status(outcome="interrupted", round=0, num_rounds=self.spec.rounds)
        if self.kept is not None:
            return self.kept.status or new, None
        found = check_run(self.folder)
        status = found.status
        is_known = status is not None and not (status.is_over and found.faults)
        # A run that is not over is checked when it resumes, against its checkpoint.
        is_damaged = bool(found.faults) and (status is None or status.is_over or bool(status.sums))
        return (status if is_known and status else new), (found if is_damaged else None)

    def check_code(self) -> None:
        """Refuse user code that has changed since the plan was made."""
        if self.kept is None and self.spec.hash != self.hash:
            raise ValueError(
                f"a file of {self.spec.label} was changed since the sweep began; run the same "
                "command again to use the new version."
            )

    def with_code(self, environment: Environment) -> Environment:
        """Add the user's files and the packages of its rule, attack, model, data and training."""
        code, packages = [], []
        for path, checksum in file_digests(*self.spec.user_texts).items():
            code.append(CodeUsed(path=path, checksum=checksum))
        for each in self.spec.plugins:
            packages.append(
                PackageUsed(
                    kind=each.kind, name=each.name, package=each.package, version=each.version
                )
            )
        return msgspec.structs.replace(environment, code=tuple(code), packages=tuple(packages))

    def known_data(self) -> str | None:
        """Return the checksum of the data in env.json; None if it cannot be read."""
        try:
            environment = self.folder.environment()
        except DamagedFileError:
            return None
        return environment.data.checksum if environment and environment.data else None

    def data_fault(self, known: str | None, now: DataUsed) -> str:
        """Return the fault if the data has changed since the run was executed; else ""."""
        if known is None or known == now.checksum:
            return ""
        return (
            f"{self.folder.path} was run on other samples of {now.name}: checksum {known[:16]} "
            f"expected, got {now.checksum[:16]} from {now.source}; restore the former ones, or "
            "choose another --output."
        )

    def writer(self) -> Writer | KeptRun:
        """Create and lock the folder."""
        if self.kept is not None:
            return self.kept
        return Writer(self.folder, to_toml(self.spec, self.suite).encode(), self.hash)

    def fail(self, writer: Writer | KeptRun, reason: str, traceback: str = "") -> "RunEnd":
        """Write that the run failed; its rounds stay."""
        done, total = self.status.round, self.spec.rounds
        writer.write_status(Status(outcome="failed", round=done, num_rounds=total, reason=reason))
        return RunEnd(job=self, outcome="failed", reason=reason, traceback=traceback)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """The outcome of a run."""

    job: Job
    outcome: Outcome | str
    """Or "busy": another process works on it."""
    reason: str = ""
    is_new: bool = True
    """False if it was over before."""
    traceback: str = ""
    """Of the error that ended it; not stored."""


@final
@dataclass(frozen=True, slots=True)
class Plan:
    """The runs that a file describes, and the suite that they belong to."""

    suite: str
    specs: tuple[RunSpec, ...]
    hashes: tuple[str, ...]
    """Of the specs, when the plan was made."""

    @property
    def by_hash(self) -> dict[str, RunSpec]:
        """The specs by their hashes."""
        return dict(zip(self.hashes, self.specs, strict=True))

    @property
    def notes(self) -> list[str]:
        """What a user may not expect of these runs."""
        found = []
        for spec in self.specs:
            if spec.federation.assumes_majority:
                found.append(spec.federation)
        if not found:
            return []
        values = ", ".join(dict.fromkeys(str(each.assumed_byzantine) for each in found))
        text = (
            f"{len(found)} of {plural(len(self.specs), 'run')} "
            f"{'assumes' if len(found) == 1 else 'assume'} that half of a round's "
            f"clients or more are Byzantine (federation.assumed_byzantine = {values}); a majority "
            "cannot be outvoted: assume less than half, or 'oracle'."
        )
        return [text]

    def jobs(self, root: Path | None) -> list[Job]:
        """Return the runs, with their folders below `root`; None: nothing is stored."""
        jobs = []
        for known, spec in zip(self.hashes, self.specs, strict=True):
            kept = KeptRun(to_toml(spec, self.suite), known) if root is None else None
            jobs.append(Job(spec, self.suite, root or Path(), known, kept))
        return jobs


def stack_key(spec: RunSpec) -> Hashable:
    """Return the settings that runs must share to train together."""
    free = {"byzantine": 0, "assumed_byzantine": "oracle", "selection": "uniform"}
    federation = structs.replace(spec.federation, **free)
    data = DataSpec(name=spec.data.name, image_size=spec.data.image_size)
    each = {"rule": "", "attack": "", "seed": 0, "root_size": 0}
    return structs.replace(spec, **each, data=data, federation=federation)


def read_plan(path: Path, settings: Sequence[str] = ()) -> Plan:
    """Read a file; `settings` are overrides such as "data.beta=0.1"."""
    try:
        table = tomllib.loads(read_settings_text(path))
    except FileNotFoundError:
        raise ValueError(f"there is no file {path}; check the path.") from None
    except (OSError, UnicodeDecodeError, TooLargeError) as error:
        raise ValueError(f"{path} cannot be read: {error}.") from error
    except ValueError as error:  # No TOML, or a number of thousands of digits.
        raise ValueError(f"{path} is not valid TOML: {short_line(error)}.") from error
    except RecursionError:
        raise ValueError(f"{path} has too many brackets inside each other.") from None
    set_project(path.parent)
    try:
        return make_plan(table, settings, suite=path.stem)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {shortened(str(error), LONGEST_MESSAGE)}") from error


def make_plan(
    table: Mapping[str, Any], settings: Sequence[str] = (), *, suite: str = "runs"
) -> Plan:
    """Make the runs of a table of settings: every list multiplies them."""
    for text in settings:
        table = merged(table, parse_override(text))
    name = table.get("preset")
    if name is not None and (not isinstance(name, str) or name not in PRESETS):
        raise ValueError(f"unknown preset {name!r}; {closest(str(name), PRESETS)}")
    folder: Any = table.get("suite", suite)
    if not is_suite_name(folder):
        raise ValueError(
            f"suite must be the name of a folder: up to {LONGEST_NAME} printable characters, no "
            f"slash, no dot in front, got {shortened(str(folder))!r}."
        )
    own = {key: value for key, value in table.items() if key not in OUTSIDE}
    whole = merged(PRESETS[name] if name else {}, own)
    _check_code(whole)
    specs = [checked(make_spec(each)) for each in expand(whole)]
    by_hash = {spec.hash: spec for spec in specs}
    return Plan(folder, tuple(by_hash.values()), tuple(by_hash))


def _check_code(table: Mapping[str, Any]) -> None:
    """Refuse user code that nobody has allowed, whichever setting names it."""
    for value in flat(table).values():
        for text in value if isinstance(value, list) else [value]:
            for path in user_files(text) if isinstance(text, str) else ():
                check_allowed(path)


def is_suite_name(name: Any) -> bool:
    """Return whether a word is the name of a folder inside the store, on any system.

    >>> [is_suite_name(name) for name in ("table-1", "..", "a/b", "")]
    [True, False, False, False]
    """
    return (
        isinstance(name, str)
        and 0 < len(name.encode(errors="replace")) <= LONGEST_NAME
        and name.isprintable()
        and not name.startswith((".", " "))
        and not name.endswith((".", " "))
        and not set(name) & set('/\\:*?"<>|')
    )


def plan_parts(suite: Suite, settings: Sequence[str] = ()) -> list[Plan]:
    """Return the runs of each part."""
    return [plan_part(suite, part, settings) for part in suite.parts]


def plan_part(suite: Suite, part: Part, settings: Sequence[str] = ()) -> Plan:
    """Return the runs of one part."""
    try:
        return make_plan(part.settings, settings, suite=suite.name)
    except (ValueError, TypeError) as error:
        why = shortened(str(error), LONGEST_MESSAGE)
        raise ValueError(f"suite {suite.name}, part {shortened(part.name)}: {why}") from error


def plan_suite(suite: Suite, settings: Sequence[str] = ()) -> Plan:
    """Return the runs of all parts."""
    return join_plans(suite, plan_parts(suite, settings))


def join_plans(suite: Suite, plans: Sequence[Plan]) -> Plan:
    """Return the runs of several parts as one plan; a run of several parts occurs once."""
    found = {known: spec for plan in plans for known, spec in plan.by_hash.items()}
    return Plan(suite.name, tuple(found.values()), tuple(found))


def table_cells(part: Part, plan: Plan) -> dict[str, tuple[str, Any]]:
    """Return the row and the column of each run of a part, by its hash."""
    rules = names_of((spec.rule for spec in plan.specs), part.ignored("rule"))
    attacks = names_of((spec.attack for spec in plan.specs), part.ignored("attack"))

    def column(spec: RunSpec) -> Any:
        is_attack = part.columns == "attack"
        return attacks[spec.attack] if is_attack else value_of(as_table(spec), part.columns)

    return {known: (rules[spec.rule], column(spec)) for known, spec in plan.by_hash.items()}


def make_spec(table: Mapping[str, Any]) -> RunSpec:
    """Make one run of plain values."""
    try:
        return msgspec.convert(_checked_table(table, RunSpec, ""), RunSpec)
    except msgspec.ValidationError as error:
        raise ValueError(_in_words(str(error))) from error


def parse_override(text: str) -> Mapping[str, Any]:
    """Parse an override such as "data.beta=0.1" as a table."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ValueError(f"a setting is written key=value, as in data.beta=0.1, got {text!r}.")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except RecursionError:
        raise ValueError(f"{key.strip()} has too many brackets inside each other.") from None
    except tomllib.TOMLDecodeError:
        parsed = value.strip()  # A word without quotes, such as a rule.
    if value.strip() in ("nan", "inf"):
        parsed = value.strip()  # Attacks; no setting may be such a number.
    return nested(key.strip(), parsed)


def _checked_table(table: Mapping[str, Any], kind: type, above: str) -> dict[str, Any]:
    """Check the keys and words of a table; return it with None for the word "none"."""
    hints, result = _hints(kind), {}
    for key, value in table.items():
        if key not in hints:
            known = [*hints, *(() if above else OUTSIDE)]
            raise ValueError(f"unknown key {above + key!r}; {closest(str(key), known)}")
        hint = hints[key]
        if not isinstance(hint, type) or not _hints(hint):
            result[key] = _checked_word(above + key, value, hint)
        elif isinstance(value, Mapping):
            result[key] = _checked_table(value, hint, f"{above}{key}.")
        else:
            raise ValueError(f"{above}{key} is a table, got {value!r}; write [{above}{key}].")
    return result


def _checked_word(key: str, value: Any, hint: Any) -> Any:
    if key == "training.learning_rate" and isinstance(value, list):
        raise ValueError(
            f"{key}: expected a number, got {value}; a list of numbers is a grid, and the rates of "
            "rounds are a schedule, as in training.schedule = [[2, 0.05], [3, 0.01]]."
        )
    kinds = get_args(hint) if get_origin(hint) is not Literal else (hint,)
    if value == "none" and type(None) in kinds:
        return None
    words = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
    if words and isinstance(value, str) and value not in words:
        raise ValueError(f"{key}: unknown value {value!r}; {closest(value, words)}")
    return value


def _in_words(message: str) -> str:
    """Turn "Expected `int`, got `str` - at `$.rounds`" into "rounds: expected int, got str."."""
    what, _, key = message.partition(" - at `$.")
    what, key = what.replace("`", "").rstrip("."), key.rstrip("`")
    return f"{key}: {what[0].lower()}{what[1:]}." if key else f"{what}."
