"""The page of the paper's claims against our numbers; claims.toml has its words.

A claim without runs is left out.
"""

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isnan, log10, nan
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import many_groups
from outvote.results.labels import label
from outvote.results.run import Result
from paired import BASES, METRICS, BySeed, Cells, Metric, Side, interval, shared, signed, verdict
from regimes import (
    AGAINST,
    ALL_CLIENTS,
    ALONG,
    ATTACKS,
    LATER,
    PRINTED,
    SIDED,
    UNSIDED,
    attacks_of_all_readings,
    borrowed_text,
    distance_table,
    gain_table,
    reading,
    readings,
    rounds_by_attack,
    rounds_of,
    shorter_text,
)

WORDS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
NOTES, DATA = WORDS["notes"], WORDS["data"]
EQUAL_WEIGHTS = (
    "multi-krum",
    "dnc",
)  # GAS variants give all clients that they keep one weight, too.
LARGER = {
    "table1-femnist": "FEMNIST",
    "table1-imagenet12": "ImageNet-12",
    "tiny-imagenet12": "12 classes of Tiny-ImageNet",
}
BEST = {"best": METRICS["best"]}
PROTOCOL: dict[str, Metric] = {
    "protocol": lambda run: nan if run.environment is None else run.environment.protocol
}
PLUS, MINUS = ", sign = +1", ", sign = −1"
ABLATIONS = "ablations-all-clients"
"""The suite that repeats tables with all clients and the later training, a part for each."""
ABLATED = {
    "table3-num-groups": "table3",
    "table4-unknown-f": "table4",
    "table5-heterogeneity": "table5",
    "table6-num-byzantine": "table6",
    "table7-num-clients": "table7",
}


def byzantine_share(result: Result) -> float:
    """Return the share of the update in percent that is the Byzantine clients'; NaN: not known."""
    if not isnan(result.byzantine_weight):
        return 100 * result.byzantine_weight
    series = result.series
    is_mean = bool(series.num_byzantine_assumed.any()) and not series.num_byzantine_used.any()
    if not (result.rule in EQUAL_WEIGHTS or result.rule.startswith("gas(") or is_mean):
        return nan
    is_known = (series.num_byzantine > 0) & (series.num_kept > 0)
    shares = series.num_kept_byzantine[is_known] / series.num_kept[is_known]
    return 100 * float(shares.mean()) if len(shares) else nan


def squared_deviation(result: Result) -> float:
    """Return 100 × the mean squared distance to the honest mean; NaN: no round is attacked."""
    series = result.series
    found = series.deviation[series.num_byzantine > 0] ** 2
    return 100 * float(found.mean()) if len(found) else nan


SQUARED: dict[str, Metric] = {"100 × squared distance": squared_deviation}
DISTANCE: dict[str, Metric] = {"100 × distance": lambda run: 100 * run.deviation}
SHARE: dict[str, Metric] = {"share": byzantine_share}
KEPT: dict[str, Metric] = {"kept": lambda run: 100 * run.kept_byzantine}


class Pair(NamedTuple):
    """Two sides that are compared; a claim expects the first to be larger."""

    row: str
    first: Side
    second: Side


Margin = Callable[[float, float], float]
"""What must be above zero, of a pair's two values; None: their difference."""


