"""Table 1 on CIFAR-10, read in several ways: who takes part, which side, how clients train.

Gains of GAS, distances to the paper, missing runs and GPU time of each, from the exports.
"""

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from outvote.report.provenance import short_commit
from outvote.results.labels import label
from outvote.results.run import Result
from outvote.suites.presets import PRESETS
from outvote.suites.suite import Part, read_suite
from paired import BASES, METRICS, BySeed, Cells, shared, signed

ALL_CLIENTS = "table1-cifar10-all-clients"
ATTACKS = ("bit-flip", "label-flip", "lie", "min-max", "min-sum", "ipm")
SIDED = ("lie", "min-max", "min-sum")
"""The attacks that have a sign: +1 is along the deviation of the gradients, −1 against it."""
LATER, PRINTED = "all 50, later training", "all 50, printed training"
ALONG, AGAINST = "5 of 50, sign = +1", "5 of 50, sign = −1"


class Source(NamedTuple):
    """A part of a suite, and the attacks that are taken from it."""

    suite: str
    part: str
    attacks: Sequence[str] = ATTACKS
    rules: Sequence[str] = ()
    """Empty: all."""


KRUM = ("mean", "krum", "gas(krum)")
RULES = ["mean", *(name for base in ("krum", *BASES) for name in (base, f"gas({base})"))]
"""The rows of tables over all rules."""
UNSIDED = tuple(name for name in ATTACKS if name not in SIDED)
READINGS: Mapping[str, Sequence[Source]] = {
    LATER: [Source(ALL_CLIENTS, "later-training")],
    PRINTED: [Source(ALL_CLIENTS, "printed-training"), Source("table1-cifar10", "all-clients")],
    ALONG: [
        Source("table1-cifar10", "main"),
        Source("probes", "other-side", SIDED),
        Source("probes", "rules", UNSIDED, KRUM),
        Source("probes", "mean", ATTACKS, KRUM),
        Source("probes", "krum", UNSIDED, KRUM),
    ],
    AGAINST: [
        Source("table1-cifar10", "main", UNSIDED),
        Source("table1-cifar10", "other-side", SIDED),
        Source("probes", "rules", ATTACKS, KRUM),
        Source("probes", "mean", UNSIDED, KRUM),
        Source("probes", "krum", ATTACKS, KRUM),
    ],
}
"""How the paper's table can be read; of two runs of a cell and seed, the first source's counts."""


def reading(folder: Path, name: str) -> Cells:
    """Return the runs of one reading."""
    own = [each for each in READINGS[name] if _is_there(folder, each.suite)]
    found = [_cells(folder, each) for each in own]
    return found[0].joined(found[1:])


def readings(folder: Path, names: Iterable[str] = READINGS) -> dict[str, Cells]:
    """Return the readings that have runs."""
    found = {name: reading(folder, name) for name in names if _has_source(folder, name)}
    return {name: cells for name, cells in found.items() if cells.runs}


def _cells(folder: Path, source: Source) -> Cells:
    return Cells(folder, source.suite, source.part, source.rules, source.attacks)


def _is_there(folder: Path, suite: str) -> bool:
    return suite == "table1-cifar10" or (folder / f"{suite}.toml").exists()


def _has_source(folder: Path, name: str) -> bool:
    return any(_is_there(folder, each.suite) for each in READINGS[name])


def gain(cells: Cells, base: str, attack: str, metric: str) -> BySeed:
    """Return what GAS adds to a rule under an attack, seed by seed."""
    both = [cells.values((rule, attack), METRICS[metric]) for rule in (f"gas({base})", base)]
    inside, alone = shared(both)
    return {seed: inside[seed] - alone[seed] for seed in inside}


