"""From runs to tables: as the suite has them, with every cell that it asks for."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from outvote.errors import closest
from outvote.grids import flat
from outvote.report.automatic import automatic_grids
from outvote.report.differing import differing, ordered, split
from outvote.report.grid import Grid, Placed, fill
from outvote.results.labels import is_same, names_of
from outvote.results.run import Result
from outvote.suites.suite import Part, Suite, read_suite, suite_names


def grids_of(
    results: Sequence[Result], part: str | None = None, sources: Sequence[str] = ()
) -> list[Grid]:
    """Lay all runs out, suite by suite; `part` is the name of the only part wanted.

    `sources` are files of suites that do not come with outvote.
    """
    by_suite: dict[str, list[Result]] = {}
    for each in sorted(results, key=lambda each: (each.suite, each.name)):
        by_suite.setdefault(each.suite, []).append(each)
    known_sources = _sources(by_suite, sources)
    grids = [
        grid
        for name, group in by_suite.items()
        for grid in _grids_of_suite(name, group, known_sources.get(name))
    ]
    if part is None:
        return grids
    known = sorted({grid.part for grid in grids if grid.part})
    if part not in known:
        hint = closest(part, known) if known else "these runs belong to no suite with parts."
        raise ValueError(f"unknown part {part!r}; {hint}")
    return [grid for grid in grids if grid.part == part]


def _sources(names: Collection[str], own: Sequence[str]) -> dict[str, str]:
    """Return what to read each known suite from; one's own goes before outvote's."""
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
        return automatic_grids(results, suite_title=name)
    suite = read_suite(source)
    held = [[each for each in results if part.holds(each)] for part in suite.parts]
    known = {id(each) for group in held for each in group}
    added: list[list[Result]] = [[] for _ in suite.parts]
    rest = []
    for each in results:
        if id(each) not in known:
            places = _places_of_added(suite.parts, each)
            for number in places:
                added[number].append(each)
            if not places:
                rest.append(each)
    grids = [
        grid
        for part, own, more in zip(suite.parts, held, added, strict=True)
        for grid in _grids_of_part(suite, part, own, more)
    ]
    if rest:
        grids += automatic_grids(rest, suite_title=suite.title, title="Other runs")
    return [replace(grid, source=source) for grid in grids]


def _places_of_added(parts: Sequence[Part], result: Result) -> list[int]:
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


def _grids_of_part(
    suite: Suite, part: Part, held: Sequence[Result], added: Sequence[Result]
) -> list[Grid]:
    """Make one table, or one for each combination of settings that the part leaves open."""
    results = [*held, *added]
    keys = list(differing(results, ignored=flat(part.settings)))
    rows, attacks = _names(part, "rule", results), _names(part, "attack", results)

    def place(each: Result) -> Placed:
        is_attack = part.columns == "attack"
        column = attacks[each.config["attack"]] if is_attack else each.setting(part.columns)
        return Placed(rows[each.config["rule"]], column, each)

    return [
        _grid_of_part(suite, part, [place(each) for each in group], told)
        for told, group in split(results, keys) or [("", [])]
    ]


def _names(part: Part, key: Literal["rule", "attack"], results: Sequence[Result]) -> dict[str, str]:
    """Return what rules or attacks are called; one that the part has not is told from its own."""
    own = _own_names(part, key)
    meant = {
        text: next((each for each in own if is_same(each, text)), None)
        for text in dict.fromkeys(each.config[key] for each in results)
    }
    others = [text for text, known in meant.items() if known is None]
    names = names_of([*own, *others], part.ignored(key))
    return {text: names[text] if known is None else own[known] for text, known in meant.items()}


def _own_names(part: Part, key: Literal["rule", "attack"]) -> dict[str, str]:
    """Return what a part's own rules or attacks are called: the label, unless two share it."""
    return names_of(part.texts(key), part.ignored(key))


def _grid_of_part(suite: Suite, part: Part, placed: Sequence[Placed], told: str) -> Grid:
    own = _own_names(part, "rule").values()
    rows = list(dict.fromkeys([*own, *(each.row for each in placed)]))
    is_attack = part.columns == "attack"
    columns: list[Any] = list(_own_names(part, "attack").values()) if is_attack else part.values
    columns += ordered(each.column for each in placed if each.column not in columns)
    printed: Mapping[tuple[str, Any], Any] = part.printed()
    return Grid(
        suite=suite.name,
        suite_title=suite.title,
        part=part.name,
        title=", ".join(text for text in (part.title, told) if text),
        kind=part.kind,
        column_key=part.columns,
        rows=tuple(rows),
        columns=tuple(columns),
        cells=fill(placed, rows, columns, num_wanted=len(part.seeds), printed=printed),
    )