@dataclass(frozen=True)
class Claim:
    """One sentence of the paper, in our words, and the pairs that decide it."""

    text: str
    pairs: Sequence[Pair]
    titles: Sequence[str] = ("GAS(A)", "A")
    notes: Sequence[str] = ()
    margin: Margin | None = None

    @property
    def is_run(self) -> bool:
        """Whether a pair has a run on both sides."""
        return any(self.margins(pair) for pair in self.pairs)

    def margins(self, pair: Pair) -> BySeed:
        """Return what must be above zero, by seed."""
        name = next(iter(pair.first.values))
        ours, theirs = shared([pair.first.values[name], pair.second.values[name]])
        margin = self.margin or float.__sub__
        return {seed: margin(ours[seed], theirs[seed]) for seed in ours}

    @property
    def lines(self) -> list[str]:
        """Verdict, table and notes."""
        names = dict.fromkeys(pair.row for pair in self.pairs)
        rows = {name: [pair for pair in self.pairs if pair.row == name] for name in names}
        found = {name: [self.margins(pair) for pair in own] for name, own in rows.items()}
        text, whole = verdict(found)
        basis = (
            ""
            if whole is None
            else f": {whole}, n = {whole.num} {whole.unit}{'s' * (whole.num > 1)}"
        )
        missing = [name for name in rows if not any(found[name])]
        named = "; ".join(missing) if len(missing) < 7 else f"{len(missing)} of {len(rows)} rows"
        notes = [*self.notes, *([f"Not run or not recorded: {named}."] if missing else [])]
        lines = [f"**{text}**{basis}.", ""]
        if self.is_run:
            lines += [*self.table([pair for pair in self.pairs if self.margins(pair)]), ""]
        return lines + [f"- {note}" for note in notes] + ([""] if notes else [])

    def table(self, pairs: Sequence[Pair]) -> list[str]:
        """Return a line for all pairs and one for each row."""
        metrics = list(pairs[0].first.values)
        has_paper = any((pair.first - pair.second).paper is not None for pair in pairs)
        head = ["", "cells", *(f"{title}, {metrics[0]}" for title in self.titles)]
        head += [f"difference, {metric}" for metric in metrics]
        head += ["margin"] * (self.margin is not None) + ["difference, paper"] * has_paper
        lines = [head, ["---", *("---:" for _ in head[1:])]]
        names = list(dict.fromkeys(pair.row for pair in pairs))
        for name in ["all", *names] if len(names) > 1 else names:
            own = [pair for pair in pairs if name in ("all", pair.row)]
            sides = [shared([side.values[metrics[0]] for side in pair[1:]]) for pair in own]
            line = [name, str(len(own)), *(_mean(side[k] for side in sides) for k in (0, 1))]
            gains = [pair.first - pair.second for pair in own]
            line += [str(interval(gain.values[metric] for gain in gains)) for metric in metrics]
            line += [str(interval(map(self.margins, own)))] * (self.margin is not None)
            paper = [gain.paper for gain in gains if gain.paper is not None]
            lines.append(line + [signed(fmean(paper)) if paper else "–"] * has_paper)
        return [f"| {' | '.join(line)} |" for line in lines]


def claim(
    key: str,
    pairs: Sequence[Pair],
    *notes: str,
    margin: Margin | None = None,
    side: str = "",
    **names: str,
) -> Claim:
    """Return a claim with the words of claims.toml; `side` names the runs, after its sentence."""
    words = WORDS["claims"][key]
    titles = [title.format(**names) for title in words["titles"]]
    found = [*([words["note"]] if "note" in words else []), *notes]
    return Claim(words["text"].format(**names) + side, pairs, titles, found, margin)


def page(folder: Path) -> str:
    """Return the page."""
    lines = [WORDS["head"].lstrip(), *two_regimes(folder)]
    for number, each in enumerate(claims(folder), 1):
        lines += [f"## {number}. {each.text}", "", *each.lines]
    return "\n".join([*lines, *differences(folder)])


def two_regimes(folder: Path) -> list[str]:
    """Return the tables that stand before the claims: gains, and distances to the paper."""
    both = attacks_of_all_readings(folder)
    tables = {
        "gains": gain_table(folder),
        "distances": distance_table(folder),
        # With all attacks it would be the table above, and with LIE alone the one below.
        "shared": distance_table(folder, both) if 1 < len(both) < len(ATTACKS) else [],
        "lie": distance_table(folder, ("lie",)),
    }
    lines = []
    for key, table in tables.items():
        words = WORDS["regimes"][key]
        text = words["text"].format(attacks=", ".join(both))
        rounds = "" if key == "lie" else shorter_text(folder, PRINTED).strip()
        note = "\n".join(filter(None, (words["note"], rounds)))
        lines += [f"## {text}", "", note, "", *table, ""] if table else []
    return lines


