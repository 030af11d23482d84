"""The published results are what the exports beside them give, to the last byte."""

import re
import runpy
import shlex
import shutil
import sys
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean

import msgspec
import numpy as np
import pytest

import client_selection
import theory_bounds
import who_pays
from choosing import PAGE, with_worst_cases, worst_cases
from gain_figure import draw_gains, gain_map
from made_results import made_results
from outvote.experiment.choosing import Choice, choose
from outvote.experiment.plan import plan_suite
from outvote.results.collect import collect
from outvote.results.export import to_export
from outvote.results.labels import label
from outvote.suites.suite import read_suite
from paired import BASES, METRICS, signed
from regimes import (
    AGAINST,
    ALONG,
    ATTACKS,
    LATER,
    PRINTED,
    borrowed_seeds,
    distance_table,
    gain_table,
    reading,
    readings,
)

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "results"
MADE = runpy.run_path(str(ROOT / "tools" / "results_pages.py"))
EXPORTS = [path.name.removesuffix(".csv.gz") for path in sorted(FOLDER.glob("*.csv.gz"))]


def test_each_page_is_what_outvote_table_prints():
    pages = MADE["tables"](FOLDER)
    assert set(pages) == {f"{name}.md" for name in EXPORTS if name in MADE["page_names"](FOLDER)}
    for name, text in pages.items():
        page = (FOLDER / name).read_text(encoding="utf-8")
        assert page == text, f"{name}: run python tools/results_pages.py"


def test_the_claims_are_counted_from_the_exports(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["claims.py", str(FOLDER)])
    runpy.run_path(str(ROOT / "tools" / "claims.py"), run_name="__main__")
    assert (FOLDER / "claims.md").read_text(encoding="utf-8") == capsys.readouterr().out


def test_the_gains_on_the_first_page_are_made_from_the_exports():
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert MADE["with_gains"](page, FOLDER) == page
    assert page.count("<!-- gains, ") == 1


def test_the_headline_of_the_readme_is_that_of_the_first_claim():
    """Where the first claim changes, the sentence has to be written anew."""
    claims = (FOLDER / "claims.md").read_text(encoding="utf-8")
    first = claims.split("## 1. With all 50 clients")[1].split("## 2. ")[0]
    mean, low, high, num = re.search(
        r"\*\*Holds\*\*: \+(\S+) \[\+(\S+), \+(\S+)\], n = (\d) seeds", first
    ).groups()
    seeds = {"2": "two", "3": "three"}[num]
    table = re.search(r"six rules, six attacks \| \+(\S+) / \+(\S+) \((\d+)\)", claims)
    readme = in_one_line("README.md")
    assert table[1] == mean
    assert (
        f"(95 % interval {low} to {high}, {seeds} complete seeds; last ten rounds: {table[2]};"
        in readme
    )
    along, against = (few_clients(sign) for sign in ("+1", "−1"))
    assert f"**{along[0]} with 5 of 50** ({along[1]} to {along[2]})" in readme
    assert f"{against[0]} ({against[1]} to {against[2]}) with the opposite sign" in readme
    assert "(three seeds; [claims 4 and 5]" in readme


def in_one_line(page):
    """The text of a page without line breaks."""
    return " ".join((ROOT / page).read_text(encoding="utf-8").split())


def few_clients(sign):
    """Mean and interval of the claim on 5 of 50 clients, without a plus."""
    claims = (FOLDER / "claims.md").read_text(encoding="utf-8")
    start = (
        f"GAS(A) is at least as accurate as A, under each attack (Table 1, CIFAR-10), sign = {sign}"
    )
    found = re.search(r": (\S+) \[(\S+), (\S+)\], n = 3 seeds", claims.split(start)[1])
    return [each.removeprefix("+") for each in found.groups()]


def test_the_figures_of_the_faq_are_those_of_the_claims_and_of_the_worst_cases():
    page = in_one_line("docs/concepts/faq.md")
    few = f"with 5 of 50 clients {few_clients('+1')[0]} ({few_clients('−1')[0]} with the opposite"
    assert few in page
    behind = behind_the_best("gas(dnc)")
    (far,) = [column for column, points in behind.items() if points > 5]
    assert far == "Tiny-ImageNet, all 50"
    near = max(points for column, points in behind.items() if column != far)
    assert f"the best row or at most {near:.1f} points below it" in page
    assert f"with all clients it is {behind[far]:.1f} points below RFA" in page
    assert len(behind) == 8


def test_the_page_on_choosing_states_how_far_the_rule_it_recommends_is_behind():
    text = PAGE.read_text(encoding="utf-8")
    behind = behind_the_best("gas(dnc)")
    near = max(points for points in behind.values() if points < 5)
    assert (
        f"is the best row or at most {near:.1f} points below it in seven columns of eight" in text
    )


def behind_the_best(rule):
    """Points below the best row of each column, among rows with all attacks of the others."""
    lines = [line.strip("| ").split(" | ") for line in worst_cases(FOLDER).splitlines()]
    head, rows = lines[0], {line[0]: line[1:] for line in lines[3:]}
    found = {}
    for number, column in enumerate(head[1:]):
        own = rows[rule][number]
        note = own.partition(" ")[2]
        others = [row[number] for row in rows.values() if row[number] != "–"]
        # On FEMNIST a rule may have fewer attacks than others: rows with as many or more count.
        known = [float(cell.split()[0]) for cell in others if "(" not in cell or note]
        found[column] = max(known) - float(own.split()[0])
    return found


def claimed(number):
    """The mean that decides a claim, with its sign."""
    claims = (FOLDER / "claims.md").read_text(encoding="utf-8")
    own = claims.split(f"\n## {number}. ")[1].split("\n## ")[0]
    return re.search(r"^\*\*.+\*\*: (\S+) \[", own, re.MULTILINE)[1]


def gained(row, column):
    """A mean gain in the best round, with its sign."""
    lines = [line.strip("| ").split(" | ") for line in gain_table(FOLDER)]
    (own,) = [line for line in lines if line[0].startswith(row)]
    return own[lines[0].index(column)].split(" / ")[0]


def kept(rule, column):
    """What a rule keeps under the worst attack, in percent."""
    lines = [line.strip("| ").split(" | ") for line in worst_cases(FOLDER).splitlines()]
    (own,) = [line for line in lines if line[0] == rule]
    return own[lines[0].index(column)]


