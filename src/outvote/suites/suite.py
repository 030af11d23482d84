"""A suite: several grids of runs, and how each is shown."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, final, get_args

from outvote.errors import closest
from outvote.grids import Table, expand, flat, merged
from outvote.limits import read_settings_text
from outvote.results.labels import is_same, label, value_of
from outvote.results.run import Result
from outvote.suites.paper import Printed, Wanted, read_printed
from outvote.text import LONGEST_MESSAGE, MOST_NESTED, nesting, shortened

Axis = Literal["rule", "attack"]
Kind = Literal["table", "selection", "deviation", "clients"]
"""How a part is shown: accuracies, one of the paper's two figures, or what honest clients get."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteTable:
    """The keys of a suite's file."""

    title: str | None = None
    """What the suite is, in a few words; left out: the name of the file. Allowed: any text."""
    description: str = ""
    """A longer text, for `outvote show`. Allowed: any text."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of all parts. Allowed: the settings of a run, and preset."""
    part: Sequence[Mapping[str, Any]] = ()
    """The grids of runs, each a table with the keys below. Allowed: at least one."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PartTable:
    """The keys of one part in a suite's file."""

    name: str = "main"
    """The name of the part, for `--part`. Allowed: a name that no other part of the suite has."""
    title: str = ""
    """What the part is, in a few words. Allowed: any text."""
    columns: str = "attack"
    """What the columns of its table differ in; rows are rules. Allowed: attack, a setting such as
    `data.beta`, or a parameter of rules or attacks such as `rule.num_groups`."""
    kind: Kind = "table"
    """How it is shown: a table of accuracies, the paper's figure 1 (selection) or 2 (deviation), or
    what honest clients get (clients)."""
    paper: Mapping[str, Any] | None = None
    """Where the numbers of the paper are, a table with the keys below; left out: there are
    none. Allowed: file and column, and if needed where and empty."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of this part, over those of all parts. Allowed: the settings of a run, and preset;
    rule and attack are needed, here or for all parts."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One grid of runs: a row for each rule, a column for each value of one setting."""

    name: str
    title: str
    columns: str
    """The setting that the columns differ in, such as "attack", "data.beta", "rule.num_groups"."""
    kind: Kind
    settings: Mapping[str, Any]
    """What `outvote run` takes."""
    wanted: Wanted | None
    """Where the paper's numbers are."""

    @property
    def rows(self) -> list[str]:
        """The names of the rules, in order."""
        return list(dict.fromkeys(label(each["rule"]) for each in self._grid()))

    @property
    def values(self) -> list[Any]:
        """The values of the columns, in order."""
        return list(dict.fromkeys(value_of(each, self.columns) for each in self._grid()))

    @property
    def seeds(self) -> list[int]:
        """The seeds that every cell is to have."""
        return _listed(self.settings.get("seed", 0))

    def ignored(self, key: Axis) -> list[str]:
        """Return the parameter of rules or attacks that columns are made of, if they are."""
        is_so = self.columns.startswith(f"{key}.")
        return [self.columns.removeprefix(f"{key}.")] if is_so else []

    def texts(self, key: Axis) -> list[str]:
        """Return the rules or attacks as they are written."""
        return _listed(self.settings.get(key, []))

    def can_show(self, key: Axis, text: str) -> bool:
        """Return whether it has a row for a rule, or a column for an attack."""
        if key == "attack":
            return self.columns == "attack"
        is_parameter = self.columns.startswith("rule.")
        return not is_parameter or value_of({"rule": text}, self.columns) is not None

    def held(self, results: Sequence[Result]) -> list[Result]:
        """Return the runs that belong to this part, whatever their seeds."""
        wanted = [flat(each) for each in self._grid()]
        return [result for result in results if any(_describes(each, result) for each in wanted)]

    def holds(self, result: Result) -> bool:
        """Return whether a run belongs to this part, whatever its seed."""
        return bool(self.held([result]))

    def printed(self) -> dict[tuple[str, Any], Printed]:
        """Return the paper's numbers by row and column."""
        return {} if self.wanted is None else read_printed(self.wanted)

    def _grid(self) -> Iterator[dict[str, Any]]:
        own = {key: value for key, value in self.settings.items() if key not in ("seed", "preset")}
        yield from expand(own)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """Parts that are run together."""

    name: str
    title: str
    description: str
    parts: tuple[Part, ...]


def suite_names() -> list[str]:
    """Return the names of the suites that come with outvote."""
    return sorted(_shipped())


def read_suite(name: str) -> Suite:
    """Read a suite by its name, or from a file of one's own (path.toml)."""
    if name.endswith(".toml"):
        path = Path(name)
        if not path.is_file():
            raise ValueError(f"there is no file {name}; check the path.")
        return _parsed(path.stem, path)
    shipped = _shipped()
    if name not in shipped:
        raise ValueError(f"unknown suite {name!r}; {closest(name, shipped)}")
    return _parsed(name, shipped[name])