def by_side(folder: Path, suite: str) -> list[tuple[str, Cells]]:
    """Return the runs of a suite for each side of the attacks and for all clients, if there are.

    Attacks without a side are with both. A name has the rounds of runs that are shorter than the
    suite asks for; that of all clients has the attacks, the side and the training, too.
    """
    if suite == "table1-cifar10":
        sides = {PLUS: reading(folder, ALONG), MINUS: reading(folder, AGAINST)}
        return [(side, cells) for side, cells in sides.items() if _is_sided(cells)]
    main, other = Cells(folder, suite), Cells(folder, suite, "other-side")
    found = {PLUS: main, MINUS: other}
    if main.part.columns == "attack":
        unsided = (
            Cells(folder, suite, attacks=UNSIDED) if set(main.columns) & set(UNSIDED) else None
        )
        found[MINUS] = unsided.joined([other]) if unsided else other
    sided = [(side + shorter(cells), cells) for side, cells in found.items() if _is_sided(cells)]
    sided += with_all_clients(folder, suite)
    return sided or ([("", main)] if main.runs else [])


def with_all_clients(folder: Path, suite: str) -> list[tuple[str, Cells]]:
    """Return the runs of a suite's questions with all clients in every round, by training."""
    found = []
    if (folder / f"{suite}.csv.gz").exists():
        found.append(("printed training", Cells(folder, suite, "all-clients")))
    if suite in ABLATED and (folder / f"{ABLATIONS}.toml").exists():
        found.append(("later training", Cells(folder, ABLATIONS, ABLATED[suite])))
    return [
        (f", all clients{PLUS}, {training} ({'; '.join(_attacks_and_rounds(cells))})", cells)
        for training, cells in found
        if _is_sided(cells)
    ]


def _attacks_and_rounds(cells: Cells) -> list[str]:
    names = [attack for attack in ATTACKS if attack in rounds_by_attack(cells)]
    listed = "six attacks" if names == list(ATTACKS) else ", ".join(names)
    return list(filter(None, (listed, shorter(cells).strip(" ()"))))


def shorter(cells: Cells) -> str:
    """Return, in brackets, the rounds of attacks whose runs are shorter than their part asks for.

    Empty: none is.
    """
    asked, known = rounds_of(cells.part), rounds_by_attack(cells)
    found = {attack: known[attack] for attack in [*ATTACKS, *known] if attack in known}
    texts = []
    for rounds in sorted({each for each in found.values() if each < asked}, reverse=True):
        names = [attack for attack in found if found[attack] == rounds]
        which = "" if len(names) == len(found) else f"{', '.join(names)}: "
        texts.append(f"{which}{rounds} of {asked} rounds")
    return f" ({'; '.join(texts)})" if texts else ""


def _is_sided(cells: Cells) -> bool:
    return any(label(run.config["attack"]) in SIDED for run in cells.runs)


def claims(folder: Path) -> list[Claim]:
    """Return the claims that have runs, in the order of the page."""
    found = [
        *all_clients(folder),
        *pair_claims(folder),
        *side_claims(folder),
        *one_client(folder),
        *rescued(folder, "table1-cifar10", "rfa", "RFA"),
        *rescued(folder, "table1-femnist", "rfa", "RFA"),
        *rescued(folder, "table1-femnist", "dnc", "DnC"),
        *deviation(folder),
        *motivation(folder),
        *fewer(folder, "table1-cifar10"),
        *fewer(folder, "table1-femnist"),
        *rise_then_fall(folder),
        *unknown_f(folder),
        *more_where_clients_differ(folder),
        *best_groups(folder),
        *more_dropped(folder),
        *dnc_on_larger_data(folder),
        *error_by_groups(folder),
        *adaptive(folder),
        *more_groups(folder),
        *over_the_mean(folder),
    ]
    has_figure = any("Figure 1" in each.text for each in found if each.is_run)
    return [each for each in found if each.is_run or (has_figure and "Figure 1" in each.text)]


