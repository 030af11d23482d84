"""What to type to get runs again: suites, parts, seeds, and what was set otherwise."""

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from outvote.grids import LISTS, flat, merged
from outvote.report.differing import differing, ordered
from outvote.report.grid import Grid, runs_of
from outvote.results.labels import Outline, is_same, label, outline
from outvote.results.run import Result
from outvote.suites.presets import PRESETS
from outvote.suites.suite import Part, read_suite, value_of

Axis = Literal["rule", "attack"]
AXES: tuple[Axis, ...] = ("rule", "attack")
LEFT_OUT = (*AXES, "seed", "preset", "precision")
"""Settings that the command has words of its own for."""
MOST_NAMED = 4


def replay_commands(grids: Sequence[Grid]) -> list[str]:
    """Return commands for all runs of suites that are known."""
    known = dict.fromkeys(grid.source for grid in grids if grid.source)
    return [
        shlex.join(["outvote", "bench", source, *words])
        for source in known
        for words in _commands(source, [grid for grid in grids if grid.source == source])
    ]


def missing_command(grid: Grid) -> str:
    """Return what plays the cells that a part lacks, with what all its runs have otherwise."""
    part = next(each for each in read_suite(grid.source).parts if each.name == grid.part)
    own = {
        (*precision_words(precision_of(each)), *_set(_differing(part, each)))
        for each in runs_of([grid])
    }
    words = own.pop() if len(own) == 1 else ()
    return shlex.join(["outvote", "bench", grid.source, "--part", grid.part, *words])


def precision_words(precision: str) -> list[str]:
    """Return what a command needs to play in a precision."""
    return [] if precision == "float32" else ["--precision", precision]


def precision_of(result: Result) -> str:
    """Return the precision that a run was played in."""
    return str(result.config.get("precision", "float32"))


def _commands(source: str, grids: Sequence[Grid]) -> list[list[str]]:
    """Return the words of each command: one for all of a suite, or for each part of a part."""
    parts = {part.name: part for part in read_suite(source).parts}
    # What neither parts nor presets say has a default; runs that differ in it are told apart.
    said = {key for part in parts.values() for key in _said(part)}
    unsaid = differing(runs_of(grids), ignored=[*said, *LEFT_OUT])
    groups: dict[tuple[str, ...], list[Result]] = {}
    for grid in grids:
        for each in runs_of([grid]):
            part = parts.get(grid.part) or _nearest(list(parts.values()), each)
            own = {key: each.setting(key) for key in unsaid if each.setting(key) is not None}
            words = ("--part", part.name, *_otherwise(part, each), *_set(own))
            groups.setdefault(words, []).append(each)
    chosen = {words: _only(parts[words[1]], words, group) for words, group in groups.items()}
    otherwise = {words[2:] for words in groups}
    is_all = {words[1] for words in groups} == set(parts) and not any(chosen.values())
    if is_all and len(otherwise) == 1:
        everything = [each for group in groups.values() for each in group]
        (words,) = otherwise
        return [[*played, *words] for played in _played(everything)]
    return [
        [*played, *words[0 if len(parts) > 1 else 2 :], *chosen[words]]
        for words, group in groups.items()
        for played in _played(group)
    ]


def _played(results: Sequence[Result]) -> list[list[str]]:
    """Return the words for seeds and device; each precision has a command of its own."""
    groups: dict[str, list[Result]] = {}
    for each in results:
        groups.setdefault(precision_of(each), []).append(each)
    return [
        [*_seeds(groups[precision]), *precision_words(precision), *_device(groups[precision])]
        for precision in sorted(groups)
    ]


def _seeds(results: Sequence[Result]) -> list[str]:
    seeds = ordered(each.seed for each in results)
    if seeds == list(range(len(seeds))):
        return ["--seeds", str(len(seeds))]
    return ["--set", f"seed={seeds}"]


def _device(results: Sequence[Result]) -> list[str]:
    devices = {each.environment.device for each in results if each.environment is not None}
    return ["--device", "cuda"] if devices and "cpu" not in devices else []


def _only(part: Part, words: Sequence[str], results: Sequence[Result]) -> list[str]:
    """Return the words that leave out rules and attacks without a run, if they are not too many."""
    chosen = []
    for axis in AXES:
        own = part.texts(axis)
        found = [text for text in own if _is_among(text, [each.config[axis] for each in results])]
        if f"--{axis}" in words or not _can_show(part, axis, own[0]):
            continue
        if 0 < len(found) < len(own) and len(found) <= MOST_NAMED:
            labels = [label(text) for text in own]
            for text in found:
                name = label(text)
                chosen += [f"--{axis}", name if labels.count(name) == 1 else text]
    return chosen


def _otherwise(part: Part, result: Result) -> list[str]:
    """Return the words for what a run has otherwise than its part."""
    words = []
    for axis in AXES:
        own, text = part.texts(axis), str(result.config[axis])
        if not _is_among(text, own):
            told = _told_apart(text, own)
            is_shown = _can_show(part, axis, text)
            words += [f"--{axis}", told] if is_shown else ["--set", f"{axis}={json.dumps(text)}"]
    return [*words, *_set(_differing(part, result))]


def _set(settings: Mapping[str, Any]) -> list[str]:
    found = ((key, json.dumps(value)) for key, value in settings.items())
    return [word for key, value in found for word in ("--set", f"{key}={value}")]


def _is_among(text: str, texts: Sequence[str]) -> bool:
    return any(is_same(text, each) for each in texts)


def _can_show(part: Part, axis: Axis, text: str) -> bool:
    """Tell whether a part has a row for a rule, or a column for an attack."""
    if axis == "attack":
        return part.columns == "attack"
    is_parameter = part.columns.startswith("rule.")
    return not is_parameter or value_of({"rule": text}, part.columns) is not None


def _told_apart(text: str, own: Sequence[str]) -> str:
    """Return a text that is not taken for the suite's own of the same name."""
    return _spelled(outline(text).settled) if text in map(label, own) else text


def _spelled(found: Outline) -> str:
    parts = [_spelled(each) for each in found.inside]
    parts += [f"{key}={value}" for key, value in found.parameters.items()]
    return f"{found.name}({', '.join(parts)})" if parts else found.name


def _nearest(parts: Sequence[Part], result: Result) -> Part:
    return min(parts, key=lambda part: len(_otherwise(part, result)))


def _differing(part: Part, result: Result) -> Mapping[str, Any]:
    found = {}
    for key, value in _said(part).items():
        own = result.setting(key)
        wanted = value if isinstance(value, list) and key not in LISTS else [value]
        if key not in LEFT_OUT and own is not None and own not in wanted:
            found[key] = own
    return {key: found[key] for key in ordered(found)}


def _said(part: Part) -> dict[str, Any]:
    """Return the settings that a part or its preset has, such as {"data.beta": 0.5}."""
    preset = PRESETS.get(str(part.settings.get("preset")), {})
    return flat(merged(preset, part.settings))
