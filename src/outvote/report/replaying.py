"""What to type to get the runs of a page again: suites, parts, and what was set otherwise."""

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from outvote.grids import flat
from outvote.report.commands import bench_commands
from outvote.report.differing import ordered
from outvote.report.grid import Grid, runs_of
from outvote.results.run import Result
from outvote.suites.suite import Part, read_suite, suite_names

LEFT_OUT = ("rule", "attack", "seed", "preset", "precision")
"""Settings that the command has words of its own for."""
MOST_NAMED = 4


def replay_commands(grids: Sequence[Grid]) -> list[str]:
    """Return commands for all runs that are of suites that come with outvote."""
    known = dict.fromkeys(grid.suite for grid in grids if grid.suite in suite_names())
    return [
        command
        for suite in known
        for command in _commands(suite, [grid for grid in grids if grid.suite == suite])
    ]


def _commands(suite: str, grids: Sequence[Grid]) -> list[str]:
    parts = {part.name: part for part in read_suite(suite).parts}
    groups: dict[tuple[str, ...], list[Result]] = {}
    for grid in grids:
        for each in runs_of([grid]):
            part = parts.get(grid.part) or _nearest(list(parts.values()), each)
            words = ("--part", part.name, *_otherwise(part, each))
            groups.setdefault(words, []).append(each)
    chosen = {words: _only(parts[words[1]], group) for words, group in groups.items()}
    if set(groups) == {("--part", name) for name in parts} and not any(chosen.values()):
        return bench_commands([each for group in groups.values() for each in group])
    return [
        shlex.join([*shlex.split(command), *words[0 if len(parts) > 1 else 2 :], *chosen[words]])
        for words, group in groups.items()
        for command in bench_commands(group)
    ]


def _only(part: Part, results: Sequence[Result]) -> list[str]:
    """Return the words that leave out rules and attacks without a run, if they are not too many."""
    words = []
    wanted = {"rule": part.rows, "attack": part.values if part.columns == "attack" else []}
    for key, names in wanted.items():
        found = list(dict.fromkeys(str(each.setting(key)) for each in results))
        if set(found) < set(names) and len(found) <= MOST_NAMED:
            words += [word for name in found for word in (f"--{key}", name)]
    return words


def _otherwise(part: Part, result: Result) -> list[str]:
    """Return the words for what a run has otherwise than its part."""
    words = [] if result.rule in part.rows else ["--rule", str(result.config["rule"])]
    if part.columns == "attack" and result.attack not in part.values:
        words += ["--attack", str(result.config["attack"])]
    for key, value in _differing(part, result).items():
        words += ["--set", f"{key}={json.dumps(value)}"]
    return words


def _nearest(parts: Sequence[Part], result: Result) -> Part:
    return min(parts, key=lambda part: len(_otherwise(part, result)))


def _differing(part: Part, result: Result) -> Mapping[str, Any]:
    found = {}
    for key, value in flat(part.settings).items():
        own = result.setting(key)
        wanted = value if isinstance(value, list) else [value]
        if key not in LEFT_OUT and own is not None and own not in wanted:
            found[key] = own
    return {key: found[key] for key in ordered(found)}