def all_clients(folder: Path) -> list[Claim]:
    """Return the claims on GAS where all clients take part in every round, by attack and rule."""
    if not (folder / f"{ALL_CLIENTS}.toml").exists():
        return []
    later, printed = reading(folder, LATER), reading(folder, PRINTED)
    names = ("attacks", "{}"), ("rules", "{1}")
    found = [claim(f"all-{name}", gas_pairs(later, row=row)) for name, row in names]
    rounds = rounds_by_attack(printed)
    attacks = ", ".join(each for each in printed.columns if each in rounds)
    own = gas_pairs(printed, row="{1}")
    text = shorter_text(folder, PRINTED).strip()
    notes = [text] if text else []
    return [*found, claim("all-printed", own, *notes, attacks=attacks)]


def one_client(folder: Path) -> list[Claim]:
    """Weigh Krum against Multi-Krum where all clients take part, alone and inside GAS."""
    if not (folder / f"{ALL_CLIENTS}.toml").exists():
        return []
    near, gains, below = [], [], []
    later, printed = reading(folder, LATER), reading(folder, PRINTED)
    for attack in later.columns:
        paper = later.side(("multi-krum", attack), METRICS).paper or nan
        many, one, inside = (
            later.side((rule, attack), METRICS) for rule in ("multi-krum", "krum", "gas(krum)")
        )
        near.append(Pair(attack, distance(many, paper), distance(one, paper)))
        gains.append((inside - one).values["best"])
        below.append(fmean(one.values["best"].values() or [nan]) < paper - 10)
    apart = []
    for attack in rounds_by_attack(printed):
        paper = printed.side(("multi-krum", attack), METRICS).paper or nan
        sides = (printed.side((rule, attack), METRICS) for rule in ("multi-krum", "krum"))
        both = (_mean([distance(side, paper).values["distance"]]) for side in sides)
        apart.append(f"{' and '.join(both)} under {attack}")
    notes = [
        f"Attacks in which Krum ends 10 points or more below that: {sum(below)} of {len(below)}.",
        f"With the printed training Multi-Krum and Krum are so far from it: {'; '.join(apart)}.",
        f"GAS(Krum) − Krum: {interval(gains)}.",
    ]
    kept = [
        Pair(base, *(later.side((f"gas({rule})", attack), KEPT) for rule in (base, "krum")))
        for base in BASES
        for attack in SIDED
    ]
    return [claim("krum-all", near, *notes), claim("one", kept)]


def deviation(folder: Path) -> list[Claim]:
    """Return the claim of Figure 2."""
    return [
        claim("deviation", swapped(gas_pairs(cells, row="{1}", metrics=DISTANCE)), side=side)
        for side, cells in by_side(folder, "figure2-deviation")
    ]


def fewer(folder: Path, suite: str) -> list[Claim]:
    """Return the claim on the Byzantine clients' share of the update."""
    return [
        claim(
            "fewer",
            swapped(gas_pairs(cells, row="{1}, {0}", metrics=SHARE)),
            side=side,
            data=DATA[suite],
        )
        for side, cells in by_side(folder, suite)
    ]


def gas_pairs(
    cells: Cells,
    *,
    against: str = "{}",
    row: str = "{}",
    metrics: Mapping[str, Metric] = METRICS,
    bases: Sequence[str] = BASES,
) -> list[Pair]:
    """Return gas(A) beside A, or beside another form of it, for every column and A."""
    pairs = []
    for column in cells.columns:
        for base in bases:
            name = row.format(attack_of(column), base)
            first, second = ((rule, column) for rule in (f"gas({base})", against.format(base)))
            pairs.append(Pair(name, cells.side(first, metrics), cells.side(second, metrics)))
    return pairs