def gain_table(folder: Path, names: Iterable[str] = READINGS) -> list[str]:
    """Return the table of gains: all pairs, each attack, each rule, in every regime."""
    found = readings(folder, names)
    if not found:
        return []
    groups = {
        "six rules, six attacks": (BASES, ATTACKS),
        **{attack: (BASES, (attack,)) for attack in ATTACKS},
        **{base: ((base,), ATTACKS) for base in BASES},
        "krum (not counted above)": (("krum",), ATTACKS),
    }
    lines = [["GAS(A) − A", *found, "paper"], ["---", *("---:" for _ in found), "---:"]]
    for name, (bases, attacks) in groups.items():
        printed = [
            printed_gain(next(iter(found.values())), *cell) for cell in product(bases, attacks)
        ]
        known = [each for each in printed if each is not None]
        texts = [_gain_text(cells, bases, attacks) for cells in found.values()]
        lines.append([name, *texts, signed(fmean(known)) if known else "–"])
    lines.append(["seeds in a cell", *(_seed_counts(cells) for cells in found.values()), "5"])
    return [f"| {' | '.join(line)} |" for line in lines]


def training_table(folder: Path) -> list[str]:
    """Return gains by rule and attack with all clients: printed training, later in brackets.

    The attacks are those that were run with both.
    """
    found = [reading(folder, name) for name in (PRINTED, LATER)]
    own = [rounds_by_attack(cells) for cells in found]
    attacks = [attack for attack in ATTACKS if all(attack in each for each in own)]
    groups = {base: [base] for base in ("krum", *BASES)} | {"*six rules*": list(BASES)}
    heads = [f"{attack}, {own[0][attack]} rounds" for attack in attacks]
    lines = [["GAS(A) − A", *heads], ["---", *("---:" for _ in attacks)]]
    for name, bases in groups.items():
        texts = [[_means_text(cells, bases, [each]) for cells in found] for each in attacks]
        lines.append([name, *(f"{printed} ({later})" for printed, later in texts)])
    return [f"| {' | '.join(line)} |" for line in lines]


def _gain_text(cells: Cells, bases: Sequence[str], attacks: Sequence[str]) -> str:
    num = sum(len(gain(cells, *cell, "best")) for cell in product(bases, attacks))
    return f"{_means_text(cells, bases, attacks)} ({num})" if num else "–"


def _means_text(cells: Cells, bases: Sequence[str], attacks: Sequence[str]) -> str:
    """Return the mean gain in the best round and in the last ten; "–" without a pair."""
    texts = []
    for metric in METRICS:
        gains = [gain(cells, *cell, metric) for cell in product(bases, attacks)]
        values = [each for own in gains for each in own.values()]
        texts += [signed(fmean(values))] if values else []
    return " / ".join(texts) or "–"


def printed_gain(cells: Cells, base: str, attack: str) -> float | None:
    """Return the gain that the paper prints; None: it prints none."""
    both = [cells.printed.get((rule, attack)) for rule in (f"gas({base})", base)]
    return None if None in both else both[0].accuracy - both[1].accuracy  # type: ignore[union-attr]


def _seed_counts(cells: Cells) -> str:
    counts = [len(gain(cells, *cell, "best")) for cell in product(BASES, ATTACKS)]
    own = sorted({each for each in counts if each})
    return " or ".join(map(str, own))


def distance_table(folder: Path, attacks: Sequence[str] = ATTACKS) -> list[str]:
    """Return the mean absolute distance of best accuracies to the paper's, row by row."""
    found = readings(folder)
    if not found:
        return []
    rules = [name for base in BASES for name in (base, f"gas({base})")]
    groups = {rule: [rule] for rule in rules}
    groups |= {f"*{name}*": own for name, own in WITH_AND_WITHOUT.items()}
    lines = [["rule", *found], ["---", *("---:" for _ in found)]]
    for name, own in groups.items():
        far = [_distances(cells, own, attacks) for cells in found.values()]
        lines.append([name, *(f"{fmean(each):.1f} ({len(each)})" if each else "–" for each in far)])
    return [f"| {' | '.join(line)} |" for line in lines]


