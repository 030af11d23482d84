"""Claims are counted from what is paired: shared seeds only, cells that have runs, fixed limits."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from claims import page
from claims_cells import METRICS, Cells
from claims_differences import differences
from claims_motivation import motivation_claims
from claims_numbers import Counted, gains_of, seeds_told, verdict, verdict_on_gains
from claims_pairs import on_pairs, pair_claims
from claims_reasons import reason_claims
from claims_settings import setting_claims
from claims_shares import liars_share, share_claims
from made_results import made_results, without_weights
from outvote.results.export import to_export
from outvote.suites.suite import read_suite

GROUPS = "rule.num_groups"
LIE = ("gas(median)", "lie"), ("median", "lie")
TINY = """
[settings]
preset = "paper-cifar10"
[[part]]
columns = "attack"
settings.rule = ["median", "gas(median, num_groups=1000)"]
settings.attack = ["lie(z=1.5)", "bit-flip"]
"""


@cache
def made(suite, seeds=3):
    return made_results(suite, seeds=seeds, rounds=1)


def write(folder, suite, percent, keep=lambda each: True, *, source=None):
    """Export runs of a suite whose accuracies are made up, and those only that are wanted."""
    results = [
        replace(each, series=_with_accuracy(each, percent(each)))
        for each in made(str(source or suite))
        if keep(each)
    ]
    (folder / f"{suite}.csv.gz").write_bytes(to_export(results))
    return results


def _with_accuracy(result, percent):
    ones = np.ones(len(result.series))
    return replace(result.series, accuracy=ones * percent / 100, deviation=ones * percent)


def is_gas(result):
    return result.rule.startswith("gas")


def by_wrapper(inside, alone):
    """GAS has one accuracy, everything else another."""
    return lambda each: inside if is_gas(each) else alone


def test_only_seeds_that_both_rules_have_are_compared(tmp_path):
    def percent(each):
        return 50 + 10 * is_gas(each) + 30 * each.seed

    write(tmp_path, "table1-cifar10", percent, lambda each: is_gas(each) or each.seed == 1)
    cells = Cells(tmp_path, "table1-cifar10")
    assert set(cells.values(LIE[0], METRICS["best"])) == {0, 1, 2}
    assert cells.gains(*LIE, METRICS["best"]) == {1: 10.0}
    assert on_pairs(cells, "any").seeds == "1 seed"


@pytest.mark.parametrize(
    ("suite", "has_more_seeds", "claims"),
    [
        ("table3-num-groups", lambda each: each.setting(GROUPS) == 1000, setting_claims),
        (
            "table4-unknown-f",
            lambda each: each.setting("federation.assumed_byzantine") == 0.1,
            setting_claims,
        ),
        ("table1-cifar10", lambda each: each.attack == "lie", setting_claims),
        ("table1-cifar10", is_gas, reason_claims),
        ("figure2-deviation", is_gas, reason_claims),
    ],
)
def test_seeds_that_other_cells_lack_change_no_claim(tmp_path, suite, has_more_seeds, claims):
    def percent(each):
        return 90 - is_gas(each) * 30 * each.seed if each.seed else 50 + len(each.config["rule"])

    for name in {suite, "table1-cifar10", "table5-heterogeneity"}:
        write(tmp_path, name, percent, lambda each: each.seed == 0)
    before = claims(tmp_path)
    write(tmp_path, suite, percent, lambda each: each.seed == 0 or has_more_seeds(each))
    assert before
    assert claims(tmp_path) == before


def test_columns_and_cells_without_runs_are_named_and_not_counted(tmp_path):
    def keep(each):
        is_missing = each.rule == "gas(rfa)" and each.attack == "lie"
        return each.seed == 0 and each.attack in ("lie", "min-max") and not is_missing

    write(tmp_path, "table1-femnist", by_wrapper(60, 50), keep)
    claim = next(each for each in pair_claims(tmp_path) if "FEMNIST" in each.text)
    assert [row[:2] for row in claim.table[1:]] == [["all", "11"], ["lie", "5"], ["min-max", "6"]]
    assert (claim.verdict, claim.seeds) == ("Holds", "1 seed")
    assert "Not played: bit-flip, label-flip, min-sum, ipm." in claim.notes
    assert "Left out, because one rule of the pair has no run: gas(rfa) (lie)." in claim.notes


def test_several_seeds_have_an_error_and_tell_whether_they_agree(tmp_path):
    write(tmp_path, "table1-cifar10", lambda each: 50 + is_gas(each) * (2 + 3 * each.seed))
    head, everything, *_ = pair_claims(tmp_path)[0].table
    row = dict(zip(head[:5], everything[:5], strict=True))
    assert row["all seeds higher / lower"] == "36 / 0"
    assert row["mean gain"] == "+5.0 ± 1.7"
    one = tmp_path / "one"
    one.mkdir()
    write(one, "table1-cifar10", by_wrapper(52, 50), lambda each: each.seed == 2)
    table = pair_claims(one)[0].table
    assert "all seeds higher / lower" not in table[0]
    assert "±" not in str(table)


def test_each_seed_is_one_value_of_the_error():
    assert Counted(({0: 1.0, 1: 3.0}, {0: 3.0, 1: 5.0})).mean == "+3.0 ± 1.0"
    assert Counted(({0: 1.0, 1: 30.0}, {0: 3.0})).mean == "+2.0 (1 seed)"
    assert Counted(({0: 1.0}, {1: 3.0})).mean == "+2.0 (no seed is in all cells)"


def test_seeds_agree_only_if_all_have_one_sign():
    cells = ({0: 1.0, 1: 0.1}, {0: -1.0, 1: -2.0}, {0: 3.0, 1: -0.1}, {0: 2.0, 1: 0.0})
    assert Counted(cells).agreement == "1 / 1"
    assert Counted((*cells, {0: 5.0})).agreement == "1 / 1 of 4"


@pytest.mark.parametrize(
    ("numbers", "told"),
    [((1, 1), "1 seed"), ((3, 3), "3 seeds"), ((1, 3, 2), "1 to 3 seeds"), ((0, 2), "2 seeds")],
)
def test_seeds_are_told_as_people_say_them(numbers, told):
    assert seeds_told(dict.fromkeys(range(number), 0.0) for number in numbers) == told


@pytest.mark.parametrize(
    ("gains", "wanted"),
    [
        ([1.01] * 5 + [0.0] * 5, "Holds"),
        ([1.01] * 5 + [-1.0] * 5, "Holds"),
        ([1.0] * 10, "Holds in part"),
        ([2.0] * 9 + [-1.01], "Holds"),
        ([2.0] * 8 + [-1.01] * 2, "Holds in part"),
        ([2.0] * 5 + [-1.01] * 5, "Holds in part"),
        ([2.0] * 4 + [-1.01] * 6, "Does not hold"),
        ([2.0] * 2 + [0.0] * 6 + [-1.01] * 2, "Holds in part"),
        ([2.0] + [0.0] * 7 + [-1.01] * 2, "Does not hold"),
    ],
)
def test_verdicts_change_at_their_limits(gains, wanted):
    assert verdict_on_gains(gains_of({0: gain} for gain in gains)) == wanted


def test_a_gain_of_one_point_is_one_whatever_floats_make_of_it(tmp_path):
    write(tmp_path, "table1-cifar10", by_wrapper(58.3, 57.3), lambda each: each.seed == 0)
    assert pair_claims(tmp_path)[0].table[1][2] == "0 / 36 / 0"


def test_claims_about_rules_count_those_for_which_they_are_true():
    assert verdict([True] * 9 + [False]) == "Holds"
    assert verdict([True, False]) == "Holds in part"
    assert verdict([True, False, False]) == "Does not hold"


@pytest.mark.parametrize(
    ("alone", "wanted"),
    [(29.9, "Holds"), (30.0, "Cannot be seen: our RFA does not collapse")],
)
def test_a_rule_collapses_below_half_of_what_gas_makes_of_it(tmp_path, alone, wanted):
    write(tmp_path, "table1-femnist", by_wrapper(60, alone), lambda each: each.attack == "ipm")
    claim = next(each for each in reason_claims(tmp_path) if each.text.startswith("RFA"))
    assert claim.verdict == wanted
    assert "Not played: bit-flip, label-flip, lie, min-max, min-sum." in claim.notes


def test_the_stand_in_has_no_numbers_of_the_paper_beside_it(tmp_path):
    source = tmp_path / "tiny-imagenet12.toml"
    source.write_text(TINY)
    write(tmp_path, source.stem, by_wrapper(60, 50), source=source)
    (claim,) = pair_claims(tmp_path)
    assert "stand-in" in claim.text
    assert "ImageNet-12" not in page(tmp_path)
    assert "paper" not in str(claim.table)


def test_two_runs_of_one_cell_and_seed_are_refused(tmp_path):
    results = write(tmp_path, "table1-cifar10", by_wrapper(60, 50), lambda each: each.rule == "rfa")
    again = replace(results[0], name=f"{results[0].name}0")
    (tmp_path / "table1-cifar10.csv.gz").write_bytes(to_export([*results, again]))
    with pytest.raises(ValueError, match=r"two runs of rfa, .*, seed 0"):
        pair_claims(tmp_path)


def test_cells_more_than_five_points_from_the_paper_are_listed(tmp_path):
    printed = read_suite("table1-cifar10").parts[0].printed()

    def percent(each):
        more = {"rfa": 5.01, "gas(rfa)": -7}.get(each.rule, 5.0) if each.attack == "lie" else 0
        return printed[each.rule, each.attack].accuracy + more

    write(tmp_path, "table1-cifar10", percent, lambda each: each.seed == 0)
    lines = [line for line in differences(tmp_path) if line.startswith("| CIFAR-10")]
    assert lines == [
        "| CIFAR-10 | gas(rfa) | lie | 45.7 | 52.7 | −7.0 |",
        "| CIFAR-10 | rfa | lie | 20.4 | 15.4 | +5.0 |",
    ]


def test_without_exports_there_is_no_claim(tmp_path):
    text = page(tmp_path)
    assert "How verdicts are made" in text
    assert "## 1." not in text
    assert "Table 1:" not in text


def with_share(result, percent):
    ones = np.ones(len(result.series))
    return replace(result, series=replace(result.series, byzantine_weight=ones * percent / 100))


def test_liars_are_let_in_by_their_share_of_the_update(tmp_path):
    def percent(each):
        return {"multi-krum": (5, 19), "rfa": (20, 20), "median": (0, 9), "bulyan": (0, 15)}.get(
            each.rule, (0, 0)
        )[each.setting("data.partition") == "dirichlet"]

    results = [with_share(each, percent(each)) for each in made("figure1-motivation")]
    (tmp_path / "figure1-motivation.csv.gz").write_bytes(to_export(results))
    _, more, out = motivation_claims(tmp_path)
    assert more.notes == ["multi-krum yes, rfa no, dnc no; the numbers are above."]
    assert out.notes == ["median yes, trimmed-mean yes, bulyan no; the numbers are above."]
    assert (more.verdict, out.verdict) == ("Does not hold", "Holds in part")


def test_runs_that_do_not_tell_weights_tell_the_share_of_equal_ones_only(tmp_path):
    old = [without_weights(each) for each in made("figure1-motivation")]
    (tmp_path / "figure1-motivation.csv.gz").write_bytes(to_export(old))
    lose, more, out = motivation_claims(tmp_path)
    assert [row[0] for row in lose.table[1:] if row[-1] != "not recorded"] == ["multi-krum", "dnc"]
    assert more.notes[0].startswith("multi-krum ")
    assert ", rfa not recorded, dnc " in more.notes[0]
    assert out.verdict == "Cannot be told yet"
    alike = [
        each.series.num_kept_byzantine.sum() / each.series.num_kept.sum()
        for each in old
        if (each.rule, each.setting("data.partition")) == ("multi-krum", "iid")
    ]
    assert lose.table[1][-2] == f"{100 * np.mean(alike):.1f} %"


def lied_to(each):
    """The same run, with one liar in every round, who is one of the five that are kept."""
    names = ("num_byzantine", "num_byzantine_assumed", "num_byzantine_used", "num_kept_byzantine")
    counts = {**dict.fromkeys(names, 1), "num_kept": 5}
    ones = np.ones(len(each.series), dtype=np.int64)
    return replace(
        each, series=replace(each.series, **{name: many * ones for name, many in counts.items()})
    )


@pytest.mark.parametrize(
    ("inside", "wanted"), [(18.9, "Holds"), (19.0, "Does not hold"), (30, "Does not hold")]
)
def test_gas_gets_rid_of_liars_if_less_of_the_update_is_theirs(tmp_path, inside, wanted):
    results = [
        with_share(lied_to(each), inside if is_gas(each) else 20)
        for each in made("table1-cifar10", seeds=1)
    ]
    (tmp_path / "table1-cifar10.csv.gz").write_bytes(to_export(results))
    (claim,) = share_claims(tmp_path)
    assert claim.verdict == wanted
    assert claim.table[1][:2] == ["multi-krum", f"20.0 → {inside:.1f}"]


def test_shares_of_few_cells_are_not_judged(tmp_path):
    old = [lied_to(without_weights(each)) for each in made("table1-femnist", seeds=1)]
    (tmp_path / "table1-femnist.csv.gz").write_bytes(to_export(old))
    (claim,) = share_claims(tmp_path)
    assert claim.verdict == "Cannot be told yet"
    assert claim.notes[1].startswith("Known of 12 of 36 cells")


def helpless(each):
    return replace(
        each, series=replace(each.series, num_byzantine_used=0 * each.series.num_byzantine_used)
    )


def test_a_rule_that_tolerates_nobody_gives_everybody_the_same_weight():
    found = next(each for each in made("table1-cifar10") if each.rule == "bulyan")
    bulyan = lied_to(without_weights(found))
    assert liars_share(helpless(bulyan)) == pytest.approx(20)
    assert np.isnan(liars_share(bulyan))


def test_claims_name_rules_that_tolerate_nobody(tmp_path):
    results = [
        helpless(lied_to(each)) if each.rule == "bulyan" else each
        for each in made("table1-cifar10", 1)
    ]
    (tmp_path / "table1-cifar10.csv.gz").write_bytes(to_export(results))
    (note,) = pair_claims(tmp_path)[0].notes
    assert note.endswith("is the mean of what it is given: bulyan.")


@pytest.mark.parametrize(("estimated", "wanted"), [(51, "Holds"), (51.1, "Does not hold")])
def test_the_known_number_is_best_unless_an_estimate_is_a_point_better(tmp_path, estimated, wanted):
    def percent(each):
        return 50 if each.setting("federation.assumed_byzantine") == "oracle" else estimated

    write(tmp_path, "table4-unknown-f", percent)
    mild, best = setting_claims(tmp_path)
    assert (mild.verdict, best.verdict) == ("Holds", wanted)
