"""Claims are decided by paired differences: shared seeds only, t intervals, rows and bounds."""

import csv
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

from claims import byzantine_share, claims, page
from made_results import made_results, without_weights
from outvote.results.collect import collect
from outvote.results.export import to_export
from outvote.suites.suite import read_suite
from paired import METRICS, Cells, interval, signed, verdict
from regimes import distance_table, gain_table

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "study" / "results"
ALONG = ("lie", "min-max", "min-sum")


@cache
def made(suite, seeds=3):
    return made_results(suite, seeds=seeds, rounds=1)


def write(folder, suite, percent, keep=lambda each: True):
    """Export runs of a suite whose accuracies are made up, and those only that are wanted."""
    kept = [each for each in made(suite) if keep(each)]
    results = [replace(each, series=with_accuracy(each, percent(each))) for each in kept]
    (folder / f"{suite}.csv.gz").write_bytes(to_export(results))
    return results


def with_accuracy(result, percent):
    ones = np.ones(len(result.series))
    return replace(result.series, accuracy=ones * percent / 100, deviation=ones * percent)


def is_gas(result):
    return result.rule.startswith("gas")


@cache
def published():
    """The claims of the recorded results, which take seconds to count."""
    return claims(RESULTS)


def found(folder, start):
    """The verdict of the first claim that starts so."""
    every = published() if folder == RESULTS else claims(folder)
    claim = next(each for each in every if each.text.startswith(start))
    return claim.lines[0].split("**")[1], claim


def test_the_interval_over_seeds_is_that_of_scipy():
    stats = pytest.importorskip("scipy.stats")
    cells = [{0: 1.0, 1: 3.0, 2: 8.0}, {0: 2.0, 1: 2.5, 2: -1.0}]
    by_seed = [fmean(cell[seed] for cell in cells) for seed in range(3)]
    low, high = stats.t.interval(0.95, 2, loc=fmean(by_seed), scale=stats.sem(by_seed))
    each = interval(cells)
    assert (each.num, each.unit) == (3, "seed")
    assert [each.mean - each.half, each.mean + each.half] == pytest.approx([low, high], abs=1e-3)


@pytest.mark.parametrize("num_cells", [2, 12, 36, 60])
def test_with_one_seed_the_interval_is_over_cells(num_cells):
    stats = pytest.importorskip("scipy.stats")
    values = np.random.default_rng(0).normal(size=num_cells)
    each = interval([{0: float(value)} for value in values])
    assert (each.num, each.unit) == (num_cells, "cell")
    wanted = stats.t.ppf(0.975, num_cells - 1) * stats.sem(values)
    assert each.half == pytest.approx(wanted, rel=2e-3)


def test_seeds_that_not_all_cells_have_do_not_count():
    assert interval([{0: 1.0, 1: 3.0, 2: 90.0}, {0: 3.0, 1: 5.0}]).mean == 3
    assert interval([{}, {5: 2.0}]).mean == 2
    assert interval([{}, {}]) is None


UP, DOWN, OPEN = {0: 1.0, 1: 1.1}, {0: -1.0, 1: -1.1}, {0: 5.0, 1: -5.0}


@pytest.mark.parametrize(
    ("groups", "wanted"),
    [
        ({"a": [UP], "b": [UP]}, "Holds"),
        ({"a": [UP, UP, UP], "b": [DOWN]}, "Holds in part"),
        ({"a": [UP], "b": [OPEN]}, "Holds in part"),
        ({"a": [DOWN, DOWN], "b": [UP]}, "Does not hold"),
        ({"a": [DOWN], "b": [OPEN]}, "Does not hold"),
        ({"a": [OPEN]}, "Not enough seeds"),
        ({"a": [{0: 1.0}, {0: 1.1}]}, "Not enough seeds; over the cells of one seed: holds"),
        ({"a": [{0: 1.0}]}, "Not enough seeds"),
        ({"a": [{}]}, "Not recorded"),
    ],
)
def test_verdicts_follow_from_the_intervals_of_all_cells_and_of_the_rows(groups, wanted):
    assert verdict(groups)[0] == wanted


def test_a_difference_without_a_sign_is_zero():
    assert [signed(value) for value in (-0.04, 0.0, 1.26, -1.0)] == ["0.0", "0.0", "+1.3", "−1.0"]