def distances_by_reading(folder: Path) -> list[str]:
    """Return the same without the rows of single rules, a line for each reading."""
    lines = [["reading", *WITH_AND_WITHOUT, "seeds"], ["---", *("---:" for _ in range(4))]]
    for name, cells in readings(folder).items():
        far = [_distances(cells, own, ATTACKS) for own in WITH_AND_WITHOUT.values()]
        texts = [f"{fmean(each):.1f}" if each else "–" for each in far]
        lines.append([name, *texts, _seed_counts(cells)])
    return [f"| {' | '.join(line)} |" for line in lines]


WITH_AND_WITHOUT: Mapping[str, Sequence[str]] = {
    "without GAS": BASES,
    "with GAS": [f"gas({base})" for base in BASES],
    "all": [name for base in BASES for name in (base, f"gas({base})")],
}


def _distances(cells: Cells, rules: Sequence[str], attacks: Sequence[str]) -> list[float]:
    """Return how far the cells that were run are from the paper's, in points."""
    return [
        abs(fmean(values.values()) - cells.printed[rule, attack].accuracy)
        for rule, attack in product(rules, attacks)
        if (values := cells.values((rule, attack), METRICS["best"]))
    ]


def seed_table(folder: Path) -> list[str]:
    """Return how many seeds each cell has, one number for each reading."""
    found = readings(folder)
    if not found:
        return []
    rules = [*KRUM, *(name for base in BASES for name in (base, f"gas({base})"))]
    lines = [["rule", *ATTACKS], ["---", *("---:" for _ in ATTACKS)]]
    for rule in rules:
        counts = [
            [len(cells.values((rule, attack), METRICS["best"])) for cells in found.values()]
            for attack in ATTACKS
        ]
        lines.append([rule, *(" / ".join(map(str, each)) for each in counts)])
    return [f"| {' | '.join(line)} |" for line in lines]


def borrowed_seeds(folder: Path) -> list[int]:
    """Return the seeds of LIE, Min-Max and Min-Sum, 5 of 50, +1, that only the probes have."""
    return sorted(
        {
            run.seed
            for run in reading(folder, ALONG).runs
            if run.suite == "probes" and run.rule not in KRUM and run.attack in SIDED
        }
    )


def borrowed_text(folder: Path) -> str:
    """Return a sentence on them, with a space before it; empty if there are none."""
    seeds = borrowed_seeds(folder)
    if not seeds:
        return ""
    listed = ", ".join(map(str, seeds))
    return (
        f" With 5 of 50 clients and sign = +1, seed {listed} of LIE, Min-Max and Min-Sum is that "
        "of the [probes](probes.md): an earlier protocol, which draws other random groups, and for "
        "Min-Max and Min-Sum the closed form of the factor, which the search tends to."
    )


WANTED = [
    (Source(ALL_CLIENTS, "later-training"), range(3)),
    (Source(ALL_CLIENTS, "printed-training"), range(3)),
    (Source("table1-cifar10", "main", SIDED), range(3)),
]
"""The parts that are to be complete, and their seeds."""


def missing_table(folder: Path, suites: Sequence[str] = (ALL_CLIENTS, "table1-cifar10")) -> str:
    """Return the runs that each part of the suites lacks, by attack and seed, with the commands.

    An attack has the rounds that its runs have; one without a run has those of most attacks.
    """
    lines = ["| part | attacks | seeds | rounds | runs | command |", "|---|---|---|---:|---:|---|"]
    for source, seeds in WANTED:
        if source.suite not in suites:
            continue
        name = f"study/results/{source.suite}.toml" if source.suite == ALL_CLIENTS else source.suite
        own = str(folder / f"{source.suite}.toml") if source.suite == ALL_CLIENTS else source.suite
        part = next(each for each in read_suite(own).parts if each.name == source.part)
        cells = _cells(folder, source)
        own_rounds = rounds_by_attack(cells)
        lacking: dict[tuple[tuple[int, ...], int], list[str]] = {}
        for attack in source.attacks:
            known = [set(cells.values((rule, attack), METRICS["best"])) for rule in part.rows]
            lost = tuple(seed for seed in seeds if any(seed not in own for own in known))
            if lost:
                rounds = own_rounds.get(attack, _usual(own_rounds, rounds_of(part)))
                lacking.setdefault((lost, rounds), []).append(attack)
        for (lost, rounds), attacks in lacking.items():
            words = ["outvote", "bench", name, "--part", source.part]
            words += [word for attack in attacks for word in ("--attack", attack)]
            words += ["--set", f"seed={list(lost)}"]
            words += [] if rounds == rounds_of(part) else ["--set", f"rounds={rounds}"]
            words += ["--precision", "bfloat16", "--device", "cuda"]
            num = len(part.rows) * len(attacks) * len(lost)
            listed = ", ".join(map(str, lost))
            lines.append(
                f"| {source.suite}, {source.part} | {', '.join(attacks)} | {listed} "
                f"| {rounds} | {num} "
                f"| `{shlex.join(words)}` |"
            )
    return "\n".join(lines)


