"""From runs to grids: as their suite has them with every cell it asks for, else automatically."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from outvote.errors import closest
from outvote.grids import flat
from outvote.report.cells import Cell, Grid, family, grouped, title_of
from outvote.results.labels import is_same, names_of
from outvote.results.later import LATER
from outvote.results.run import Result
from outvote.suites.paper import Printed
from outvote.suites.suite import Axis, Part, Suite, read_suite, suite_names

NO_SETTINGS = ("suite", "seed", "rule", "attack", "diagnostics", "theory")
"""Shown elsewhere, or without influence on a result."""
CODE, CODE_DIGITS = ", code ", 7
"""How a name is marked with the version of the user's file; "unknown" has 7 letters too."""


def grids_of(
    results: Sequence[Result],
    part: str | Sequence[str] | None = None,
    sources: Sequence[str] = (),
) -> list[Grid]:
    """Lay all runs out, suite by suite; `part` names the only part wanted, or several.

    `sources` are files of suites that do not come with outvote.
    """
    in_order = sorted(results, key=lambda each: (each.suite, each.name))
    by_suite = grouped(in_order, lambda each: each.suite)
    known_sources = _sources(by_suite, sources)
    grids = [
        grid
        for name, group in by_suite.items()
        for grid in _grids_of_suite(name, group, known_sources.get(name))
    ]
    wanted = [part] if isinstance(part, str) else list(part or ())
    if not wanted:
        return grids
    known = sorted({grid.part for grid in grids if grid.part})
    for name in wanted:
        if name not in known:
            hint = closest(name, known) if known else "these runs belong to no suite with parts."
            raise ValueError(f"unknown part {name!r}; {hint}")
    return [grid for grid in grids if grid.part in wanted]


def _sources(names: Collection[str], own: Sequence[str]) -> dict[str, str]:
    """Return what to read each known suite from; a given file goes before outvote's suite."""
    found = {name: name for name in names if name in suite_names()}
    for source in own:
        name = read_suite(source).name
        if name not in names:
            known = ", ".join(sorted(names))
            raise ValueError(f"no run is of the suite {name!r} ({source}); they are of: {known}.")
        if found.get(name, name) != name:
            raise ValueError(
                f"{found[name]} and {source} are both suites called {name!r}; give one."
            )
        found[name] = source
    return found


def _grids_of_suite(name: str, results: Sequence[Result], source: str | None) -> list[Grid]:
    if source is None:
        return _automatic_grids(results, suite_title=name)
    return grids_of_suite(read_suite(source), results, source)


def grids_of_suite(suite: Suite, results: Sequence[Result], source: str) -> list[Grid]:
    """Lay runs out as a suite has them, which was read from `source` and may have been changed."""
    held = [part.held(results) for part in suite.parts]
    known = {id(each) for group in held for each in group}
    rest = []
    for each in (each for each in results if id(each) not in known):
        numbers = _parts_of_added(suite.parts, each)
        for number in numbers:
            held[number].append(each)
        if not numbers:
            rest.append(each)
    grids = []
    for part, group in zip(suite.parts, held, strict=True):
        others = _with_other_rounds(part, rest)
        added = [each for _, own in others for each in own]
        known.update(map(id, added))
        if group and _has_columns_of_one_length(part, [*group, *added]):
            grids += _grids_of_part(suite, part, [*group, *added])
            continue
        if group or not others:
            grids += _grids_of_part(suite, part, group)
        for changed, own in others:
            grids += _grids_of_part(suite, changed, own)
    rest = [each for each in rest if id(each) not in known]
    if rest:
        grids += _automatic_grids(rest, suite_title=suite.title, title="Other runs")
    return [replace(grid, source=source) for grid in grids]


def _parts_of_added(parts: Sequence[Part], result: Result) -> list[int]:
    """Return the parts that would hold a run if they had its rule, its attack, or both."""
    for keys in (("rule",), ("attack",), ("rule", "attack")):
        own = {key: result.config[key] for key in keys}
        found = [
            number
            for number, part in enumerate(parts)
            if ("attack" not in keys or part.columns == "attack")
            and replace(part, settings={**part.settings, **own}).holds(result)
        ]
        if found:
            return found
    return []