def test_ties_are_rounded_alike_whatever_the_order_of_the_sum():
    below, above = 11.05 - 3e-15, 11.05 + 3e-15
    assert [signed(value) for value in (below, above, -below)] == ["+11.1", "+11.1", "−11.1"]


def test_only_seeds_that_both_rules_have_are_compared(tmp_path):
    def percent(each):
        return 50 + 10 * is_gas(each) + 30 * each.seed

    write(tmp_path, "table1-cifar10", percent, lambda each: is_gas(each) or each.seed == 1)
    cells = Cells(tmp_path, "table1-cifar10")
    assert set(cells.values(("gas(median)", "lie"), METRICS["best"])) == {0, 1, 2}
    text, claim = found(tmp_path, "GAS(A) is at least")
    assert text.startswith("Not enough seeds")
    assert claim.lines[0].endswith(": +10.0 [+10.0, +10.0], n = 36 cells.")


def test_columns_without_runs_are_named_and_not_counted(tmp_path):
    def keep(each):
        is_missing = each.rule == "gas(rfa)" and each.attack == "lie"
        return each.attack in ("lie", "min-max") and not is_missing

    write(tmp_path, "table1-femnist", lambda each: 50 + 10 * is_gas(each) + each.seed, keep)
    text, claim = found(tmp_path, "GAS(A) is at least")
    rows = [line.split(" | ")[:2] for line in claim.lines if line.startswith("| ")][2:]
    assert rows == [["| all", "11"], ["| lie", "5"], ["| min-max", "6"]]
    assert text == "Holds"
    assert "- Not run or not recorded: bit-flip; label-flip; min-sum; ipm." in claim.lines


@pytest.mark.parametrize(("alone", "wanted"), [(29, "Holds"), (31, "Does not hold")])
def test_a_rule_collapses_below_half_of_what_gas_makes_of_it(tmp_path, alone, wanted):
    def percent(each):
        return (60 if is_gas(each) else alone) + 0.1 * each.seed

    write(tmp_path, "table1-femnist", percent, lambda each: each.attack == "ipm")
    assert found(tmp_path, "RFA collapses")[0] == wanted


@pytest.mark.parametrize(("gain", "wanted"), [(2.9, "Holds"), (-3.1, "Does not hold")])
def test_a_mild_gain_is_less_than_three_points(tmp_path, gain, wanted):
    write(tmp_path, "table1-cifar10", lambda each: 50 + gain * is_gas(each))
    assert found(tmp_path, "The gain over DnC")[0] == wanted


@pytest.mark.parametrize(
    ("guessed", "little", "best"),
    [(44.9, "Does not hold", "Holds"), (45.1, "Holds", "Holds"), (51, "Holds", "Does not hold")],
)
def test_a_guessed_number_costs_little_below_five_points(tmp_path, guessed, little, best):
    def percent(each):
        is_known = each.setting("federation.assumed_byzantine") == "oracle"
        return 50 if is_known else guessed

    write(tmp_path, "table4-unknown-f", percent)
    assert found(tmp_path, "Not knowing")[0] == little
    assert found(tmp_path, "GAS is best where")[0] == best


def test_the_number_of_groups_is_compared_at_the_papers_best(tmp_path):
    def percent(each):
        return {100: 50, 10_000: 60, 1_000_000: 60}.get(each.setting("rule.num_groups"), 55)

    write(tmp_path, "table3-num-groups", percent)
    assert found(tmp_path, "With the number of groups")[0] == "Holds"


def test_smaller_distances_to_the_honest_mean_are_better(tmp_path):
    write(tmp_path, "figure2-deviation", lambda each: 1 if is_gas(each) else 2)
    assert found(tmp_path, "GAS brings")[0] == "Holds"


def with_share(result, percent):
    """The same run, with one Byzantine client in every round and this share of the update."""
    names = ("num_byzantine", "num_byzantine_assumed", "num_byzantine_used", "num_kept_byzantine")
    ones = np.ones(len(result.series), dtype=np.int64)
    counts = {**dict.fromkeys(names, ones), "num_kept": 5 * ones}
    series = replace(result.series, byzantine_weight=ones * percent / 100, **counts)
    return replace(result, series=series)