def rounds_by_attack(cells: Cells) -> dict[str, int]:
    """Return the rounds of each attack that has runs; the most, if its runs differ."""
    found: dict[str, int] = {}
    for run in cells.runs:
        name = label(run.config["attack"])
        found[name] = max(found.get(name, 0), int(run.setting("rounds")))
    return found


def attacks_of_all_readings(folder: Path) -> list[str]:
    """Return the attacks that every reading has runs of."""
    found = [rounds_by_attack(cells) for cells in readings(folder).values()]
    return [attack for attack in ATTACKS if found and all(attack in each for each in found)]


def shorter_text(folder: Path, name: str) -> str:
    """Return a sentence on the rounds of a reading if they differ, with a space before it."""
    found = rounds_by_attack(reading(folder, name))
    most = max(found.values(), default=0)
    shorter = sorted({rounds for rounds in found.values() if rounds < most}, reverse=True)
    texts = [
        f"{', '.join(each for each in ATTACKS if found.get(each) == rounds)} {rounds} rounds"
        for rounds in shorter
    ]
    if not texts:
        return ""
    full = ", ".join(each for each in ATTACKS if found.get(each) == most)
    return f' Rounds differ in "{name}": {"; ".join([f"{full} {most} rounds", *texts])}.'


def _usual(own_rounds: Mapping[str, int], default: int) -> int:
    counts = Counter(own_rounds.values())
    return max(counts, key=lambda rounds: (counts[rounds], rounds), default=default)


def rounds_of(part: Part) -> int:
    """Return the rounds that a part asks for, itself or by its preset."""
    own = part.settings.get("rounds")
    return int(own or PRESETS[str(part.settings["preset"])]["rounds"])


def sweep_table(folder: Path) -> str:
    """Return runs, samples, seconds and samples per second by part, attack and seed."""
    head = ["part", "attack", "seed", "rounds", "runs", "samples", "seconds", "samples per second"]
    lines = [f"| {' | '.join([*head, 'commit'])} |", "|---|---|---:|---:|---:|---:|---:|---:|---|"]
    for source, _ in WANTED:
        groups: dict[tuple[int, int], list[Result]] = {}
        for run in _cells(folder, source).runs:
            key = ATTACKS.index(label(run.config["attack"])), run.seed
            groups.setdefault(key, []).append(run)
        for (place, seed), runs in sorted(groups.items()):
            samples, seconds = sum(r.num_samples for r in runs), sum(r.seconds for r in runs)
            speed, rounds = round(samples / seconds, -3), {r.setting("rounds") for r in runs}
            lengths = ", ".join(map(str, sorted(rounds)))
            commits = {(r.environment and r.environment.commit) or "unknown" for r in runs}
            named = ", ".join(sorted(map(short_commit, commits)))
            lines.append(
                f"| {source.suite}, {source.part} | {ATTACKS[place]} | {seed} | {lengths} "
                f"| {len(runs)} | {samples:,} | {seconds:,.0f} | {speed:,.0f} | {named} |"
            )
    return "\n".join(lines)