def pair_claims(folder: Path) -> list[Claim]:
    """Return the claims that GAS(A) is more accurate than A, or than Bucketing(A)."""
    found = {suite: _pair_claims(folder, suite) for suite in WORDS["suites"]}
    first = found.pop("table1-cifar10")
    others = [each for own in found.values() for each in own]
    return [*first, *mild(folder), *bucketing(folder), *others]


def _pair_claims(folder: Path, suite: str) -> list[Claim]:
    text, row = WORDS["suites"][suite]
    if suite not in ABLATED and not (folder / f"{suite}.csv.gz").exists():
        return []
    found = []
    for side, cells in by_side(folder, suite):
        lent = borrowed_text(folder).strip() if (suite, side) == ("table1-cifar10", PLUS) else ""
        notes = [*([lent] if lent else []), *means_of(cells, BASES)]
        found.append(Claim(text + side, gas_pairs(cells, row=row), notes=notes))
    return found


def mild(folder: Path) -> list[Claim]:
    """Return the claim that the gain over DnC is mild on CIFAR-10."""
    return [
        claim(
            "mild",
            gas_pairs(cells, bases=["dnc"]),
            margin=lambda ours, theirs: 3 - abs(ours - theirs),
            side=side,
        )
        for side, cells in by_side(folder, "table1-cifar10")
    ]


def bucketing(folder: Path) -> list[Claim]:
    """Return the claims that GAS(A) is more accurate than Bucketing(A)."""
    found = []
    for side, cells in by_side(folder, "table2-bucketing"):
        weak = means_of(cells, [f"bucketing({base})" for base in BASES])
        pairs = gas_pairs(cells, against="bucketing({})")
        found.append(claim("bucketing", pairs, *weak, side=side))
    return found


def means_of(cells: Cells, rules: Sequence[str]) -> list[str]:
    """Return the note on rules that equal the mean."""
    weak = ", ".join(cells.means(rules))
    return [f"{NOTES['mean']}: {weak}."] if weak else []


def side_claims(folder: Path) -> list[Claim]:
    """Return what the probes show: attacks with sign = +1, and Krum."""
    if not (folder / "probes.toml").exists():
        return []
    along = reading(folder, ALONG)
    pairs, gains, printed = [], [], []
    for column in along.columns:
        paper = along.side(("multi-krum", column), METRICS).paper or nan
        many, one, inside = (
            along.side((rule, column), METRICS) for rule in ("multi-krum", "krum", "gas(krum)")
        )
        pairs.append(Pair(column, distance(many, paper), distance(one, paper)))
        gains.append((inside - one).values["best"])
        if gains[-1]:
            printed.append((along.side(("gas(multi-krum)", column), METRICS).paper or nan) - paper)
    against = reading(folder, AGAINST).values(("krum", "lie"), METRICS["best"])
    notes = [
        f"With sign = −1 Krum reaches {_mean([against])} under LIE.",
        f"GAS(Krum) − Krum: {interval(gains)}; paper: {signed(fmean(printed or [nan]))}.",
    ]
    sided = [pair for pair in gas_pairs(along) if pair.row in SIDED]
    alone = own_runs(folder)
    return [claim("side", sided, *alone, *means_of(along, BASES)), claim("krum", pairs, *notes)]


def own_runs(folder: Path) -> list[str]:
    """Return the note on the runs of the probes that count, with the interval without them."""
    cells = Cells(folder, "table1-cifar10", attacks=SIDED)
    gains = [(pair.first - pair.second).values for pair in gas_pairs(cells)]
    found = {name: interval([each[name] for each in gains]) for name in METRICS}
    if None in found.values():
        return []
    texts = [f"{name} {each}" for name, each in found.items()]
    seeds = sorted({seed for each in gains for seed in each["best"]})
    text = f"{' and '.join(map(str, seeds))} alone: {', '.join(texts)}."
    lent = borrowed_text(folder).strip()
    return [f"{lent} Seeds {text}"] if lent else []