def _describes(wanted: Table, result: Result) -> bool:
    """Return whether a run has all settings of a flat table."""
    return all(
        is_same(value, result.config[key])
        if key in ("rule", "attack")
        else result.setting(key) == value
        for key, value in wanted.items()
    )


def _parsed(name: str, file: Any) -> Suite:
    try:
        return make_suite(name, tomllib.loads(read_settings_text(file)))
    except RecursionError:
        raise ValueError(f"suite {name} has too many brackets inside each other.") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"suite {name}: {shortened(str(error), LONGEST_MESSAGE)}") from error


def make_suite(name: str, table: Table) -> Suite:
    """Make a suite of the content of its file."""
    _check_keys(table, SuiteTable, "")
    given = SuiteTable(**table)
    shared = _as_table("settings", given.settings)
    if not isinstance(given.part, list) or not given.part:
        raise ValueError("a suite needs at least one [[part]].")
    return Suite(
        name=name,
        title=name if given.title is None else str(given.title),
        description=str(given.description),
        parts=_distinct([_part(_as_table("[part]", each), shared) for each in given.part]),
    )


def _distinct(parts: list[Part]) -> tuple[Part, ...]:
    """Refuse parts of the same name, and parts that a run could belong to by mistake."""
    names = [part.name for part in parts]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{names.count(name)} parts are named {name!r}; rename all but one.")
    keys = [set(flat(part.settings)) for part in parts]
    for part, own in zip(parts, keys, strict=True):
        for missing in sorted(set().union(*keys) - own - {"seed"}):
            raise ValueError(
                f"part {part.name!r} has no {missing}, as another part has; give it a value there "
                "or in [settings]."
            )
    return tuple(parts)


def _part(table: Table, shared: Table) -> Part:
    _check_keys(table, PartTable, "part.")
    given = PartTable(**table)
    kind, name = given.kind, str(given.name)
    if kind not in get_args(Kind):
        raise ValueError(f"part.kind: unknown value {kind!r}; {closest(str(kind), get_args(Kind))}")
    settings = merged(shared, _as_table("part.settings", given.settings))
    _check_texts(name, settings)
    part = Part(
        name=name,
        title=str(given.title),
        columns=str(given.columns),
        kind=kind,
        settings=settings,
        wanted=_read_wanted(given.paper),
    )
    if part.values == [None]:
        known = [key for key in flat(settings) if key not in ("seed", "preset")]
        raise ValueError(
            f"part {name!r}: its columns differ in {part.columns!r}, which its settings do not "
            f"give; {closest(part.columns, known)}"
        )
    return part


def _shipped() -> dict[str, Any]:
    found = files("outvote.suites").iterdir()
    return {each.name[: -len(".toml")]: each for each in found if each.name.endswith(".toml")}


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list) else [value]


def _check_keys(table: Table, kind: type, above: str) -> None:
    known = [each.name for each in fields(kind)]
    for key in table:
        if key not in known:
            raise ValueError(f"unknown key {above + key!r}; {closest(key, known)}")


def _as_table(what: str, value: Any) -> Table:
    if not isinstance(value, Mapping):
        raise ValueError(f"{what} is a table, got {value!r}; write [{what}].")  # noqa: TRY004
    return value


def _check_texts(part: str, settings: Table) -> None:
    for key in ("rule", "attack"):
        if key not in settings:
            raise ValueError(f"part {part!r} names no {key}; add {key} = ... to its settings.")
        for each in _listed(settings[key]):
            if not isinstance(each, str):
                raise ValueError(  # noqa: TRY004
                    f"part {part!r}: {key} is a text or a list of texts, got {each!r}."
                )
            if nesting(each) > MOST_NESTED:
                raise ValueError(
                    f"part {part!r}: {key} {shortened(each)!r} has more than {MOST_NESTED} "
                    "parentheses inside each other; wrap fewer."
                )


def _read_wanted(value: Any) -> Wanted | None:
    """Return where the paper's numbers are; None if the suite has none."""
    if value is None:
        return None
    table = _as_table("part.paper", value)
    _check_keys(table, Wanted, "part.paper.")
    for key in ("file", "column"):
        if key not in table:
            raise ValueError(f"part.paper needs {key!r}, got {dict(table)}.")
    shipped = (files("outvote.suites") / "paper").iterdir()
    known = sorted(each.name.removesuffix(".csv") for each in shipped)
    if table["file"] not in known:
        raise ValueError(
            f"part.paper.file: unknown value {table['file']!r}; "
            f"{closest(str(table['file']), known)}"
        )
    return Wanted(**table)
