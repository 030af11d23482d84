"""From a file of settings to runs: presets, overrides, grids; mistakes are told in one line."""

import tomllib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from outvote.errors import OutvoteWarning, closest
from outvote.experiment.checking import checked
from outvote.experiment.job import Job
from outvote.experiment.spec import Spec
from outvote.grids import expand, merged, nested
from outvote.results.renamed import SETTINGS, renamed_settings
from outvote.suites.presets import PRESETS

OUTSIDE = ("preset", "suite")


@dataclass(frozen=True, slots=True)
class Plan:
    """The runs that a file describes, and the folder that they belong to."""

    suite: str
    specs: tuple[Spec, ...]
    hashes: tuple[str, ...]
    """Of the specs, when the plan was made."""

    def jobs(self, root: Path) -> list[Job]:
        """Return the runs, with their folders below `root`."""
        return [
            Job(spec, self.suite, root, known)
            for spec, known in zip(self.specs, self.hashes, strict=True)
        ]


def read_plan(path: Path, settings: Sequence[str] = ()) -> Plan:
    """Read a file; `settings` are overrides such as "data.beta=0.1"."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"there is no file {path}; check the path.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}.") from error
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is not valid TOML: {error}.") from error
    try:
        return make_plan(table, settings, suite=path.stem)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from error


def make_plan(
    table: Mapping[str, Any], settings: Sequence[str] = (), *, suite: str = "runs"
) -> Plan:
    """Make the runs of a table of settings: every list multiplies them."""
    table = with_new_names(table)
    for text in settings:
        table = merged(table, with_new_names(override(text)))
    name = table.get("preset")
    if name is not None and (not isinstance(name, str) or name not in PRESETS):
        raise ValueError(f"unknown preset {name!r}; {closest(str(name), PRESETS)}")
    folder: Any = table.get("suite", suite)
    if not isinstance(folder, str) or Path(folder).name != folder:
        raise ValueError(f"suite must be the name of a folder, got {folder!r}.")
    own = {key: value for key, value in table.items() if key not in OUTSIDE}
    whole = merged(PRESETS[name] if name else {}, own)
    specs = [checked(make_spec(each)) for each in expand(whole)]
    by_hash = {spec.hash: spec for spec in specs}
    return Plan(folder, tuple(by_hash.values()), tuple(by_hash))


def with_new_names(table: Mapping[str, Any]) -> Mapping[str, Any]:
    """Rename the keys of version 0.1, with a warning."""
    for old, new in SETTINGS.items():
        section, _, key = old.partition(".")
        inside = table.get(section)
        if isinstance(inside, Mapping) and key in inside:
            warnings.warn(f"{old} is now {new}; rename it.", OutvoteWarning, stacklevel=2)
            table = renamed_settings(table)
    return table


def make_spec(table: Mapping[str, Any]) -> Spec:
    """Make one run of plain values."""
    try:
        return msgspec.convert(_checked_table(table, Spec, ""), Spec)
    except msgspec.ValidationError as error:
        raise ValueError(_in_words(str(error))) from error


def override(text: str) -> dict[str, Any]:
    """Read an override such as "data.beta=0.1" as a table."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ValueError(f"a setting is written key=value, as in data.beta=0.1, got {text!r}.")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()  # A word without quotes, such as a rule.
    if value.strip() in ("nan", "inf"):
        parsed = value.strip()  # Attacks, and no setting may be such a number.
    return nested(key.strip(), parsed)


def _checked_table(table: Mapping[str, Any], kind: type, above: str) -> dict[str, Any]:
    """Check the keys and the words of a table; return it with none for the word "none"."""
    hints = _hints(kind)
    result = {}
    for key, value in table.items():
        if key not in hints:
            known = [*hints, *(() if above else OUTSIDE)]
            raise ValueError(f"unknown key {above + key!r}; {closest(str(key), known)}")
        inside = hints[key] if isinstance(hints[key], type) and _fields(hints[key]) else None
        if inside is not None:
            if not isinstance(value, Mapping):
                raise ValueError(f"{above}{key} is a table, got {value!r}; write [{above}{key}].")
            result[key] = _checked_table(value, inside, f"{above}{key}.")
        else:
            result[key] = _checked_word(above + key, value, hints[key])
    return result


def _checked_word(key: str, value: Any, hint: Any) -> Any:
    kinds = get_args(hint) if get_origin(hint) is not Literal else (hint,)
    if value == "none" and type(None) in kinds:
        return None
    words = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
    if words and isinstance(value, str) and value not in words:
        raise ValueError(f"{key}: unknown value {value!r}; {closest(value, words)}")
    return value


@cache
def _hints(kind: type) -> dict[str, Any]:
    return {key: hint for key, hint in get_type_hints(kind).items() if key in _fields(kind)}


def _fields(kind: type) -> tuple[str, ...]:
    return tuple(getattr(kind, "__struct_fields__", getattr(kind, "__dataclass_fields__", ())))


def _in_words(message: str) -> str:
    """Turn "Expected `int`, got `str` - at `$.rounds`" into "rounds: expected int, got str."."""
    what, _, place = message.partition(" - at `$.")
    what = what.replace("`", "").rstrip(".")
    place = place.rstrip("`")
    return f"{place}: {what[0].lower()}{what[1:]}." if place else f"{what}."
