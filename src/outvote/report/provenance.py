"""Where numbers come from: runs, machines, versions, settings, and the commands to run again."""

import json
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from outvote.errors import plural
from outvote.grids import LISTS, flat, merged
from outvote.report.cells import Grid, grouped, runs_of, runs_of_cells, title_of
from outvote.report.layout import differing, ordered
from outvote.results.labels import Outline, is_same, label, names_of, outline
from outvote.results.run import Result
from outvote.suites.presets import PRESETS
from outvote.suites.suite import Axis, Part, read_suite

AXES: tuple[Axis, ...] = ("rule", "attack")
LEFT_OUT = (*AXES, "seed", "preset", "precision")
"""Settings that the command has options of its own for."""
MOST_NAMED = 4
IF_SEVERAL: dict[str, Callable[[str], str]] = {
    "protocol": lambda listed: (
        f"Protocols: {listed}; the same seed draws other random splits in each."
    ),
    "revision": lambda listed: f"Revisions of the protocol: {listed}; they may differ by rounding.",
}
"""What is stated of runs that have several values of this in their environments."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """The environments of runs, each value once and in order."""

    num_runs: int
    seeds: list[int]
    devices: list[str]
    outvote: list[str]
    torch: list[str]
    commits: list[str]
    """"unknown" is one of them where a run does not name its own."""
    protocols: list[int]
    """Numbers of different ones are different draws."""
    revisions: list[str]
    """Of the protocol: numbers of different ones may differ by rounding."""
    precisions: list[str]
    dates: list[str]
    commands: list[str]
    """The commands that run them again."""
    num_samples: int
    """How many samples all clients were trained on."""
    run_seconds: float
    """The time of all rounds; runs that were stacked share it."""
    unfinished: dict[str, int]
    """How many runs are unfinished and not counted, by outcome."""

    def text(self) -> str:
        """Return it in a few short sentences."""
        software = f"outvote {_listed(self.outvote)} and torch {_listed(self.torch)}"
        where = f"{_listed(self.devices)} in {_listed(self.precisions)}"
        parts = [
            f"{_counted(self.num_runs, 'run')} with {_counted(len(self.seeds), 'seed')}.",
            f"Run on {where}, with {software}{_days(self.dates)}.",
            f"Commit: {_listed([short_commit(commit) for commit in self.commits])}.",
            f"{self.num_samples:,} samples in {self.run_seconds:,.0f} run-seconds.",
        ]
        parts += self.protocol_notes()
        if not self.num_runs:
            parts = ["No run is finished."]
        if self.unfinished:
            counts = ", ".join(f"{number} {name}" for name, number in self.unfinished.items())
            parts.append(f"Not counted, because unfinished: {counts}.")
        return " ".join(parts)

    def protocol_notes(self) -> list[str]:
        """Return a sentence if there are several protocols, and one if several revisions."""
        both = {"protocol": [*map(str, self.protocols)], "revision": self.revisions}
        return [IF_SEVERAL[key](_listed(all_)) for key, all_ in both.items() if len(all_) > 1]


def provenance_of(grids: Sequence[Grid]) -> Provenance:
    """Sum up where the runs of tables come from; a run that is in several counts once."""
    once = {(each.suite, each.name): each for each in runs_of(grids)}
    over = [once[key] for key in sorted(once) if once[key].is_over]
    rest = Counter(each.status.outcome for each in once.values() if not each.is_over)
    found = [each.environment for each in over if each.environment is not None]
    return Provenance(
        num_runs=len(over),
        seeds=ordered(each.seed for each in over),
        devices=ordered(each.device for each in found),
        outvote=ordered(each.outvote for each in found),
        torch=ordered(each.torch for each in found),
        commits=ordered(each.commit or "unknown" for each in found),
        protocols=ordered(each.protocol for each in found),
        revisions=[*map(str, ordered(each.revision or "unknown" for each in found))],
        precisions=ordered(each.precision for each in found),
        dates=ordered(each.date for each in found if each.date is not None),
        commands=rerun_commands(grids),
        num_samples=sum(each.num_samples for each in over),
        run_seconds=round(sum(each.seconds for each in over), 1),
        unfinished={str(name): rest[name] for name in sorted(rest)},
    )


def _days(dates: Sequence[str]) -> str:
    if len(dates) < 2:
        return f", on {dates[0]}" if dates else ""
    return f", from {dates[0]} to {dates[-1]}"


def short_commit(commit: str) -> str:
    """Return twelve digits of a commit, and whether there were changes."""
    name, plus, changes = commit.partition("+")
    return f"{name[:12]}{plus}{changes}"


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _listed(values: Sequence[str]) -> str:
    return ", ".join(values) or "unknown"


def settings_text(results: Sequence[Result]) -> str:
    """Return the most important settings that all runs share."""
    shared = []
    for key, phrase in PHRASES.items():
        values = ordered(each.setting(key) for each in results)
        if len(values) == 1 and values[0] is not None:
            shared.append(phrase(values[0]))
    shared = [each for each in shared if each]
    partitions = {each.setting("data.partition") for each in results}
    betas = ordered(each.setting("data.beta") for each in results)
    if partitions == {"dirichlet"} and len(betas) == 1:
        shared.append(title_of("data.beta", betas[0]))
    return ", ".join(shared)


def _part_of(what: str) -> Callable[[Any], str]:
    def phrase(value: Any) -> str:
        return f"{value} {what}" if isinstance(value, int) else f"{100 * value:g} % {what}"

    return phrase


PHRASES: dict[str, Callable[[Any], str]] = {
    "data.name": str,
    "model.name": str,
    "rounds": lambda number: plural(number, "round"),
    "federation.num_clients": lambda number: plural(number, "client"),
    "federation.byzantine": _part_of("Byzantine"),
    "federation.sampled": _part_of("sampled"),
    "federation.selection": lambda value: "" if value == "uniform" else f"selection {value}",
    "data.partition": str,
}


def rerun_commands(grids: Sequence[Grid]) -> list[str]:
    """Return the commands that run all runs of known suites again."""
    known = dict.fromkeys(grid.source for grid in grids if grid.source)
    return [
        shlex.join(["outvote", "bench", source, *words])
        for source in known
        for words in _commands(source, [grid for grid in grids if grid.source == source])
    ]


def missing_commands(grid: Grid) -> list[str]:
    """Return the commands for the cells that a part lacks, with the settings its runs share.

    Attacks that differ in rounds have a command for each number.
    """
    part = next(each for each in read_suite(grid.source).parts if each.name == grid.part)
    first = ["outvote", "bench", grid.source, "--part", grid.part]
    if grid.column_key != "attack" or not grid.columns_of_rounds:
        return [shlex.join([*first, *_shared_words(part, runs_of([grid]))])]
    names = names_of(part.texts("attack"), part.ignored("attack"))
    found = []
    for rounds, columns in _missing_columns(grid).items():
        texts = [text for text, name in names.items() if name in {grid.columns[k] for k in columns}]
        own = [row[k] for k in grid.columns_of_rounds[rounds] for row in grid.cells]
        words = [*_named(part, "attack", texts), *_shared_words(part, runs_of_cells(own))]
        found.append(shlex.join([*first, *words]))
    return found


def _missing_columns(grid: Grid) -> dict[int, list[int]]:
    """Return the columns that lack runs, by rounds; one without a run has the usual number."""
    own = grid.columns_of_rounds
    usual = max(own, key=lambda rounds: (len(own[rounds]), rounds))
    rounds_of = {k: rounds for rounds, columns in own.items() for k in columns}
    lacking = [
        k for k in range(len(grid.columns)) if not all(row[k].is_complete for row in grid.cells)
    ]
    return grouped(lacking, lambda k: rounds_of.get(k, usual))


def _shared_words(part: Part, results: Sequence[Result]) -> tuple[str, ...]:
    """Return the words for precision and changed settings, if all runs have the same."""
    own = {
        (*_precision_words(_precision(each)), *_set(_changed_settings(part, each)))
        for each in results
    }
    return own.pop() if len(own) == 1 else ()


def _commands(source: str, grids: Sequence[Grid]) -> list[list[str]]:
    """Return the words of each command: one for the whole suite, or one for each group of runs."""
    parts = {part.name: part for part in read_suite(source).parts}
    # What neither parts nor presets set has a default; runs that differ in it are distinguished.
    set_by_suite = {key for part in parts.values() for key in _settings(part)}
    open_keys = differing(runs_of(grids), ignored=[*set_by_suite, *LEFT_OUT])
    groups: dict[tuple[str, ...], list[Result]] = {}
    for grid in grids:
        for each in runs_of([grid]):
            part = parts.get(grid.part) or _nearest(list(parts.values()), each)
            own = {key: each.setting(key) for key in open_keys if each.setting(key) is not None}
            words = ("--part", part.name, *_changes(part, each), *_set(own))
            groups.setdefault(words, []).append(each)
    changes = {words[2:] for words in groups}
    is_all = {words[1] for words in groups} == set(parts) and not any(
        _only(parts[words[1]], words, group) for words, group in groups.items()
    )
    if is_all and len(changes) == 1:
        everything = [each for group in groups.values() for each in group]
        (words,) = changes
        return [[*how, *words] for how in _how_run(everything)]
    lengths: dict[str, set[int]] = {}
    for words, group in groups.items():
        lengths.setdefault(words[1], set()).update(each.setting("rounds") for each in group)
    found = []
    for words, group in _once(groups).items():
        # Attacks with other rounds have a command of their own.
        always: list[Axis] = ["attack"] if len(lengths[words[1]]) > 1 else []
        chosen = _only(parts[words[1]], words, group, always)
        about = words[0 if len(parts) > 1 else 2 :]
        found += [[*how, *about, *chosen] for how in _how_run(group)]
    return found


def _once(
    groups: Mapping[tuple[str, ...], Sequence[Result]],
) -> dict[tuple[str, ...], list[Result]]:
    """Return the runs of each command without those of an earlier one; none is left empty."""
    known: set[int] = set()
    found = {}
    for words, group in groups.items():
        new = [each for each in group if id(each) not in known]
        known.update(map(id, new))
        if new:
            found[words] = new
    return found


def _how_run(results: Sequence[Result]) -> list[list[str]]:
    """Return the words for seeds, precision and device; each precision has its own command."""
    return [
        [*_seeds(group), *_precision_words(precision), *_device(group)]
        for precision, group in sorted(grouped(results, _precision).items())
    ]


def _precision(result: Result) -> str:
    return str(result.config.get("precision", "float32"))


def _precision_words(precision: str) -> list[str]:
    return [] if precision == "float32" else ["--precision", precision]


def _seeds(results: Sequence[Result]) -> list[str]:
    seeds = ordered(each.seed for each in results)
    if seeds == list(range(len(seeds))):
        return ["--seeds", str(len(seeds))]
    return ["--set", f"seed={seeds}"]


def _device(results: Sequence[Result]) -> list[str]:
    devices = {each.environment.device for each in results if each.environment is not None}
    return ["--device", "cuda"] if devices and "cpu" not in devices else []


def _only(
    part: Part, words: Sequence[str], results: Sequence[Result], always: Collection[Axis] = ()
) -> list[str]:
    """Return the words that leave out rules and attacks without a run.

    Where too many are left they are not named, unless the axis is one of `always`.
    """
    chosen = []
    for axis in AXES:
        own = part.texts(axis)
        found = [text for text in own if _is_among(text, [each.config[axis] for each in results])]
        if f"--{axis}" in words or not part.can_show(axis, own[0]):
            continue
        if 0 < len(found) < len(own) and (len(found) <= MOST_NAMED or axis in always):
            chosen += _named(part, axis, found)
    return chosen


def _named(part: Part, axis: Axis, texts: Sequence[str]) -> list[str]:
    """Return the words that choose some rules or attacks of a part."""
    labels = [label(text) for text in part.texts(axis)]
    names = [label(text) if labels.count(label(text)) == 1 else text for text in texts]
    return [word for name in names for word in (f"--{axis}", name)]


def _changes(part: Part, result: Result) -> list[str]:
    """Return the words for everything in which a run differs from its part."""
    words = []
    for axis in AXES:
        own, text = part.texts(axis), str(result.config[axis])
        if _is_among(text, own):
            continue
        if part.can_show(axis, text):
            # With all its parameters it is not taken for the suite's own of the same name.
            is_taken = text in map(label, own)
            words += [f"--{axis}", _spelled(outline(text).settled) if is_taken else text]
        else:
            words += ["--set", f"{axis}={json.dumps(text)}"]
    return [*words, *_set(_changed_settings(part, result))]


def _set(settings: Mapping[str, Any]) -> list[str]:
    found = ((key, json.dumps(value)) for key, value in settings.items())
    return [word for key, value in found for word in ("--set", f"{key}={value}")]


def _is_among(text: str, texts: Sequence[str]) -> bool:
    return any(is_same(text, each) for each in texts)


def _spelled(found: Outline) -> str:
    parts = [_spelled(each) for each in found.inside]
    parts += [f"{key}={value}" for key, value in found.parameters.items()]
    return f"{found.name}({', '.join(parts)})" if parts else found.name


def _nearest(parts: Sequence[Part], result: Result) -> Part:
    return min(parts, key=lambda part: len(_changes(part, result)))


def _changed_settings(part: Part, result: Result) -> Mapping[str, Any]:
    found = {}
    for key, value in _settings(part).items():
        own = result.setting(key)
        wanted = value if isinstance(value, list) and key not in LISTS else [value]
        if key not in LEFT_OUT and own is not None and own not in wanted:
            found[key] = own
    return {key: found[key] for key in ordered(found)}


def _settings(part: Part) -> dict[str, Any]:
    """Return the settings that a part or its preset has, such as {"data.beta": 0.5}."""
    preset = PRESETS.get(str(part.settings.get("preset")), {})
    return flat(merged(preset, part.settings))
