"""Two sets of runs compared: pairs of equal settings and seeds, differences with intervals."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, isnan
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple, final

from outvote.errors import check_choice, plural
from outvote.grids import flat
from outvote.markup import clean, html_table, text_table
from outvote.report.cells import METRICS, UNSCALED, Metric, grouped
from outvote.report.layout import NO_SETTINGS, ordered
from outvote.report.paired import FEW, BySeed, Interval, bootstrap, most_coverage
from outvote.report.provenance import IF_SEVERAL
from outvote.report.rendered_table import MINUS, UNKNOWN, number, signed
from outvote.report.runs import AnyPath, Runs, read_runs
from outvote.results.labels import Outline, label, names_of, outline, plain
from outvote.results.later import LATER
from outvote.results.long_table import NONE, optional
from outvote.results.run import Result

if TYPE_CHECKING:
    import pandas as pd

AXES = ("rule", "attack")
SOFTWARE = ("outvote", "torch", "device", "precision", "commit")
"""What of the environment is named where A and B differ in it."""
MOST_NAMED = 10
"""Runs without a partner that a text names; `to_dict` has all."""
MARK = "*"

Settings = dict[str, Any]
Key = tuple[Any, ...]


def compare(
    a: Runs | AnyPath,
    b: Runs | AnyPath,
    *,
    metric: Metric | None = None,
    names: tuple[str, str] = ("A", "B"),
) -> "Comparison":
    """Compare two sets of runs, seed by seed: B minus A, with 95 % bootstrap intervals.

    What A and B differ in is found: the settings without a value in common. A run of A and a
    run of B are a pair if all other settings and the seed are equal. Runs without a partner and
    unfinished runs are left out and named.

    Args:
        a: Runs, or the path of a store, of the folder of a suite or of an export.
        b: Likewise.
        metric: As in `Runs.table`; default: best, or the test loss where there is no accuracy.
        names: How A and B are called in what is printed.

    ::

        runs = ov.read_runs("runs/mine")
        ov.compare(runs.select(rule="median"), runs.select(rule="gas(median)"))
    """
    if metric is not None:
        check_choice("metric", metric, METRICS)
    both = [each if isinstance(each, Runs) else read_runs(each) for each in (a, b)]
    for name, runs in zip(names, both, strict=True):
        if not len(runs):
            raise ValueError(f"{name} has no runs; select fewer conditions, or read others.")
    chosen = metric or _usual_metric(both)
    sides = [_Side(name, runs, chosen) for name, runs in zip(names, both, strict=True)]
    return _compared(sides[0], sides[1], chosen)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PairedRow:
    """One setting that A and B share: the means of both over the same seeds, and B minus A."""

    settings: Mapping[str, Any]
    """What the row is, as far as rows differ in it."""
    a: float
    """In percent, unless the metric is the deviation or the test loss; `b` and `difference` too."""
    b: float
    difference: Interval
    seeds: tuple[int, ...]


class Unpaired(NamedTuple):
    """A run that is left out."""

    side: str
    run: str
    """Its suite and name."""
    reason: str


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Paired differences between two sets of runs, B minus A."""

    names: tuple[str, str]
    """What A and B are called."""
    metric: Metric
    """What is compared: the best accuracy of a run, its last one, or another."""
    differs: Mapping[str, tuple[tuple[Any, ...], tuple[Any, ...]]]
    """The settings without a value in common, each with the values of A and of B."""
    software: Mapping[str, tuple[tuple[Any, ...], tuple[Any, ...]]]
    """Versions and devices that are not the same in A and B; protocols and revisions that differ
    within a pair, of those pairs."""
    rows: tuple[PairedRow, ...]
    """One per setting that A and B share, with the difference and its interval."""
    overall: Interval
    """The mean over all rows: of each seed that all rows have. No interval if these are not two."""
    unpaired: tuple[Unpaired, ...]
    """The runs that are left out, with the reason."""
    runs: Runs
    """All runs of A and B."""

    def to_dict(self) -> dict[str, Any]:
        """Return what ``outvote compare --json`` prints."""
        return {
            "a": self.names[0],
            "b": self.names[1],
            "metric": self.metric,
            "differs": _as_lists(self.differs),
            "software": _as_lists(self.software),
            "rows": self._records(),
            "overall": self.overall._asdict(),
            "unpaired": [each._asdict() for each in self.unpaired],
            "notes": self.notes(),
        }

    def to_frame(self) -> "pd.DataFrame":
        """Return a pandas frame with one row per setting. Needs pandas."""
        flat_rows = [each.pop("settings") | each for each in self._records()]
        frame: pd.DataFrame = optional("pandas", "a frame").DataFrame(flat_rows)
        return frame

    def to_markdown(self) -> str:
        """Return a heading, the table and the notes."""
        columns, num_text, rows = self.table()
        marks = ["---"] * num_text + ["---:"] * (len(columns) - num_text)
        lines = [[*map(_escaped, columns)], marks, *([*map(_escaped, row)] for row in rows)]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        notes = "\n".join(f"- {_escaped(note)}" for note in self.notes())
        return clean(f"### {_escaped(self.title)}\n\n{table}\n\n{notes}\n")

    def report(self, path: AnyPath = "report.html", *, command: str = "") -> Path:
        """Write the page of ``outvote report`` for all runs, with this comparison in it.

        Args:
            path: The file to write; it is returned.
            command: What the reader types to get the same page.
        """
        from outvote.report.html_report import write_report

        write_report(list(self.runs), Path(path), command=command, comparison=self)
        return Path(path)

    @property
    def title(self) -> str:
        """What is compared, in one line."""
        a, b = self.names
        unit = "" if self.metric in UNSCALED else ", in percent"
        return clean(f"{b} {MINUS} {a}: {METRICS[self.metric]}{unit}")

    def table(self) -> tuple[list[str], int, list[list[str]]]:
        """Return the titles of the columns, how many are text, and the rows as texts."""
        keys = list(self.rows[0].settings)
        a, b = self.names
        columns = [*keys, a, b, f"{b} {MINUS} {a}", "95 % interval", "higher", "seeds"]
        rows = []
        for row in self.rows:
            means = [number(each, self.metric) for each in (row.a, row.b)]
            about = [plain(value) for value in row.settings.values()]
            rows.append([*about, *means, *self._interval(row.difference), str(len(row.seeds))])
        if len(self.rows) > 1:
            pooled = self.overall
            about = ["all settings", *[""] * (len(keys) - 1)]
            num = str(pooled.num) if pooled.unit == "seed" else UNKNOWN
            rows.append([*about, "", "", *self._interval(pooled), num])
        return [*map(clean, columns)], len(keys), [[*map(clean, row)] for row in rows]

    def notes(self) -> list[str]:
        """Return what differs, how sure the differences are, and what is left out."""
        return [
            *(_what_differs(self.differs, self.names) or [_nothing_differs(self.names)]),
            *_what_differs(self.software, self.names),
            self._verdict(),
            *self._few(),
            *self._left_out(),
        ]

    def _interval(self, found: Interval) -> list[str]:
        mean = self._signed(found.mean)
        if found.low is None or found.high is None:
            return [mean, UNKNOWN, UNKNOWN]
        mark = MARK if found.num < FEW else ""
        text = f"[{self._signed(found.low)}, {self._signed(found.high)}]{mark}"
        return [mean, text, {1: self.names[1], 0: UNKNOWN, -1: self.names[0]}[found.side]]

    def _signed(self, value: float) -> str:
        if self.metric not in UNSCALED:
            return signed(value)
        return f"{value:+.3g}".replace("-", MINUS) if value else "0"

    def _verdict(self) -> str:
        a, b = self.names
        sides = [row.difference.side for row in self.rows]
        counts = {
            f"{b} is higher": sides.count(1),
            f"{a} is higher": sides.count(-1),
            "undecided": sides.count(0),
        }
        text = ", ".join(f"{what} in {count}" for what, count in counts.items() if count)
        how = (
            f"Higher: the interval of at least {FEW} seeds is on one side of zero, without a "
            "correction for many settings"
        )
        return f"Of {plural(len(self.rows), 'setting')}: {text}. {how}."

    def _few(self) -> list[str]:
        notes = []
        nums = [row.difference.num for row in self.rows]
        if min(nums) == 1:
            notes.append("One seed gives no interval: run more seeds.")
        few = [num for num in nums if 1 < num < FEW]
        if few:
            most = f"{100 * most_coverage(min(few)):g} %"
            notes.append(
                f"{MARK} Few seeds: a bootstrap interval of {min(few)} values covers the truth in "
                f"at most {most} of all cases, not in 95 %; run at least {FEW} seeds."
            )
        if len(self.rows) > 1 and self.overall.unit == "setting":
            notes.append(
                "The settings do not share two seeds: their mean has no interval, because settings "
                "of one seed are not independent."
            )
        return notes

    def _left_out(self) -> list[str]:
        found = grouped(self.unpaired, lambda each: (each.side, each.reason))
        notes = []
        for (side, reason), left in found.items():
            listed = ", ".join(each.run for each in left[:MOST_NAMED])
            more = f" and {len(left) - MOST_NAMED} more" if len(left) > MOST_NAMED else ""
            notes.append(
                f"Left out of {side}, {reason}: {plural(len(left), 'run')}: {listed}{more}."
            )
        return notes

    def _records(self) -> list[dict[str, Any]]:
        return [
            {
                "settings": dict(row.settings),
                "a": row.a,
                "b": row.b,
                "difference": row.difference.mean,
                "low": row.difference.low,
                "high": row.difference.high,
                "num_seeds": len(row.seeds),
                "seeds": list(row.seeds),
            }
            for row in self.rows
        ]

    def __repr__(self) -> str:
        columns, num_text, rows = self.table()
        lines = text_table(columns, rows, num_text=num_text)
        return clean("\n".join([self.title, "", *lines, "", *self.notes()]))

    def _repr_html_(self) -> str:
        columns, num_text, rows = self.table()
        note = " ".join(self.notes())
        return html_table(columns, rows, num_text=num_text, title=f"{self.title}.", note=note)