def distance(side: Side, paper: float) -> Side:
    """Return how far a side is from a number of the paper."""
    values = {seed: abs(value - paper) for seed, value in side.values["best"].items()}
    return Side({"distance": values}, None)


def rescued(folder: Path, suite: str, base: str, name: str) -> list[Claim]:
    """Compare the columns in which the paper's own numbers collapse."""
    found = []
    names = {"name": name, "data": DATA[suite]}
    for side, cells in by_side(folder, suite):
        pairs = [
            each
            for each in gas_pairs(cells, bases=[base])
            if (each.second.paper or nan) < (each.first.paper or nan) / 2
        ]
        found.append(
            claim(
                "rescued", pairs, margin=lambda ours, theirs: ours / 2 - theirs, side=side, **names
            )
        )
    return found


def motivation(folder: Path) -> list[Claim]:
    """Compare clients that are alike with clients that differ, rule by rule (Figure 1)."""
    found = []
    for side, end in ((", sign = +1", ""), (", sign = −1", "-other-side")):
        parts = [Cells(folder, "figure1-motivation", f"{part}{end}") for part in ("iid", "non-iid")]
        if any(part.runs for part in parts):
            found += _motivation(*parts, side)
    return found


def _motivation(iid: Cells, other: Cells, side: str) -> list[Claim]:
    """Return the three claims of Figure 1."""

    def by_rule(metrics: Mapping[str, Metric], bases: Sequence[str]) -> list[Pair]:
        sides = [[each.side((base, "lie"), metrics) for each in (iid, other)] for base in bases]
        return [Pair(base, *both) for base, both in zip(bases, sides, strict=True)]

    out = by_rule(SHARE, ("median", "trimmed-mean", "bulyan"))
    return [
        claim("lose", by_rule(METRICS, BASES), side=side),
        claim("more", swapped(by_rule(SHARE, ("multi-krum", "rfa", "dnc"))), side=side),
        claim("out", out, margin=lambda first, second: 10 - max(first, second), side=side),
    ]


def rise_then_fall(folder: Path) -> list[Claim]:
    """Compare the number of groups that is best in the paper with the smallest and the largest."""
    found = by_side(folder, "table3-num-groups")
    return [_rise_then_fall(cells, side) for side, cells in found]


def _rise_then_fall(cells: Cells, side: str) -> Claim:
    pairs = []
    for rule in cells.part.rows:
        sides = {p: cells.side((rule, p), METRICS) for p in cells.columns}
        best = max(sides, key=lambda p: sides[p].paper or 0)
        for end in (cells.columns[0], cells.columns[-1]):
            pairs.append(Pair(f"{rule}, p = {best:,} and {end:,}", sides[best], sides[end]))
    return claim("groups", pairs, side=side)


def unknown_f(folder: Path) -> list[Claim]:
    """Compare a guessed number of Byzantine clients with the true one."""
    found = []
    for side, cells in by_side(folder, "table4-unknown-f"):
        pairs = []
        for guess in (each for each in cells.columns if each != "oracle"):
            for rule in cells.part.rows:
                sides = (cells.side((rule, each), METRICS) for each in (guess, "oracle"))
                pairs.append(Pair(f"δ = {guess}", *sides))
        found += [
            claim("unknown", pairs, margin=lambda guess, known: guess - known + 5, side=side),
            claim("known", swapped(pairs), side=side),
        ]
    return found


def more_where_clients_differ(folder: Path) -> list[Claim]:
    """Compare GAS's gains under LIE for the smallest and the largest β."""
    found = []
    for side, cells in by_side(folder, "table5-heterogeneity"):
        gains: dict[Any, dict[str, Side]] = {0.3: {}, 0.7: {}}
        for pair in gas_pairs(cells, row="{0} {1}"):
            beta, base = pair.row.split()
            gains[float(beta)][base] = pair.first - pair.second
        pairs = [Pair("under LIE", gains[0.3][base], gains[0.7][base]) for base in BASES]
        found.append(claim("beta", pairs, side=side))
    return found