def test_byzantine_clients_are_kept_by_their_share_of_the_update(tmp_path):
    def percent(each):
        shares = {"multi-krum": (5, 19), "rfa": (20, 15), "median": (0, 9), "bulyan": (0, 15)}
        return shares.get(each.rule, (0, 0))[each.setting("data.partition") == "dirichlet"]

    results = [with_share(each, percent(each)) for each in made("figure1-motivation")]
    (tmp_path / "figure1-motivation.csv.gz").write_bytes(to_export(results))
    assert found(tmp_path, "Multi-Krum, RFA and DnC keep more")[0] == "Holds in part"
    assert found(tmp_path, "Median, trimmed mean")[0] == "Holds in part"


@pytest.mark.parametrize(("inside", "wanted"), [(19, "Holds"), (30, "Does not hold")])
def test_gas_lowers_the_share_if_less_of_the_update_is_byzantine(tmp_path, inside, wanted):
    results = [with_share(each, inside if is_gas(each) else 20) for each in made("table1-cifar10")]
    (tmp_path / "table1-cifar10.csv.gz").write_bytes(to_export(results))
    assert found(tmp_path, "GAS lowers")[0] == wanted


def test_without_recorded_weights_the_share_is_known_for_equal_weights_only():
    by_rule = {each.rule: with_share(each, 0) for each in made("table1-cifar10")}
    old = {rule: without_weights(each) for rule, each in by_rule.items()}
    assert byzantine_share(old["multi-krum"]) == pytest.approx(20)
    assert np.isnan(byzantine_share(old["bulyan"]))
    zeros = 0 * old["bulyan"].series.num_byzantine_used
    mean = replace(old["bulyan"], series=replace(old["bulyan"].series, num_byzantine_used=zeros))
    assert byzantine_share(mean) == pytest.approx(20)


def test_two_runs_of_one_cell_and_seed_are_refused(tmp_path):
    results = write(tmp_path, "table1-cifar10", lambda each: 60, lambda each: each.rule == "rfa")
    again = replace(results[0], name=f"{results[0].name}0")
    (tmp_path / "table1-cifar10.csv.gz").write_bytes(to_export([*results, again]))
    with pytest.raises(ValueError, match=r"two runs of rfa, .*, seed 0"):
        Cells(tmp_path, "table1-cifar10")


def test_without_exports_there_is_no_claim(tmp_path):
    assert claims(tmp_path) == []
    assert "##" not in page(tmp_path)