class _Side:
    """The finished runs of A or of B, with their settings, and what is left out."""

    def __init__(self, name: str, runs: Runs, metric: Metric) -> None:
        self.name, self.runs, self.unpaired = name, runs, []
        scale = 1 if metric in UNSCALED else 100
        self.found: list[tuple[Result, Settings, float]] = []
        for run in runs:
            value = scale * float(getattr(run, metric))
            if not run.is_over:
                self.leave(run, f"unfinished ({run.status.outcome})")
            elif not isfinite(value):
                self.leave(run, f"without a number for {metric}")
            else:
                self.found.append((run, _settings(run), value))

    unpaired: list[Unpaired]

    def leave(self, run: Result, reason: str) -> None:
        """Leave out a run."""
        self.unpaired.append(Unpaired(self.name, f"{run.suite}/{run.name}", reason))

    def values(self, key: str) -> list[Any]:
        """Return each value of a setting once."""
        return ordered(_shown(table.get(key)) for _, table, _ in self.found)

    def by_key(self, keys: Sequence[str]) -> dict[Key, tuple[Result, Settings, float]]:
        """Return the runs by the settings that pairs share; two of the same are an error."""
        groups = grouped(self.found, lambda each: tuple(each[1].get(key) for key in keys))
        for same in groups.values():
            if len({run.hash for run, _, _ in same}) > 1:
                tables = [table for _, table, _ in same]
                inside = [k for k in _all_keys(tables) if len({t.get(k) for t in tables}) > 1]
                values = ordered(_shown(table.get(inside[0])) for table in tables) if inside else []
                what = f"{inside[0]} = {', '.join(map(plain, values))}" if inside else "their names"
                raise ValueError(
                    f"{self.name} has {len(same)} runs for one run of the other side, which differ "
                    f"in {what}; choose one value of it."
                )
        return {key: same[0] for key, same in groups.items()}