def gains_in_first_rounds(name, attacks, num_rounds):
    """The gain of GAS if runs had ended earlier: best round / last ten rounds."""
    cells = reading(FOLDER, name)
    texts = []
    for measure in (np.max, lambda accuracy: accuracy[-10:].mean()):
        gains = []
        for base, attack in product(BASES, attacks):
            metric = lambda run: 100 * float(measure(run.series.accuracy[:num_rounds]))  # noqa: E731, B023
            inside, alone = (
                cells.values((rule, attack), metric) for rule in (f"gas({base})", base)
            )
            gains += [inside[seed] - alone[seed] for seed in inside]
        texts.append(signed(fmean(gains)))
    return " / ".join(texts)


IN_TEXT = {
    "README.md": [
        ("momentum 0.9) GAS gains {} points**", lambda: claimed(1)),
        ("that the paper prints: {} with all 50 (one seed; [claim 3]", lambda: claimed(3)),
        ("**{} with 5 of 50**", lambda: claimed(4)),
        ("to 1.5) and {} (", lambda: claimed(5)),
        ("and the later training DnC gains {},", lambda: gained("dnc", LATER)),
        ("Krum {}, Multi-Krum nothing.", lambda: gained("krum", LATER)),
        ("With the printed training DnC loses {}.", lambda: gained("dnc", PRINTED)),
    ],
    "docs/results/README.md": [
        ("later training: GAS gains {} points**", lambda: claimed(1)),
        ("printed training: {}** (one seed; [claim 3]", lambda: claimed(3)),
        ("5 of 50 clients: {}** [", lambda: claimed(4)),
        ("with sign = +1 and **{}** [", lambda: claimed(5)),
        ("instead of 1,000: GAS gains {} points**", lambda: claimed(60)),
        ("The mean gain over p = 1,000 is {} [", lambda: claimed(60)),
        ("one seed each**: +{} on FEMNIST", lambda: claimed(15)),
        ("on FEMNIST, +{} on CIFAR-100, **", lambda: claimed(17)),
        ("CIFAR-100, **−{} on 12 classes", lambda: claimed(20)),
        ("clients +{} on CIFAR-100 and **−9.9", lambda: claimed(19)),
        ("on CIFAR-100 and **−{} on Tiny-ImageNet**", lambda: claimed(22)),
        ("**GAS gains {} [+1.3, +11.3]", lambda: claimed(15)),
        ("GAS(DnC) keeps {} (later training)", lambda: kept("gas(dnc)", f"CIFAR-10, {LATER}")),
        ("or {} (printed) with all 50", lambda: kept("gas(dnc)", f"CIFAR-10, {PRINTED}")),
        ("GAS gains {} in the first 120", lambda: gains_in_first_rounds(LATER, ATTACKS, 120)),
        ("120 rounds and {} in 200:", lambda: gains_in_first_rounds(LATER, ATTACKS, 200)),
        ("under LIE the gain is {} and", lambda: gains_in_first_rounds(PRINTED, ["lie"], 120)),
        ("7.0 and {} (one seed)", lambda: gains_in_first_rounds(PRINTED, ["lie"], 200)),
    ],
    "docs/how-to/choose.md": [
        ("GAS(DnC) keeps {} % on CIFAR-10", lambda: kept("gas(dnc)", f"CIFAR-10, {LATER}")),
        ("training and {} with the printed one", lambda: kept("gas(dnc)", f"CIFAR-10, {PRINTED}")),
        ("With 5 of 50 it keeps {} under", lambda: kept("gas(dnc)", "CIFAR-10, 5 of 50")),
        ("to {} with all (one seed)", lambda: kept("gas(dnc)", "Tiny-ImageNet, all 50")),
        ("too: {} points with all 50 and the later training", lambda: claimed(1)),
        ("{} with all 50 and the printed one (one seed)", lambda: claimed(3)),
        ("(one seed), {} or", lambda: claimed(4)),
        ("or {} with 5 of 50, by the sign", lambda: claimed(5)),
    ],
    "docs/how-to/reproduce.md": [
        ("GAS gains {} points on CIFAR-10 with the later training", lambda: claimed(1)),
        ("and {} with the printed one (one seed)", lambda: claimed(3)),
        ("with 5 of 50 as printed {} (", lambda: claimed(4)),
        ("({} with the opposite sign", lambda: claimed(5)),
    ],
    "docs/concepts/faq.md": [
        ("({} with the printed one, one seed) it gains", lambda: claimed(3)),
        ("it gains {} points on average over six rules", lambda: claimed(1)),
    ],
}
"""Sentences with a figure, and where the figure comes from; the words have its sign."""