def _with_other_rounds(part: Part, results: Sequence[Result]) -> list[tuple[Part, list[Result]]]:
    """Return the runs that differ from a part in the number of rounds alone.

    With them is the part as they have it; its title names both numbers.
    """
    wanted = part.settings.get("rounds")
    found = []
    for rounds in ordered(each.setting("rounds") for each in results) if wanted else []:
        title = f"{part.title}, {rounds} instead of {wanted} rounds"
        settings = {**part.settings, "rounds": rounds}
        changed = replace(part, title=title, settings=settings)
        own = changed.held(results)
        found += [(changed, own)] if own else []
    return found


def _has_columns_of_one_length(part: Part, results: Sequence[Result]) -> bool:
    """Return whether all runs of a column have as many rounds: then one table shows them."""
    columns = grouped(results, lambda each: each.setting(part.columns))
    return all(len({each.setting("rounds") for each in own}) == 1 for own in columns.values())


Groups = dict[tuple[str, Any], list[Result]]
"""The runs of each row and column."""


def _by_cell(
    results: Sequence[Result], key: str, rules: Mapping[str, str], attacks: Mapping[str, str]
) -> Groups:
    edited = edited_files(results)

    def row_and_column(each: Result) -> tuple[str, Any]:
        rule = rules[each.config["rule"]] + code_mark(each, "rule", edited)
        mark = code_mark(each, "attack", edited)
        if key == "attack":
            return rule, attacks[each.config["attack"]] + mark
        return rule + mark, each.setting(key)

    return grouped(results, row_and_column)


def edited_files(results: Iterable[Result]) -> list[str]:
    """Return the user's files that the runs have in several versions."""
    versions: dict[str, set[str]] = {}
    for each in results:
        for path, checksum in (each.code_of("rule") | each.code_of("attack")).items():
            versions.setdefault(path, set()).add(checksum)
    return sorted(path for path, found in versions.items() if len(found) > 1)


def code_mark(result: Result, key: Axis, edited: Collection[str]) -> str:
    """Return the mark of the version of a rule or attack; "" if no file was edited."""
    found = [code for path, code in result.code_of(key).items() if path in edited]
    return f"{CODE}{' '.join(code[:CODE_DIGITS] for code in found)}" if found else ""


def _with_versions(own: Iterable[Any], found: Iterable[Any]) -> list[Any]:
    """Return the suite's own names, or the versions of each, and then the other names found."""
    others = dict.fromkeys(found)
    names = []
    for name in own:
        versions = [each for each in others if str(each).startswith(f"{name}{CODE}")]
        names += versions or [name]
    return list(dict.fromkeys([*names, *others]))


def _grids_of_part(suite: Suite, part: Part, results: Sequence[Result]) -> list[Grid]:
    """Make one table, or one for each combination of settings that the part leaves open."""
    by_column = ["rounds"] if _has_columns_of_one_length(part, results) else []
    keys = list(differing(results, ignored=[*flat(part.settings), *by_column]))
    rules, attacks = _names(part, "rule", results), _names(part, "attack", results)
    own_rows, own_attacks = _own_names(part, "rule").values(), _own_names(part, "attack").values()
    own_columns: list[Any] = list(own_attacks) if part.columns == "attack" else part.values
    grids = []
    for heading, group in split(results, keys) or [("", [])]:
        groups = _by_cell(group, part.columns, rules, attacks)
        columns = ordered(column for _, column in groups)
        grids.append(
            _grid(
                groups,
                rows=_with_versions(own_rows, (row for row, _ in groups)),
                columns=_with_versions(own_columns, columns),
                num_wanted=len(part.seeds),
                printed=part.printed(),
                suite=suite.name,
                suite_title=suite.title,
                part=part.name,
                title=", ".join(filter(None, (part.title, heading))),
                kind=part.kind,
                column_key=part.columns,
            )
        )
    return grids