def _compared(a: _Side, b: _Side, metric: Metric) -> Comparison:
    if not a.found or not b.found:
        side = b if a.found else a
        raise ValueError(f"{side.name} has no finished run with a number for {metric}.")
    keys = _all_keys(table for side in (a, b) for _, table, _ in side.found)
    contrasts = [key for key in keys if key != "seed" and _is_contrast(key, a, b)]
    pairing = [key for key in keys if key not in contrasts]
    first, second = a.by_key(pairing), b.by_key(pairing)
    paired = [key for key in first if key in second]
    if not paired:
        raise ValueError(_no_pair(a, b, pairing))
    for side, own, other in ((a, first, second), (b, second, first)):
        for key, (run, _, _) in own.items():
            if key not in other:
                side.leave(run, "without a partner of the same settings and seed")
    pairs = [(first[key], second[key]) for key in paired]
    rows = _rows(pairs, pairing, contrasts)
    overall = bootstrap(differences for _, differences in rows)
    assert overall is not None
    if overall.unit == "setting":
        overall = overall._replace(low=None, high=None)
    return Comparison(
        names=(a.name, b.name),
        metric=metric,
        differs={k: (tuple(a.values(k)), tuple(b.values(k))) for k in _to_name(contrasts, a, b)},
        software=_software([ours[0] for ours, _ in pairs], [theirs[0] for _, theirs in pairs]),
        rows=tuple(row for row, _ in rows),
        overall=overall,
        unpaired=(*a.unpaired, *b.unpaired),
        runs=Runs(list({id(run): run for run in (*a.runs, *b.runs)}.values())),
    )