def best_groups(folder: Path) -> list[Claim]:
    """Compare the number of groups at which two rules inside GAS are best."""
    return [_best_groups(cells, side) for side, cells in by_side(folder, "table3-num-groups")]


def _best_groups(cells: Cells, side: str) -> Claim:
    found = {rule: best_column(cells, rule) for rule in ("gas(bulyan)", "gas(multi-krum)")}
    notes = []
    for rule, best in found.items():
        by_seed = next(iter(best.values.values()))
        ours = ", ".join(f"{10**value:,.0f} (seed {seed})" for seed, value in by_seed.items())
        paper = f"; paper: {10**best.paper:,.0f}" if best.paper is not None else ""
        notes += [f"{rule} is best at p = {ours}{paper}."] if by_seed else []
    return claim("best-groups", [Pair("p", *found.values())], *notes, side=side)


def best_column(cells: Cells, rule: str) -> Side:
    """Return log10 of the column with the largest accuracy, for seeds that all columns have."""
    sides = {column: cells.side((rule, column), METRICS) for column in cells.columns}
    best: dict[str, BySeed] = {}
    for name in METRICS:
        kept = dict(zip(sides, shared([each.values[name] for each in sides.values()]), strict=True))
        seeds = next(iter(kept.values()), {})
        best[f"log10(p), {name}"] = {
            seed: log10(max(kept, key=lambda column: kept[column][seed])) for seed in seeds
        }
    printed = {column: each.paper for column, each in sides.items() if each.paper is not None}
    paper = log10(max(printed, key=lambda column: printed[column])) if printed else None
    return Side(best, paper)


def more_dropped(folder: Path) -> list[Claim]:
    """Compare the two guesses of Table 4; the paper's text and its numbers disagree."""
    found = []
    for side, cells in by_side(folder, "table4-unknown-f"):
        pairs = [
            Pair(rule, *(cells.side((rule, guess), METRICS) for guess in (0.3, 0.1)))
            for rule in cells.part.rows
        ]
        gains = [gain for each in pairs if (gain := (each.first - each.second).paper) is not None]
        lower = sum(gain < 0 for gain in gains)
        note = (
            f"The text of the paper claims this; its Table 4 has δ = 0.3 below δ = 0.1 for {lower} "
            f"rules of {len(gains)}."
        )
        found.append(claim("more-dropped", pairs, note, side=side))
    return found


def dnc_on_larger_data(folder: Path) -> list[Claim]:
    """Ask whether the gain over DnC is more than mild on data that are larger than CIFAR-10."""
    by_name: dict[str, list[Pair]] = {}
    for suite, data in LARGER.items():
        if (folder / f"{suite}.csv.gz").exists():
            for side, cells in by_side(folder, suite):
                found = gas_pairs(cells, row=data + ", {0}", bases=["dnc"])
                by_name.setdefault(side, []).extend(found)
    margin = lambda ours, theirs: ours - theirs - 3  # noqa: E731
    return [claim("larger", found, margin=margin, side=side) for side, found in by_name.items()]


def error_by_groups(folder: Path) -> list[Claim]:
    """Compare the squared deviation of each number of groups with that of the next larger one."""
    found = []
    for side, cells in by_side(folder, "table3-num-groups"):
        pairs = [
            Pair(f"{rule}, p = {few:,} and {many:,}", *sides)
            for rule in cells.part.rows
            for few, many in pairwise(cells.columns)
            if (sides := [cells.side((rule, p), SQUARED) for p in (few, many)])
        ]
        found.append(claim("error", pairs, side=side))
    return found


def adaptive(folder: Path) -> list[Claim]:
    """Compare GAS(A) with A under attacks that adapt to the rule, with all clients."""
    if not (folder / f"{ABLATIONS}.toml").exists():
        return []
    cells = Cells(folder, ABLATIONS, "adaptive")
    bases = [rule for rule in cells.part.rows if f"gas({rule})" in cells.part.rows]
    return [claim("adaptive", gas_pairs(cells, bases=bases), side=shorter(cells))]