@pytest.mark.parametrize(
    ("page", "sentence", "figure"),
    [(page, *each) for page, own in IN_TEXT.items() for each in own],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_figures_in_the_text_are_those_of_the_exports(page, sentence, figure):
    """Where the figure changes, the sentence around it has to be read again."""
    found = figure()
    assert found.startswith("−") == ("loses" in sentence or "−{}" in sentence)
    number = re.sub(r"[+−]", "", found)
    assert sentence.format(number) in in_one_line(page)


CITED = {
    "1": "With all 50 clients in every round GAS(A) is at least as accurate as A, by attack",
    "2": "With all 50 clients in every round GAS(A) is at least as accurate as A, by rule",
    "3": "With all 50 clients in every round GAS(A) is at least as accurate as A (CIFAR-10, print",
    "4": "GAS(A) is at least as accurate as A, under each attack (Table 1, CIFAR-10), sign = +1",
    "5": "GAS(A) is at least as accurate as A, under each attack (Table 1, CIFAR-10), sign = −1",
    "15": "GAS(A) is at least as accurate as A, under each attack (Table 1, FEMNIST), sign = +1",
    "16": "GAS(A) is at least as accurate as A, under each attack (Table 1, FEMNIST), sign = −1",
    "17": "GAS(A) is at least as accurate as A, under each attack (Table 1, CIFAR-100), sign = +1",
    "19": "GAS(A) is at least as accurate as A, under each attack (Table 1, CIFAR-100), all",
    "20": "GAS(A) is at least as accurate as A, on 12 classes of Tiny-ImageNet (a substitute), si",
    "22": "GAS(A) is at least as accurate as A, on 12 classes of Tiny-ImageNet (a substitute), all",
    "23": "GAS(A) is at least as accurate as A, under LIE, Min-Max and Min-Sum alone",
    "24": "A reading of ours: the paper's Multi-Krum takes one client",
    "25": "The same reading where all 50 clients take part",
    "26": "GAS with Krum inside keeps fewer Byzantine clients",
    "29": "RFA collapses, and GAS rescues it (Table 1, FEMNIST), sign = +1",
    "31": "DnC collapses, and GAS rescues it (Table 1, FEMNIST), sign = +1",
    "34": "Rules lose accuracy when clients differ (Figure 1), sign = +1",
    "36": "Median, trimmed mean and Bulyan keep Byzantine clients out, iid or not (Figure 1)",
    "55": "DnC fails on larger data",
    "60": "GAS with p = 1,000,000 is more accurate than with p = 1,000",
    "61": "GAS(A) is more accurate than the plain mean, all 50, later",
    "63": "GAS(A) is more accurate than the plain mean, 5 of 50, sign = +1",
    "64": "GAS(A) is more accurate than the plain mean, 5 of 50, sign = −1",
}
"""Numbers of claims in the text of a page, and how the claim that is meant begins."""


def test_claims_that_pages_cite_have_the_number_they_are_cited_by():
    """Numbers move when a claim gets its first runs; then the pages have to be corrected."""
    text = (FOLDER / "claims.md").read_text(encoding="utf-8")
    heads = dict(re.findall(r"^## (\d+)\. (.+)$", text, re.MULTILINE))
    pages = (FOLDER / "README.md", ROOT / "README.md")
    cited = "".join(
        f"{each} "
        for page in pages
        for each in re.findall(r"\[claims? ([^]]+)\]", page.read_text(encoding="utf-8"))
    )
    assert set(re.findall(r"\d+", cited)) == set(CITED)
    assert {n: start for n, start in CITED.items() if not heads[n].startswith(start)} == {}


def test_missing_runs_are_made_from_the_exports():
    page = (FOLDER / "missing.md").read_text(encoding="utf-8")
    assert MADE["with_missing"](page, FOLDER) == page
    assert page.count("<!-- missing, ") == 1


def test_the_other_tables_of_the_first_page_are_made_from_the_exports():
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert MADE["with_tables"](page, FOLDER) == page
    assert page.count(" made by tools/results_pages.py -->") == 6


def planned(command):
    """The runs that a command with `outvote bench` would train."""
    words = shlex.split(command)
    asked = list(zip(words[3::2], words[4::2], strict=True))
    own = {name: [value for key, value in asked if key == name] for name, _ in asked}
    choice = Choice(
        parts=own.get("--part", []),
        rules=own.get("--rule", []),
        attacks=own.get("--attack", []),
        num_seeds=int(own["--seeds"][0]) if "--seeds" in own else None,
    )
    name = str(ROOT / words[2]) if words[2].endswith(".toml") else words[2]
    assert own["--device"] == ["cuda"], command
    return plan_suite(choose(read_suite(name), choice), own.get("--set", [])).specs


def test_commands_for_missing_runs_run_as_many_as_the_page_states():
    page = (FOLDER / "missing.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| .* \| (\d+) \| (`outvote .*) \|$", page, re.MULTILINE)
    assert len(rows) > 25
    for number, commands in rows:
        found = re.findall(r"`(outvote bench [^`]+)`", commands)
        assert sum(len(planned(each)) for each in found) == int(number), commands


def test_cells_that_the_page_does_not_name_as_missing_were_run():
    """Table 1 on FEMNIST is complete for one seed, and Table 3 with all clients lacks one cell."""
    for name, suite, missing in [
        ("table1-femnist", read_suite("table1-femnist"), []),
        ("ablations-all-clients", ABLATIONS, ["gas(bulyan, num_groups=2472266)"]),
    ]:
        choice = Choice(parts=[suite.parts[0].name], num_seeds=1)
        specs = plan_suite(choose(suite, choice), ["precision=bfloat16"]).specs
        done = {each.hash for each in collect([FOLDER / f"{name}.csv.gz"])}
        assert [spec.rule for spec in specs if spec.hash not in done] == missing


def test_the_table_by_number_of_groups_is_that_of_the_export():
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    runs = collect([FOLDER / "ablations-all-clients.csv.gz"])
    for name, rule in (("GAS(Multi-Krum)", "multi-krum"), ("GAS(Bulyan)", "bulyan")):
        cells = []
        for p in (100, 1000, 10_000, 100_000, 1_000_000, 2_472_266):
            own = f"gas({rule})" if p == 1000 else f"gas({rule}, num_groups={p})"
            found = [each for each in runs if each.config["rule"] == own and _is_plain(each)]
            kept = [each.series.num_kept_byzantine.mean() for each in found]
            cells += [f"{100 * each.best:.1f} ({kept[k]:.1f})" for k, each in enumerate(found)]
            cells += [] if found else ["not run"]
        assert f"| {name} | {' | '.join(cells)} |\n" in page


MANY_GROUPS = {
    "Multi-Krum": "multi-krum",
    "Bulyan": "bulyan",
    "Median": "median",
    "RFA": "rfa",
    "trimmed mean": "trimmed-mean",
}
SIDED = ("lie", "min-max", "min-sum")


def runs_by_groups():
    """Runs with all clients and the later training, by rule, p, attack and seed."""
    found = {}
    names = ("table1-cifar10-all-clients", "many-groups")
    for each in collect([FOLDER / f"{name}.csv.gz" for name in names]):
        if each.rule.startswith("gas(") and each.setting("training.batch_size") == 128:
            p = re.search(r"num_groups=(\d+)", each.config["rule"])
            rule = each.rule.removeprefix("gas(").removesuffix(")")
            found[rule, int(p[1]) if p else 1000, each.attack, each.seed] = each
    return found


def test_the_rows_by_number_of_groups_under_six_attacks_are_those_of_the_exports():
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    runs = runs_by_groups()
    measures = (
        lambda run: 100 * run.series.accuracy.max(),
        lambda run: 100 * run.series.accuracy[-10:].mean(),
        lambda run: run.series.num_kept_byzantine.mean(),
    )
    for (name, rule), p in product(MANY_GROUPS.items(), (1000, 100_000, 1_000_000)):
        (line,) = re.findall(rf"^\| {name} \| {p:,} \| (.*) \|$", page, re.MULTILINE)
        cells = line.split(" | ")
        for attack, cell in zip(head_of_attacks(), cells[:-1], strict=True):
            own = [runs[rule, p, attack, seed] for seed in range(3)]
            # Ties are rounded away from zero.
            found = [fmean(measure(run) for run in own) + 1e-9 for measure in measures]
            assert cell == "{:.1f} / {:.1f} ({:.1f})".format(*found)
        firsts = [float(cell.split(" / ")[0]) for cell in cells]
        assert firsts[-1] == min(firsts[:-1])


def as_number(text):
    """The number of a text with a typographic minus."""
    return float(text.replace("−", "-"))


def test_figures_on_more_groups_in_the_text_are_those_of_the_exports():
    runs = runs_by_groups()

    def mean_of(measure, rule, p, attack):
        return fmean(100 * getattr(runs[rule, p, attack, seed], measure) for seed in range(3))

    best, last_ten = (partial(mean_of, measure) for measure in ("best", "last_ten"))

    def lowest(measure, rule, p):
        return min(measure(rule, p, attack) for attack in ATTACKS)

    def span(values):
        return f"{min(values):.1f} to {max(values):.1f}"

    def change(attack, p):
        gains = [best(r, p, attack) - best(r, 1000, attack) for r in every]
        return f"{signed(min(gains))} to {signed(max(gains))}"

    def kept(rule):
        shares = (
            fmean(runs[rule, p, "lie", k].series.num_kept_byzantine.mean() for k in range(3))
            for p in (1000, 100_000, 1_000_000)
        )
        return [f"{each + 1e-9:.1f}" for each in shares]

    def both(rule, p):
        return [f"{lowest(measure, rule, p):.1f}" for measure in (best, last_ten)]

    every = list(MANY_GROUPS.values())
    four = every[1:]
    by_seed = [
        [getattr(runs[rule, p, attack, seed], measure) for p in (1000, 100_000, 1_000_000)]
        for rule, attack, seed in product(every, SIDED, range(3))
        for measure in ("best", "last_ten")
    ]
    assert all(many > max(few, some) for few, some, many in by_seed)
    reached = span([best(rule, 1_000_000, attack) for rule, attack in product(four, SIDED)])
    before, after = (span([lowest(best, rule, p) for rule in four]) for p in (1000, 1_000_000))
    ended, ends = (span([lowest(last_ten, rule, p) for rule in four]) for p in (1000, 1_000_000))
    krum = " and ".join(f"{lowest(best, 'multi-krum', p):.1f}" for p in (1_000_000, 1000))
    some = " / ".join(
        span([lowest(measure, rule, 100_000) for rule in ("bulyan", "median", "rfa")])
        for measure in (best, last_ten)
    )
    trimmed, many_krum = (" / ".join(both(r, 100_000)) for r in ("trimmed-mean", "multi-krum"))
    dnc = span([best(rule, 1000, attack) for rule in ("dnc", "krum") for attack in SIDED])
    changes, fewer = (
        [change(attack, p) for attack in ("bit-flip", "label-flip", "ipm")]
        for p in (1_000_000, 100_000)
    )
    lows, highs = zip(*(each.split(" to ") for each in changes), strict=True)
    widest = f"{min(lows, key=as_number)} to {max(highs, key=as_number)}"
    dnc3, krum3 = (both(rule, 1000) for rule in ("dnc", "krum"))
    sentences = {
        "docs/results/README.md": [
            f"inside GAS reach {reached} under these three",
            f"do with p = 1,000 ({dnc};",
            f"reach {after}, with p = 1,000 {before} (best round; Multi-Krum {krum})",
            f"(three seeds): {changes[0]}, {changes[1]} and {changes[2]} in the best round",
            f"changes by {widest} under bit-flip, label-flip and IPM.",
            f"have {some} with 100,000,",
            f"the trimmed mean has {trimmed} and Multi-Krum {many_krum}.",
            f"keeps {kept('median')[0]} of ten Byzantine clients with p = 1,000,",
            f"{kept('median')[1]} with 100,000 and {kept('median')[2]} with a million; Multi-Krum",
            f"Multi-Krum {', '.join(kept('multi-krum')[:2])} and {kept('multi-krum')[2]}.",
            f"100,000 groups {fewer[0]}, {fewer[1]} and {fewer[2]}.",
            f"p = 1,000 reach {dnc3[0]} and {krum3[0]} there; in the last ten rounds they end at",
            f"end at {dnc3[1]} and {krum3[1]}, the four with a million groups at {ends}.",
            f"{after} / {ends} instead of {' / '.join(dnc3)} (three seeds), and",
            f"about as much as GAS(Krum), {' / '.join(krum3)}.",
        ],
        "README.md": [
            f"worst of six attacks they reach {after} points, and {before} with 1,000; GAS(DnC)",
            f"GAS(DnC) and GAS(Krum) reach {dnc3[0]} and {krum3[0]} with 1,000",
        ],
        "docs/how-to/choose.md": [
            f"reach {after}, with p = 1,000 {before}, and GAS(Multi-Krum) {krum}.",
            f"these four reach {reached} under LIE, Min-Max and Min-Sum",
            f"they end at {ends} under the worst of the six, with p = 1,000 at {ended}",
            f"have {' / '.join(dnc3)} and {' / '.join(krum3)} under the worst of the six",
            f"RFA and Bulyan inside, {some}; the trimmed mean has {trimmed}.",
        ],
    }
    for page, own in sentences.items():
        text = in_one_line(page)
        assert [each for each in own if each not in text] == []


def over_mean(cells, rule, attack, metric):
    """GAS around a rule minus the mean, over the seeds that both have."""
    names = (f"gas({rule})", "mean")
    one, two = (cells.values((name, attack), METRICS[metric]) for name in names)
    return fmean(one[seed] - two[seed] for seed in one.keys() & two.keys())


def test_figures_beside_the_mean_in_the_text_are_those_of_the_exports():
    def listed(rules, metric):
        found = (
            fmean(over_mean(cells, *cell, metric) for cell in product(rules, ATTACKS))
            for cells in readings(FOLDER).values()
        )
        return [signed(each) for each in found]

    def in_words(values):
        return f"{', '.join(values[:3])} and {values[3]}"

    text, page = (in_one_line(name) for name in ("docs/results/README.md", "docs/how-to/choose.md"))
    dnc, six = ([listed(rules, each) for each in METRICS] for rules in (["dnc"], BASES))
    assert f"settings**: {in_words(dnc[0])} over six attacks in the best round" in text
    assert f"(last ten: {', '.join(dnc[1])}), but only the first of these has an interval" in text
    assert f"together have {in_words(six[0])} (last ten: {', '.join(six[1])};" in text
    krum = listed(["krum"], "best")
    assert f"with all clients ({krum[0]} and {krum[1]}) and nothing with 5 of 50 ({krum[2]}" in text
    few = f"{dnc[1][2][1:]} points in the last ten rounds with sign = +1 and {dnc[1][3][1:]} with"
    assert few in page
    assert f"in the best round it is {dnc[0][2][1:]} and {dnc[0][3][1:]}, all four" in page


def test_intervals_beside_the_mean_are_those_of_the_claims():
    claims = (FOLDER / "claims.md").read_text(encoding="utf-8").split("## 61. ")[1]
    rows = re.findall(
        r"^\| dnc \| 6 \| .* \| (\S+) \[(\S+), (\S+)\] \| .* \|$", claims, re.MULTILINE
    )
    assert len(rows) == 4
    assert [float(low.replace("−", "-")) > 0 for _, low, _ in rows] == [True, False, False, False]
    first, last = (f"{mean} [{low}, {high}]".replace("+", "") for mean, low, high in rows[::3])
    readme = in_one_line("README.md")
    assert f"only GAS(DnC) gains in all four settings: {first} to {last} points" in readme


def test_figures_beside_the_mean_with_few_clients_are_those_of_the_exports():
    def span(rules, attacks):
        found = [
            over_mean(reading(FOLDER, name), rule, attack, "last ten")
            for name, rule, attack in product((ALONG, AGAINST), rules, attacks)
        ]
        first, last = sorted(found, key=abs)[:: len(found) - 1]
        return f"{signed(first)} to {signed(last)}"

    text = in_one_line("docs/results/README.md")
    others = [rule for rule in BASES if rule != "dnc"]
    assert f"under bit-flip ({span(BASES, ['bit-flip'])} in the last ten rounds)" in text
    assert f"worse under IPM ({span(BASES, ['ipm'])}) and Min-Sum" in text
    assert f"Min-Sum ({span(BASES, ['min-sum'])});" in text
    near = span(["dnc"], ["lie", "min-max"]), span(others, ["lie", "min-max"])
    assert f"only GAS(DnC) is better ({near[0]}, the others {near[1]})" in text


def test_figures_of_many_groups_under_attacks_that_ask_the_rule_are_those_of_the_export():
    runs = {}
    for each in collect([FOLDER / "groups-small.csv.gz"]):
        groups = re.search(r"num_groups=(\d+)", each.config["rule"])
        name = each.rule, int(groups[1]) if groups else 1000, each.attack
        runs.setdefault(name, []).append(each)
    assert {len(own) for own in runs.values()} == {2}

    def last(*name):
        return fmean(100 * each.last_ten for each in runs[name])

    def span(values):
        return f"{min(values):.1f} to {max(values):.1f}"

    def around_three(attack, p):
        return span([last(f"gas({rule})", p, attack) for rule in ("multi-krum", "median", "rfa")])

    text, page = (in_one_line(name) for name in ("docs/results/README.md", "docs/how-to/choose.md"))
    gas = [name for name in runs if name[0].startswith("gas(")]
    aware = [last(*name) for name in gas if name[2] == "gas-aware"]
    assert len(aware) == 3 * 3 + 2
    assert f"`gas-aware` takes every GAS variant to {span(aware)} % on small images" in text
    assert f"`gas-aware` leaves every GAS variant at {span(aware)} % with 100, 1,000 and" in page
    assert f"every GAS variant is at {span(aware)}, with 100, 1,000 and 4,000 groups" in text
    alone = [f"{last(rule, 1000, 'gas-aware'):.1f}" for rule in ("dnc", "rfa")]
    assert f"DnC alone has {alone[0]}, RFA alone {alone[1]}." in text
    assert f"DnC alone has {alone[0]} and RFA alone {alone[1]} (two seeds," in page
    few, some, many = (around_three("optimal-ipm", p) for p in (100, 1000, 4000))
    assert f"100 groups have {few}, 1,000 {some} and 4,000 {many}." in text
    assert f"Under `optimal-ipm` 4,000 groups have {many}, 1,000 {some}." in page
    all_lie = span([last(*name) for name in gas if name[2] == "optimal-lie"])
    assert f"Under `optimal-lie` all GAS variants have {all_lie}." in text
    lie = [around_three("lie", p) for p in (100, 4000)]
    mean = f"{last('mean', 1000, 'lie'):.1f}"
    assert f"100 have {lie[0]}, 4,000 {lie[1]}, and the mean has {mean}." in text
    left = f"left every GAS variant at {span(aware)} %, DnC alone at {alone[0]} ("
    assert left in in_one_line("docs/concepts/limits.md")


def test_the_mean_is_the_best_row_with_few_clients():
    text = in_one_line("docs/results/README.md")
    rows = {
        row.split(" | ")[0].strip("| "): row.split(" | ")[3]
        for row in worst_cases(FOLDER).splitlines()[3:]
    }
    assert max(rows, key=lambda rule: float(rows[rule])) == "mean"
    assert f"The mean itself ends at {rows['mean']} under the worst of the nine attacks" in text
    assert f"(Bulyan, the mean of five too, {rows['bulyan']}; RFA {rows['rfa']}," in text
    page = in_one_line("docs/how-to/choose.md")
    assert f"the mean is the best row**: {rows['mean']}. Over six" in page


def test_figures_of_femnist_with_the_other_sign_in_the_text_are_those_of_the_export():
    text = in_one_line("docs/results/README.md")
    runs = {
        (each.rule, each.attack): each
        for each in collect([FOLDER / "table1-femnist.csv.gz"])
        if each.config["attack"] in ("min-max(method=search)", "min-sum(method=search)")
    }

    def last(rule, attack):
        return f"{100 * runs[rule, attack].last_ten:.1f}"

    def kept(rule, attack):
        own = runs[rule, attack].series
        return f"{100 * own.num_kept_byzantine.sum() / own.num_byzantine.sum():.0f}"

    ends = [" and ".join(last(r, a) for a in SIDED[1:]) for r in ("gas(dnc)", "dnc")]
    shares = " and ".join(kept("gas(dnc)", attack) for attack in SIDED[1:])
    assert {kept("dnc", attack) for attack in SIDED[1:]} == {"1"}
    assert f"GAS(DnC) ends at {ends[0]}, DnC alone at {ends[1]}; alone it keeps 1 %" in text
    assert f"inside GAS {shares} % are kept" in text
    own = runs["gas(bulyan)", "min-sum"].series
    assert (
        f"(best {100 * own.accuracy.max():.1f}, last ten {last('gas(bulyan)', 'min-sum')})" in text
    )
    for number, many in ((28, 7), (31, 7), (34, 6)):
        k = list(own.round).index(number)
        assert (own.num_byzantine[k], own.num_kept_byzantine[k]) == (many, many)
    assert f"{100 * max(own.accuracy[k + 1 :]):.1f}" == "8.2"
    for rule, name in (
        ("bulyan", "Bulyan alone reaches {} and ends at {}"),
        ("trimmed-mean", "{} and {}."),
    ):
        best = f"{100 * runs[rule, 'min-sum'].best:.1f}"
        assert name.format(best, last(rule, "min-sum")) in text


def test_the_runs_of_many_groups_are_complete():
    suite = read_suite(str(FOLDER / "many-groups.toml"))
    wanted = {(spec.rule, spec.attack, spec.seed) for spec in plan_suite(suite, []).specs}
    done = {
        (each.config["rule"], each.config["attack"], each.seed)
        for each in collect([FOLDER / "many-groups.csv.gz"])
    }
    assert done == wanted


def _is_plain(run):
    own = run.setting("data.beta"), run.setting("federation.byzantine")
    members = run.setting("federation.num_clients"), run.setting("federation.assumed_byzantine")
    return own == (0.5, 0.2) and members == (50, "oracle")


def test_the_table_of_the_page_on_choosing_is_made_from_the_exports():
    page = PAGE.read_text(encoding="utf-8")
    assert with_worst_cases(page, FOLDER) == page


def test_the_tables_of_the_page_on_the_theory_are_made_from_the_export():
    page = theory_bounds.PAGE.read_text(encoding="utf-8")
    assert theory_bounds.with_theory_bounds(page, FOLDER) == page


def test_the_table_of_the_page_on_who_pays_is_made_from_the_export():
    page = who_pays.PAGE.read_text(encoding="utf-8")
    assert who_pays.with_who_pays(page, FOLDER) == page
    own = [
        each
        for each in collect([FOLDER / "who-pays-small.csv.gz"])
        if (each.rule, each.attack) == ("median", "lie")
    ]
    worst = [each.series.worst_decile[-10:].mean() for each in own]
    means, differences, _ = re.findall(r"^\| median \| (.*) \|$", page, re.MULTILINE)
    assert len(own) == 3
    assert means.split(" | ")[2].split(" / ")[1] == f"{100 * sum(worst) / 3:.1f}"
    plain = [
        each.series.worst_decile[-10:].mean()
        for each in collect([FOLDER / "who-pays-small.csv.gz"])
        if (each.rule, each.attack) == ("mean", "lie")
    ]
    lost = 100 * (sum(plain) - sum(worst)) / 3
    assert differences.split(" | ")[3].startswith(f"−{lost:.1f} [−")


def test_who_pays_on_larger_data_are_means_over_attacks_of_the_last_ten_rounds():
    page = who_pays.PAGE.read_text(encoding="utf-8")
    table = page.split(who_pays.BEGIN_LARGE)[1].split(who_pays.END_LARGE)[0]
    head, *rows = [line.strip("| ").split(" | ") for line in table.splitlines() if "|" in line]
    cells = {row[0]: dict(zip(head, row, strict=True)) for row in rows[1:]}
    runs = [
        each
        for each in collect([FOLDER / "tiny-imagenet12.csv.gz"])
        if each.rule == "gas(median)" and each.environment.commit.startswith("7bf08e1")
    ]
    assert len(runs) == 6
    found = [
        f"{100 * sum(getattr(each.series, name)[-10:].mean() for each in runs) / 6:.1f}"
        for name in ("accuracy", "worst_decile")
    ]
    assert cells["gas(median)"]["Tiny-ImageNet, 5 of 50"] == " / ".join(found)
    assert cells["*attacks*"]["FEMNIST, 18 of 395"] == (
        "*bit-flip, label-flip, lie, min-max, min-sum, ipm*"
    )


def test_the_worst_case_is_the_smallest_mean_of_the_last_ten_rounds():
    rows = re.findall(
        r"^\| gas\(dnc\) \| ([\d.]+) \| [\d.]+ \| ([\d.]+) \|", worst_cases(FOLDER), re.MULTILINE
    )
    exports = ["table1-cifar10-all-clients"], ["table1-cifar10", "probes"]
    worst = []
    for names in exports:
        means = {}
        for each in collect([FOLDER / f"{name}.csv.gz" for name in names]):
            is_sided = "spread" not in each.config["attack"] and each.attack != "none"
            is_later = each.setting("training.batch_size") == 128 or len(names) == 2
            if each.config["rule"] == "gas(dnc(removal_factor=4))" and is_sided and is_later:
                last = 100 * each.series.accuracy[-10:].mean()
                # The closed form of a factor and its search are one attack.
                side = each.attack, "sign=1" in each.config["attack"]
                means.setdefault(side, []).append(last)
        worst.append(f"{min(sum(seeds) / len(seeds) for seeds in means.values()):.1f}")
    assert rows == [tuple(worst)]


def test_the_page_with_all_clients_has_the_seeds_of_every_cell():
    """Seed by seed from the export: a cell with fewer seeds than most has a note."""
    page = (FOLDER / "table1-cifar10-all-clients.md").read_text(encoding="utf-8")
    later = page.split("### ")[1]
    seeds = {}
    for each in collect([FOLDER / "table1-cifar10-all-clients.csv.gz"]):
        if each.setting("training.batch_size") == 128:
            seeds.setdefault((each.rule, each.attack), set()).add(each.seed)
    assert len(seeds) == 15 * 6
    head, *rows = [line.split(" | ") for line in later.splitlines() if line.startswith("| ")]
    usual = int(re.search(r"deviation, (\d)(?: of \d)? seeds", later)[1])
    for row in rows[1:]:
        for attack, cell in zip(head[1:7], row[1:7], strict=True):
            noted = re.search(r"(\d)(?: of \d)? seeds?\)", cell)
            number = int(noted[1]) if noted else usual
            assert number == len(seeds[row[0].removeprefix("| "), attack]), (row[0], attack)


def section(title):
    """The rows of a table of the page with all clients, each a list of cells."""
    page = (FOLDER / "table1-cifar10-all-clients.md").read_text(encoding="utf-8")
    text = page.split(f"### {title}\n")[1].split("\n### ")[0]
    lines = [line.strip("| ") for line in text.splitlines() if line.startswith("|")]
    return [line.split(" | ") for line in lines[:1] + lines[2:]]


def test_the_page_with_all_clients_counts_the_seeds_of_every_reading():
    head, *rows = section("Seeds of each cell")
    counts = {
        (row[0], attack): [int(number) for number in cell.split(" / ")]
        for row in rows
        for attack, cell in zip(head[1:], row[1:], strict=True)
    }
    assert len(counts) == 15 * 6
    along, against = set(), set()
    for each in collect([FOLDER / "table1-cifar10.csv.gz", FOLDER / "probes.csv.gz"]):
        if (each.config["rule"], each.attack) == ("median", "lie"):
            sides = {"lie(sign=1)": along, "lie": against}
            sides.get(each.config["attack"], set()).add(each.seed)
    printed = {}
    for each in collect([FOLDER / "table1-cifar10-all-clients.csv.gz"]):
        if each.setting("training.batch_size") == 64:
            printed.setdefault((each.rule, each.attack), set()).add(each.seed)
    for cell, numbers in counts.items():
        assert numbers[1] == len(printed.get(cell, ())), cell
    assert counts["median", "lie"] == [3, 1, len(along), len(against)]
    assert counts["mean", "ipm"] == [3, 1, 3, 3]
    assert counts["krum", "min-sum"] == [3, 1, 1, 1]


def test_the_page_with_all_clients_has_distances_and_speeds_that_are_those_of_the_runs():
    head, *rows = section("Points from the paper, by row and reading")
    assert head[1:] == list(readings(FOLDER))
    cells = reading(FOLDER, LATER)
    (row,) = [row for row in rows if row[0] == "gas(dnc)"]
    away = [
        abs(sum(found.values()) / len(found) - cells.printed["gas(dnc)", attack].accuracy)
        for attack in head_of_attacks()
        if (found := cells.values(("gas(dnc)", attack), lambda run: 100 * run.best))
    ]
    assert row[1] == f"{sum(away) / 6:.1f} (6)"
    speeds = {tuple(row[:3]): row for row in section("GPU time")[1:]}
    own = [run for run in cells.runs if (run.attack, run.seed) == ("min-sum", 2)]
    samples, seconds = sum(r.num_samples for r in own), sum(r.seconds for r in own)
    found = speeds["table1-cifar10-all-clients, later-training", "min-sum", "2"]
    assert found[3:7] == ["200", "15", f"{samples:,}", f"{seconds:,.0f}"]
    assert int(found[7].replace(",", "")) == pytest.approx(samples / seconds, abs=501)
    assert found[8] == own[0].environment.commit[:12]
    commits = {
        re.sub(r"^([0-9a-f]{12})[0-9a-f]+", r"\1", each.environment.commit or "unknown")
        for each in collect([FOLDER / "table1-cifar10-all-clients.csv.gz"])
    }
    assert {row[8] for row in speeds.values()} == commits


def test_gains_with_two_trainings_are_those_of_the_runs():
    head, *rows = section("Gains of GAS with two trainings, all 50 clients")
    found = {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rows}
    last = {
        (each.rule, each.setting("training.batch_size"), each.seed): each
        for each in collect([FOLDER / "table1-cifar10-all-clients.csv.gz"])
        if each.attack == "min-max"
    }

    def gained(training, measure):
        seeds = [seed for rule, own, seed in last if (rule, own) == ("rfa", training)]
        pairs = [(last["gas(rfa)", training, seed], last["rfa", training, seed]) for seed in seeds]
        mean = sum(100 * (measure(gas) - measure(alone)) for gas, alone in pairs) / len(pairs)
        return f"{mean:+.1f}".replace("-", "−")

    texts = [
        f"{gained(each, lambda run: run.best)} / {gained(each, lambda run: run.last_ten)}"
        for each in (64, 128)
    ]
    assert found["rfa"]["min-max, 120 rounds"] == f"{texts[0]} ({texts[1]})"


def test_columns_of_fewer_rounds_are_named_wherever_they_are_counted():
    """The headings of the table, the readings, the claims and the GPU time."""
    rounds = {
        each.attack: each.setting("rounds")
        for each in collect([FOLDER / "table1-cifar10-all-clients.csv.gz"])
        if each.setting("training.batch_size") == 64
    }
    page = (FOLDER / "table1-cifar10-all-clients.md").read_text(encoding="utf-8")
    printed = page.split("### ")[2]
    names = [name for name in head_of_attacks() if name in rounds]
    for name in names:
        mark = "" if rounds[name] == 200 else f", {rounds[name]} rounds"
        assert f" | {name}{mark} | " in printed, name
    groups = {
        number: ", ".join(name for name in names if rounds[name] == number)
        for number in sorted(set(rounds.values()), reverse=True)
    }
    listed = "; ".join(f"{group} {number} rounds" for number, group in groups.items())
    sentence = f'Rounds differ in "all 50, printed training": {listed}.'
    assert page.count(sentence) == 2
    assert (FOLDER / "claims.md").read_text(encoding="utf-8").count(sentence) >= 3
    assert (FOLDER / "README.md").read_text(encoding="utf-8").count(sentence) == 1
    for row in section("GPU time")[1:]:
        if row[0].endswith("printed-training"):
            assert row[3] == str(rounds[row[1]])


def head_of_attacks():
    return section("Seeds of each cell")[0][1:]


def test_every_missing_cell_has_a_command_that_runs_it_and_no_other():
    table = MADE["missing_table"](FOLDER)
    found = {
        (each.rule, each.attack, each.seed, each.setting("training.batch_size"))
        for each in collect([FOLDER / "table1-cifar10-all-clients.csv.gz"])
    }
    rounds = {
        (each.attack, each.setting("training.batch_size")): each.setting("rounds")
        for each in collect([FOLDER / "table1-cifar10-all-clients.csv.gz"])
    }
    asked = set()
    for command in re.findall(r"`outvote bench (docs\S+) --part (\S+) (.*?)`", table):
        path, part, words = command
        attacks = re.findall(r"--attack (\S+)", words)
        settings = [re.search(r"'(seed=.*?)'", words)[1], *re.findall(r"--set (rounds=\d+)", words)]
        suite = choose(read_suite(str(ROOT / path)), Choice(parts=[part], attacks=attacks))
        for spec in plan_suite(suite, settings).specs:
            own = label(spec.rule), label(spec.attack), spec.seed, spec.training.batch_size
            asked.add(own)
            column = label(spec.attack), spec.training.batch_size
            assert spec.rounds == rounds.get(column, 120)
    assert not asked & found
    assert len(asked | found) == 2 * 15 * 6 * 3


def test_seeds_that_only_the_probes_have_are_named():
    """Once the suite has them itself, the sentence goes."""
    main = {
        each.seed
        for each in collect([FOLDER / "table1-cifar10.csv.gz"])
        if each.config["attack"] == "lie(sign=1)"
    }
    probed = {
        each.seed
        for each in collect([FOLDER / "probes.csv.gz"])
        if each.config["attack"] == "lie(sign=1)"
    }
    assert borrowed_seeds(FOLDER) == sorted(probed - main)


def test_the_figure_of_gains_shows_the_means_of_the_exports(tmp_path):
    path = draw_gains(FOLDER, tmp_path / "gains.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    values = gain_map(reading(FOLDER, LATER), "best")
    runs = {
        (each.rule, each.attack, each.seed): 100 * each.best
        for each in collect([FOLDER / "table1-cifar10-all-clients.csv.gz"])
        if each.setting("training.batch_size") == 128
    }
    gains = [runs["gas(krum)", "ipm", seed] - runs["krum", "ipm", seed] for seed in range(3)]
    assert values[0][5] == pytest.approx(sum(gains) / 3)


@pytest.mark.parametrize("name", [name for name in EXPORTS if name in MADE["page_names"](FOLDER)])
def test_each_page_is_named_on_the_first_page(name):
    assert f"({name}.md)" in (FOLDER / "README.md").read_text(encoding="utf-8")


def test_the_exports_are_small_enough_to_keep():
    assert sum(path.stat().st_size for path in FOLDER.glob("*.csv.gz")) < 9_000_000


NUM_CLASSES = {"cifar100": 100, "femnist": 62, "tiny-imagenet12": 12}
"""Of the datasets that do not have ten."""


@pytest.mark.parametrize("name", EXPORTS)
def test_in_every_column_of_an_export_some_rule_trained(name):
    """A column in which no rule leaves chance is a fault of the program, not a result."""
    best = {}
    for each in collect([FOLDER / f"{name}.csv.gz"]):
        column = each.config["attack"], each.seed, each.environment.commit
        chance = 1 / NUM_CLASSES.get(each.setting("data.name"), 10)
        best[column] = max(best.get(column, 0.0), each.best / chance)
    assert {column for column, times in best.items() if times < 2.5} == set()


@pytest.mark.parametrize("name", EXPORTS)
def test_exports_have_no_path_of_a_disk(name):
    for each in collect([FOLDER / f"{name}.csv.gz"]):
        text = msgspec.json.encode([each.config, each.environment, each.status.reason]).decode()
        assert not re.search(r"[/\\~]\w", text), each.name


def test_a_suite_beside_its_export_gives_the_page_its_parts(tmp_path):
    shutil.copy(FOLDER / "probes.toml", tmp_path)
    results = made_results(str(tmp_path / "probes.toml"), seeds=1, rounds=1)
    (tmp_path / "probes.csv.gz").write_bytes(to_export(results))
    (tmp_path / "replays.csv.gz").write_bytes(to_export(results))
    pages = MADE["tables"](tmp_path)
    assert set(pages) == {"probes.md"}
    assert "### CIFAR-10, other readings of the rules" in pages["probes.md"]
    assert "have the seed of another run" not in pages["probes.md"]


def test_the_ablations_with_all_clients_get_a_page_once_they_have_runs(tmp_path):
    shutil.copy(FOLDER / "ablations-all-clients.toml", tmp_path)
    assert MADE["page_names"](tmp_path) == []
    suite = str(tmp_path / "ablations-all-clients.toml")
    results = made_results(suite, seeds=1, rounds=1, parts=("table3", "table5"))
    (tmp_path / "ablations-all-clients.csv.gz").write_bytes(to_export(results))
    (text,) = MADE["tables"](tmp_path).values()
    heads = re.findall(r"^### (.+)$", text, re.MULTILINE)
    # With p = 1,000 two runs of Table 3 are those of Table 4 where the number is known.
    assert [head.split(",")[0] for head in heads] == ["Table 3", "Table 5", "Table 4"]
    assert "(paper 63.23, " in text
    assert "Not run, though the suite has it: Table 6, number of Byzantine clients" in text


ABLATIONS = read_suite(str(FOLDER / "ablations-all-clients.toml"))


@pytest.mark.parametrize("part", ABLATIONS.parts, ids=lambda part: part.name)
def test_the_ablations_have_all_clients_the_later_training_and_the_authors_side(part):
    specs = plan_suite(choose(ABLATIONS, Choice(parts=[part.name], num_seeds=1)), []).specs
    for spec in specs:
        members, training = spec.federation, spec.training
        assert members.sampled in (1.0, members.num_clients)
        own = training.batch_size, training.momentum, training.num_epochs, training.max_norm
        assert (*own, spec.rounds) == (128, 0.9, 1, 2.0, 200)
        assert label(spec.attack) != "lie" or spec.attack == "lie(sign=1)"
    assert (part.wanted is None) == (part.name == "adaptive")
    assert [each.name for each in ABLATIONS.parts][:2] == ["table3", "table5"]


def test_distances_of_the_trimmed_mean_in_the_text_are_those_of_the_table():
    page = " ".join((FOLDER / "README.md").read_text(encoding="utf-8").split())
    (line,) = [each for each in distance_table(FOLDER) if each.startswith("| trimmed-mean |")]
    later, printed, along, _ = (cell.split()[0] for cell in line.strip("| ").split(" | ")[1:])
    assert f"{along} points from the paper's on average, and with all 50 clients {later}" in page
    assert f"(later training) or {printed} (printed)" in page


def test_the_runs_of_protocol_2_are_all_in_the_table_of_the_setup():
    table = (FOLDER / "README.md").read_text(encoding="utf-8").split("## Setup")[1].split("\n- ")[0]
    counts = re.findall(r"^\| (\d[\d, ]*) \|", table, re.MULTILINE)
    runs = collect([FOLDER / f"{name}.csv.gz" for name in EXPORTS])
    listed = sum(int(number) for each in counts for number in each.split(", "))
    assert listed == sum(each.environment.protocol == 2 for each in runs)


@pytest.mark.parametrize("outcome", ["finished", "interrupted"])
def test_figure_1_is_drawn_once_runs_are_over(tmp_path, outcome):
    results = made_results("figure1-motivation", seeds=1, rounds=2)
    ended = [
        replace(each, status=msgspec.structs.replace(each.status, outcome=outcome))
        for each in results
    ]
    (tmp_path / "figure1-motivation.csv.gz").write_bytes(to_export(ended))
    drawn = MADE["figures"](tmp_path)
    assert [path.name for path in drawn] == ["figure1-motivation.png"] * (outcome == "finished")
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)


def test_the_tables_of_the_page_on_client_selection_are_made_from_the_export():
    page = client_selection.PAGE.read_text(encoding="utf-8")
    assert client_selection.with_client_selection(page, FOLDER) == page
    runs = collect([FOLDER / "selection-small.csv.gz"])
    found = [client_selection.chances(run) for run in runs]
    # With ten of fifty clients, the mean over all of them is 1 by definition.
    for each in found:
        mean = 0.2 * each["Byzantine"] + 0.8 * each["honest"]
        assert mean == pytest.approx(1.0, abs=1e-3)
    uniform = [
        each
        for run, each in zip(runs, found, strict=True)
        if run.setting("federation.selection") == "uniform"
    ]
    assert len(uniform) == len(runs) / 2 == 45