def _names(part: Part, key: Axis, results: Sequence[Result]) -> dict[str, str]:
    """Return the names of rules or attacks, distinct from the part's own for those it lacks."""
    own = _own_names(part, key)
    meant = {
        text: next((each for each in own if is_same(each, text)), None)
        for text in dict.fromkeys(each.config[key] for each in results)
    }
    others = [text for text, known in meant.items() if known is None]
    names = names_of([*own, *others], part.ignored(key))
    return {text: names[text] if known is None else own[known] for text, known in meant.items()}


def _own_names(part: Part, key: Axis) -> dict[str, str]:
    """Return the names of a part's own rules or attacks: the label, unless two share it."""
    return names_of(part.texts(key), part.ignored(key))


def _automatic_grids(results: Sequence[Result], *, suite_title: str, title: str = "") -> list[Grid]:
    """Lay runs of one suite out: a row per rule, a column per attack, tables for the rest.

    If there is one attack only, the columns are the setting with the most values.
    """
    varied = differing(results)
    edited = edited_files(results)
    attacks = {each.config["attack"] + code_mark(each, "attack", edited) for each in results}
    by_attack = len(attacks) > 1 or not varied
    key = "attack" if by_attack else max(varied, key=lambda key: len(varied[key]))
    grids = []
    for heading, group in split(results, [each for each in varied if each != key]):
        rules = names_of(each.config["rule"] for each in group)
        names = names_of(each.config["attack"] for each in group)
        groups = _by_cell(group, key, rules, names)
        grids.append(
            _grid(
                groups,
                rows=sorted({row for row, _ in groups}, key=_row_order),
                columns=ordered(column for _, column in groups),
                num_wanted=len({each.seed for each in group}),
                suite=group[0].suite,
                suite_title=suite_title,
                title=", ".join(filter(None, (title, heading))),
                column_key=key,
            )
        )
    return grids


def _row_order(row: str) -> tuple[Any, ...]:
    """Put a rule before its wrapped forms."""
    return family(row), row.count("("), _order(row), row


def _grid(
    groups: Groups,
    *,
    rows: Iterable[str],
    columns: Sequence[Any],
    num_wanted: int,
    printed: Mapping[tuple[str, Any], Printed] | None = None,
    **about: Any,
) -> Grid:
    def cell(row: str, column: Any) -> Cell:
        found = sorted(groups.get((row, column), []), key=lambda each: (each.seed, each.name))
        return Cell(
            results=tuple(each for each in found if each.is_over),
            unfinished=tuple(each for each in found if not each.is_over),
            num_wanted=num_wanted,
            printed=(printed or {}).get((row, column)),
        )

    cells = {row: tuple(cell(row, column) for column in columns) for row in rows}
    return Grid(rows=tuple(cells), columns=tuple(columns), cells=tuple(cells.values()), **about)


def differing(results: Iterable[Result], ignored: Iterable[str] = ()) -> dict[str, list[Any]]:
    """Return the settings that the runs differ in, with their values in order."""
    leave = {*NO_SETTINGS, *ignored}
    tables = [flat(each.config) for each in results]
    keys = sorted({key for table in tables for key in table} - leave)
    found = {key: ordered(_value(table, key) for table in tables) for key in keys}
    return {key: values for key, values in found.items() if len(values) > 1}


def split(results: Sequence[Result], keys: Sequence[str]) -> list[tuple[str, list[Result]]]:
    """Divide runs by some settings; each group comes with a heading that names its values."""

    def values_of(each: Result) -> tuple[Any, ...]:
        table = flat(each.config)
        return tuple(_value(table, key) for key in keys)

    groups = grouped(results, values_of)
    return [
        (", ".join(map(title_of, keys, values)), groups[values])
        for values in sorted(groups, key=lambda values: [_order(value) for value in values])
    ]


def ordered(values: Iterable[Any]) -> list[Any]:
    """Return each value once: numbers in order, then words."""
    return sorted(dict.fromkeys(values), key=_order)


def _order(value: Any) -> tuple[int, float, str]:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return 0, value, ""  # As it is: a whole number may be too large for a float.
    return 1, 0.0, str(value)


def _value(table: dict[str, Any], key: str) -> Any:
    """Return a setting; its default, or "none", where a run lacks it."""
    value = table.get(key, LATER.get(key))
    if value is None:
        return "none"
    return str(value) if isinstance(value, list) else value