def more_groups(folder: Path) -> list[Claim]:
    """Compare GAS with a million groups with GAS with a thousand, with all clients."""
    if not many_groups.is_run(folder):
        return []
    found = many_groups.ByGroups(folder)
    sizes = many_groups.MANY, many_groups.FEW
    pairs = [
        Pair(base, *(found.side(base, size, attack) for size in sizes))
        for base in many_groups.RULES
        for attack in SIDED
    ]
    return [claim("more-groups", pairs)]


def over_the_mean(folder: Path) -> list[Claim]:
    """Compare GAS with a plain mean, in every reading of Table 1 on CIFAR-10."""
    found = readings(folder) if (folder / f"{ALL_CLIENTS}.toml").exists() else {}
    return [_over_the_mean(folder, name, cells) for name, cells in found.items()]


def _over_the_mean(folder: Path, name: str, cells: Cells) -> Claim:
    krum = [each.first - each.second for each in gas_pairs(cells, against="mean", bases=["krum"])]
    gains = [str(interval(each.values[metric] for each in krum)) for metric in METRICS]
    notes = [NOTES["krum"].format(" / ".join(gains)), shorter_text(folder, name).strip()]
    found = gas_pairs(cells, against="mean", metrics=PROTOCOL)
    apart = [x for each in found for x in (each.first - each.second).values["protocol"].values()]
    if any(apart):
        notes.append(NOTES["protocols"].format(sum(map(bool, apart)), len(apart)))
    pairs = gas_pairs(cells, against="mean", row="{1}")
    return claim("over-mean", pairs, *filter(None, notes), name=name)


def differences(folder: Path) -> list[str]:
    """Return tables: our accuracies beside the paper's, and how near attacks on each side come."""
    ours, near = [], []
    for suite, data in DATA.items():
        for side, cells in by_side(folder, suite):
            if side.startswith(PLUS):
                name = f"{data}{shorter(cells)}"
                ours += [Pair(f"{name}, {which}", *both) for which, *both in _to_paper(cells)]
    sides = dict(by_side(folder, "table1-cifar10"))
    if (folder / "probes.toml").exists() and len(sides) == 2:
        for (rule, column), number in sides[MINUS].printed.items():
            if column in SIDED:
                both = (sides[side].side((rule, column), BEST) for side in (MINUS, PLUS))
                far = (distance(each, number.accuracy) for each in both)
                near.append(Pair(f"{DATA['table1-cifar10']}, {_with_gas(rule)}", *far))
    lines = []
    for key, pairs in (("ours", ours), ("near", near)):
        own = claim(key, pairs)
        known = [pair for pair in pairs if own.margins(pair)]
        lines += [f"## {own.text}", "", *own.table(known), ""] if known else []
    return lines


def _to_paper(cells: Cells) -> Iterable[tuple[str, Side, Side]]:
    """Return, for each number of the paper, whether it is one of GAS, ours, and the paper's."""
    for (rule, column), number in cells.printed.items():
        side = cells.side((rule, column), BEST)
        paper = dict.fromkeys(side.values["best"], number.accuracy)
        yield _with_gas(rule), side, Side({"best": paper}, None)


def _with_gas(rule: str) -> str:
    return f"{'with' if rule.startswith('gas(') else 'without'} GAS"


def swapped(pairs: Sequence[Pair]) -> list[Pair]:
    """Return the pairs the other way round."""
    return [Pair(pair.row, pair.second, pair.first) for pair in pairs]


def attack_of(column: Any) -> str:
    """Return the name of an attack without its parameters, or any other column as text."""
    return str(column).partition("(")[0]


def _mean(cells: Iterable[BySeed]) -> str:
    values = [fmean(cell.values()) for cell in cells if cell]
    return f"{fmean(values):.1f}" if values else "–"