@pytest.mark.slow
def test_krum_and_both_sides_are_as_far_from_the_paper_as_plain_loops_find():
    with (ROOT / "src/outvote/suites/paper/table1.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["dataset"] == "cifar10"]
    printed = {
        (row["rule"].replace("rbtm", "trimmed-mean"), row["attack"]): float(row["accuracy"])
        for row in rows
    }
    along = {
        (run.rule, run.attack): 100 * run.best
        for run in collect([RESULTS / "probes.csv.gz"])
        if "sign=1" in run.config["attack"] and "sample" not in run.config["attack"]
    }
    pairs = [
        *along.items(),
        *(
            ((run.rule, run.attack), 100 * run.best)
            for run in collect([RESULTS / "table1-cifar10.csv.gz"])
            if "sign=1" in run.config["attack"]
        ),
    ]
    text = page(RESULTS)
    for name, start in (("with", "gas("), ("without", "")):
        far = fmean(
            abs(best - printed[cell])
            for cell, best in pairs
            if cell in printed and cell[0].startswith("gas(") == bool(start)
        )
        line = next(each for each in text.splitlines() if f"CIFAR-10, {name} GAS | 18" in each)
        assert line.split(" | ")[3] == f"{far:.1f}"
    section = text.split(". A reading of ours: ")[1].split("\n## ")[0]
    for attack in ALONG:
        far = [
            abs(along[rule, attack] - printed["multi-krum", attack])
            for rule in ("multi-krum", "krum")
        ]
        assert f"| {attack} | 1 | {far[0]:.1f} | {far[1]:.1f} |" in section


@pytest.mark.parametrize(
    ("bulyan", "multi_krum", "wanted"),
    [(1_000_000, 1_000, "Holds"), (100, 10_000, "Does not hold"), (100, 100, "Not enough seeds")],
)
def test_the_best_numbers_of_groups_of_two_rules_are_compared(tmp_path, bulyan, multi_krum, wanted):
    best = {"gas(bulyan)": bulyan, "gas(multi-krum)": multi_krum}

    def percent(each):
        return 60 if each.setting("rule.num_groups") == best[each.rule] else 50

    write(tmp_path, "table3-num-groups", percent)
    text, claim = found(tmp_path, "The best number of groups")
    assert text == wanted
    assert f"- gas(bulyan) is best at p = {bulyan:,} (seed 0)" in "\n".join(claim.lines)
    assert claim.lines[2].endswith("| difference, paper |")
    assert claim.lines[4].endswith("| +2.0 |")


@pytest.mark.parametrize(("more", "wanted"), [(52, "Holds"), (48, "Does not hold")])
def test_the_two_guesses_are_compared_and_the_papers_contradiction_is_named(tmp_path, more, wanted):
    def percent(each):
        return more if each.setting("federation.assumed_byzantine") == 0.3 else 50

    write(tmp_path, "table4-unknown-f", percent)
    text, claim = found(tmp_path, "Dropping more clients")
    assert text == wanted
    assert "has δ = 0.3 below δ = 0.1 for 5 rules of 6." in "\n".join(claim.lines)


@pytest.mark.parametrize(("gain", "wanted"), [(3.1, "Holds"), (2.9, "Does not hold")])
def test_dnc_fails_on_larger_data_if_the_gain_over_it_is_more_than_mild(tmp_path, gain, wanted):
    for suite in ("table1-femnist", "table1-imagenet12"):
        write(tmp_path, suite, lambda each: 50 + gain * is_gas(each))
    text, claim = found(tmp_path, "DnC fails on larger data")
    assert text == wanted
    lines = "\n".join(claim.lines)
    assert "| FEMNIST, lie |" in lines
    assert "| ImageNet-12, min-max |" in lines


@pytest.mark.parametrize(("power", "wanted"), [(-0.1, "Holds"), (0.1, "Does not hold")])
def test_the_squared_deviation_is_compared_from_one_number_of_groups_to_the_next(
    tmp_path, power, wanted
):
    write(tmp_path, "table3-num-groups", lambda each: each.setting("rule.num_groups") ** power)
    results = [with_share(each, 0) for each in collect([tmp_path / "table3-num-groups.csv.gz"])]
    (tmp_path / "table3-num-groups.csv.gz").write_bytes(to_export(results))
    text, claim = found(tmp_path, "The squared deviation falls")
    assert text == wanted
    few = 100 * 100 ** (2 * power)
    assert f"| gas(bulyan), p = 100 and 1,000 | 1 | {few:.1f} |" in "\n".join(claim.lines)


def plain_gains():
    """Gains of GAS with all clients and the later training, counted in plain loops."""
    runs = {
        (run.rule, run.attack, run.seed): run
        for run in collect([RESULTS / "table1-cifar10-all-clients.csv.gz"])
        if run.config["training"]["batch_size"] == 128
    }
    for (rule, attack, seed), run in runs.items():
        inside = runs.get((f"gas({rule})", attack, seed))
        if inside is not None and rule != "krum":
            best, last = inside.best - run.best, inside.last_ten - run.last_ten
            yield rule, attack, seed, 100 * best, 100 * last


def test_the_headline_is_the_mean_over_all_pairs():
    gains = list(plain_gains())
    rows = {line.split(" | ")[0]: line.split(" | ")[1] for line in gain_table(RESULTS)}
    names = {"| six rules, six attacks": gains}
    names |= {f"| {a}": [each for each in gains if a in each[:2]] for _, a, *_ in gains}
    names |= {f"| {a}": [each for each in gains if a in each[:2]] for a, *_ in gains}
    assert len(names) == 1 + 6 + 6
    for name, own in names.items():
        best, last = (signed(fmean(each[k] for each in own)) for k in (3, 4))
        assert rows[name] == f"{best} / {last} ({len(own)})"


@pytest.mark.slow
def test_the_headline_claim_counts_the_seeds_that_all_cells_have():
    text, claim = found(RESULTS, "With all 50 clients in every round GAS(A)")
    gains = list(plain_gains())
    cells = {(rule, attack) for rule, attack, *_ in gains}
    seeds = [
        seed for seed in range(3) if len([each for each in gains if each[2] == seed]) == len(cells)
    ]
    mean = fmean(each[3] for each in gains if each[2] in seeds)
    assert f": {signed(mean)} [" in claim.lines[0]
    assert claim.lines[0].endswith(f"n = {len(seeds)} seeds.")
    assert text == "Holds"


def test_distances_to_the_paper_are_those_of_plain_loops():
    line = next(each for each in distance_table(RESULTS, ("lie",)) if each.startswith("| rfa |"))
    (run,) = [
        run
        for run in collect([RESULTS / "table1-cifar10-all-clients.csv.gz"])
        if (run.rule, run.attack) == ("rfa", "lie") and run.config["training"]["batch_size"] == 64
    ]
    assert line.split(" | ")[2] == f"{abs(100 * run.best - 15.39):.1f} (1)"


def test_of_two_runs_of_a_cell_and_seed_the_first_source_counts(tmp_path):
    write(tmp_path, "table1-cifar10", lambda each: 50 + each.seed)
    first = Cells(tmp_path, "table1-cifar10", attacks=["lie"])
    other = Cells(tmp_path, "table1-cifar10", "other-side")
    both = first.joined([other])
    assert both.columns == ["lie", "min-max", "min-sum"]
    assert len(both.runs) == 3 * 12 * 3
    lie = [run for run in both.runs if run.attack == "lie"]
    assert {run.config["attack"] for run in lie} == {"lie(sign=1)"}


ABLATIONS = RESULTS / "ablations-all-clients.toml"
LATER = ", all clients, sign = +1, later training (lie)"


@cache
def made_ablations():
    return made_results(str(ABLATIONS), seeds=2, rounds=1)


def write_ablations(folder, percent, part):
    """Export runs of one part of the ablations whose accuracies are made up."""
    shutil.copy(ABLATIONS, folder)
    parts = {each.name: each for each in read_suite(str(ABLATIONS)).parts}
    kept = [each for each in made_ablations() if parts[part].holds(each)]
    results = [replace(each, series=with_accuracy(each, percent(each))) for each in kept]
    (folder / "ablations-all-clients.csv.gz").write_bytes(to_export(results))


def best_at_the_papers_p(each):
    best = {"gas(multi-krum)": 10_000, "gas(bulyan)": 1_000_000}
    return 60 if each.setting("rule.num_groups") == best[each.rule] else 50


def gains_more(each):
    return 50 + is_gas(each) * (10 if each.setting("data.beta") == 0.3 else 5)


@pytest.mark.parametrize(
    ("part", "percent", "starts"),
    [
        (
            "table3",
            best_at_the_papers_p,
            ["With the number of groups p", "The best number of groups", "The squared deviation"],
        ),
        ("table5", gains_more, ["GAS(A) beats A for β", "GAS gains more where"]),
        (
            "table4",
            lambda each: 50 + 2 * (each.setting("federation.assumed_byzantine") == "oracle"),
            ["Not knowing the number", "GAS is best where", "Dropping more clients"],
        ),
        ("table6", lambda each: 50 + is_gas(each), ["GAS(A) beats A for 5 and 15"]),
        ("table7", lambda each: 50 + is_gas(each), ["GAS(A) beats A for 75 and 100"]),
    ],
)
def test_tables_with_all_clients_and_the_later_training_have_claims_of_their_own(
    tmp_path, part, percent, starts
):
    write_ablations(tmp_path, percent, part)
    every = claims(tmp_path)
    assert sorted(each.text for each in every) == sorted(
        next(each.text for each in every if each.text.startswith(start)) for start in starts
    )
    assert all(each.text.endswith(LATER) for each in every)
    held = {each.text for each in every if each.lines[0].startswith("**Holds**")}
    # Deviations are made of the accuracies; dropping more or fewer makes no difference.
    open_ones = ("The squared deviation", "Dropping more")
    assert held == {each.text for each in every if not each.text.startswith(open_ones)}


def test_adaptive_attacks_with_all_clients_have_a_claim(tmp_path):
    write_ablations(tmp_path, lambda each: 50 + is_gas(each) + each.seed, "adaptive")
    (claim,) = claims(tmp_path)
    assert claim.text.startswith("GAS(A) is at least as accurate as A under attacks that adapt")
    rows = [line.split(" | ")[:2] for line in claim.lines if line.startswith("| ")][2:]
    names = ["gas-aware", "optimal-lie", "optimal-ipm"]
    assert rows == [["| all", "12"], *([f"| {name}", "4"] for name in names)]


def test_without_runs_of_the_ablations_their_claims_are_left_out(tmp_path):
    shutil.copy(ABLATIONS, tmp_path)
    assert claims(tmp_path) == []


def of_part(suite, name):
    part = next(each for each in read_suite(suite).parts if each.name == name)
    return part.holds


def test_accuracies_beside_the_papers_are_those_of_the_authors_side(tmp_path):
    """Not those of whichever part comes last: all clients have their own claims."""
    suite = "table1-cifar100"
    in_main, in_all = of_part(suite, "main"), of_part(suite, "all-clients")

    def keep(each):
        return in_main(each) or (in_all(each) and each.attack == "lie")

    write(tmp_path, suite, lambda each: 40 if in_main(each) else 20, keep)
    text = page(tmp_path)
    table = text.split("## Table 1: our accuracies beside the paper's, sign = +1")[1]
    rows = [line.split(" | ")[:3] for line in table.splitlines() if line.startswith("| CIFAR")]
    assert rows == [[f"| CIFAR-100, {each} GAS", "36", "40.0"] for each in ("without", "with")]
    assert "(Table 1, CIFAR-100), all clients, sign = +1, printed training (lie)" in text


def test_a_claim_names_rounds_that_are_fewer_than_its_suite_asks_for(tmp_path):
    def shortened(each):
        rounds = {"lie": 400, "ipm": 100}.get(each.attack, 200)
        return replace(each, config={**each.config, "rounds": rounds})

    results = [shortened(each) for each in made("table1-cifar100")]
    (tmp_path / "table1-cifar100.csv.gz").write_bytes(to_export(results))
    sides = [each.text.split("CIFAR-100)")[1] for each in claims(tmp_path)]
    short = "bit-flip, label-flip, min-max, min-sum: 200 of 400 rounds; ipm: 100 of 400 rounds"
    assert sides[0] == f", sign = +1 ({short})"
    assert sides[2] == f", all clients, sign = +1, printed training (six attacks; {short})"


def test_both_sides_of_table_1_have_a_claim(tmp_path):
    along = of_part("table1-cifar10", "main")
    write(tmp_path, "table1-cifar10", lambda each: 50 + (2 if along(each) else 1) * is_gas(each))
    own = {each.text: each.lines[0] for each in claims(tmp_path)}
    start = "GAS(A) is at least as accurate as A, under each attack (Table 1, CIFAR-10)"
    assert own[f"{start}, sign = +1"] == "**Holds**: +2.0 [+2.0, +2.0], n = 3 seeds."
    assert own[f"{start}, sign = −1"] == "**Holds**: +1.5 [+1.5, +1.5], n = 3 seeds."


@pytest.mark.parametrize(("many", "wanted"), [(52, "Holds"), (48, "Does not hold")])
def test_a_million_groups_are_compared_with_a_thousand_by_seed(tmp_path, many, wanted):
    for name, part in (("many-groups", "main"), ("table1-cifar10-all-clients", "later-training")):
        shutil.copy(RESULTS / f"{name}.toml", tmp_path)
        results = made_results(str(tmp_path / f"{name}.toml"), seeds=3, rounds=1, parts=(part,))

        def percent(each, name=name):
            is_asked = each.setting("rule.num_groups") == 1_000_000 and each.attack in ALONG
            return each.seed + ((many if is_asked else 90) if name == "many-groups" else 50)

        found_runs = [replace(each, series=with_accuracy(each, percent(each))) for each in results]
        (tmp_path / f"{name}.csv.gz").write_bytes(to_export(found_runs))
    text, claim = found(tmp_path, "GAS with p = 1,000,000 is more accurate")
    assert text == wanted
    assert claim.lines[0].endswith("n = 3 seeds.")
    assert [pair.row for pair in claim.pairs[::3]] == [
        *("multi-krum", "bulyan", "median", "rfa", "trimmed-mean"),
    ]