Pair = tuple[tuple[Result, Settings, float], tuple[Result, Settings, float]]


def _rows(
    pairs: Sequence[Pair], pairing: Sequence[str], contrasts: Sequence[str]
) -> list[tuple[PairedRow, BySeed]]:
    """Return a row for each setting with all its seeds, and the differences by seed."""
    keys = [key for key in pairing if key != "seed"]
    groups = grouped(pairs, lambda pair: tuple(pair[0][1].get(key) for key in keys))
    tables = [same[0][0][1] for same in groups.values()]
    texts = {axis: _short_names(pairs, axis, contrasts) for axis in AXES if axis in keys}
    parameters = tuple(f"{axis}." for axis in texts)
    varying = [
        key
        for key in keys
        if key not in AXES
        and not key.startswith(parameters)
        and len({table.get(key) for table in tables}) > 1
    ]
    rows = []
    for same in groups.values():
        ordered_pairs = sorted(same, key=lambda pair: pair[0][0].seed)
        config, table = same[0][0][0].config, same[0][0][1]
        about = {axis: names[config[axis]] for axis, names in texts.items()}
        about |= {key: _shown(table.get(key)) for key in varying}
        differences = {ours[0].seed: theirs[2] - ours[2] for ours, theirs in ordered_pairs}
        found = bootstrap([differences])
        assert found is not None
        row = PairedRow(
            settings=about or {"setting": "the only one"},
            a=fmean(ours[2] for ours, _ in same),
            b=fmean(theirs[2] for _, theirs in same),
            difference=found,
            seeds=tuple(differences),
        )
        rows.append((row, differences))
    return rows


def _short_names(pairs: Sequence[Pair], axis: str, contrasts: Sequence[str]) -> dict[str, str]:
    """Return the names of rules or attacks, without the parameters that A and B differ in."""
    ignored = [key.rpartition(".")[2] for key in contrasts if key.startswith(f"{axis}.")]
    return names_of((ours[0].config[axis] for ours, _ in pairs), ignored)


def _settings(run: Result) -> Settings:
    """Return all that a result depends on by dotted name; equal settings have equal values."""
    left = set(NO_SETTINGS) - {"seed"}
    table = {k: v for k, v in (LATER | flat(run.config)).items() if k not in left}
    found = {key: _hashable(value) for key, value in table.items()}
    for axis in AXES:
        found[axis] = label(run.config[axis])
        found |= _parameters(outline(run.config[axis]).settled, axis)
        if code := run.code_of(axis):
            found[f"code of {axis}"] = json.dumps(code, sort_keys=True)
    return found


def _parameters(found: Outline, above: str) -> Settings:
    """Return all parameters; those of what is wrapped have its name before theirs."""
    own = {f"{above}.{key}": _hashable(value) for key, value in found.parameters.items()}
    for each in found.inside:
        own |= _parameters(each, f"{above}.{each.name}")
    return own


def _hashable(value: Any) -> Any:
    if isinstance(value, list):
        return json.dumps(value)
    return None if value == NONE else value


def _shown(value: Any) -> Any:
    return NONE if value is None else value


def _all_keys(tables: Iterable[Settings]) -> list[str]:
    return sorted({key for table in tables for key in table})


def _is_contrast(key: str, a: _Side, b: _Side) -> bool:
    """Return whether A and B share no value of a setting.

    That some runs of both have none, as rules without this parameter, does not count.
    """
    ours, theirs = ({table.get(key) for _, table, _ in side.found} for side in (a, b))
    if ours - {None} and theirs - {None}:
        ours, theirs = ours - {None}, theirs - {None}
    return ours.isdisjoint(theirs)


def _to_name(contrasts: Sequence[str], a: _Side, b: _Side) -> list[str]:
    """Return what to name of what differs: no parameters that only one of the two rules has."""
    return [
        key
        for key in contrasts
        if not key.startswith(("rule.", "attack.")) or [NONE] not in (a.values(key), b.values(key))
    ]


def _no_pair(a: _Side, b: _Side, pairing: Sequence[str]) -> str:
    """Return why there is no pair: what the two runs that are most alike differ in."""
    closest = min(
        (
            [key for key in pairing if ours.get(key) != theirs.get(key)]
            for _, ours, _ in a.found[:200]
            for _, theirs, _ in b.found[:200]
        ),
        key=len,
    )
    return (
        f"no run of {a.name} has a partner in {b.name}: even the two that are most alike differ in "
        f"{', '.join(closest)}; give runs that share settings and seeds."
    )


def _software(
    a: Sequence[Result], b: Sequence[Result]
) -> dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """Return in what the programs of A and B differ; protocols and revisions, within pairs."""
    both = [
        (ours.environment, theirs.environment)
        for ours, theirs in zip(a, b, strict=True)
        if ours.environment and theirs.environment
    ]
    # Runs of several protocols do not differ by rounding alone.
    shared = [pair for pair in both if pair[0].protocol == pair[1].protocol]
    result = {}
    for name in (*IF_SEVERAL, *SOFTWARE):
        values = [
            tuple(getattr(each, name) or "unknown" for each in pair)
            for pair in (shared if name == "revision" else both)
        ]
        if name in IF_SEVERAL:
            values = [(ours, theirs) for ours, theirs in values if ours != theirs]
        ours, theirs = (tuple(ordered(pair[k] for pair in values)) for k in range(2))
        if ours != theirs or (values and name in IF_SEVERAL):
            result[name] = (ours, theirs)
    return result


def _usual_metric(both: Sequence[Runs]) -> Metric:
    runs = [run for runs in both for run in runs if run.is_over]
    has_losses = any(not isnan(run.test_loss) for run in runs)
    return "test_loss" if has_losses and all(isnan(run.best) for run in runs) else "best"


def _what_differs(found: Mapping[str, Any], names: tuple[str, str]) -> list[str]:
    a, b = names
    notes = []
    for key, (ours, theirs) in found.items():
        listed = f"{', '.join(map(plain, ours))} in {a}, {', '.join(map(plain, theirs))} in {b}"
        notes.append(IF_SEVERAL[key](listed) if key in IF_SEVERAL else f"{key}: {listed}.")
    return notes


def _nothing_differs(names: tuple[str, str]) -> str:
    return f"{names[0]} and {names[1]} share values of all settings."


def _as_lists(found: Mapping[str, Any]) -> dict[str, Any]:
    return {key: {"a": list(ours), "b": list(theirs)} for key, (ours, theirs) in found.items()}


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace(MARK, f"\\{MARK}")
