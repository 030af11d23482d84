"""`outvote compare` and `ov.compare`: pairs, differences, intervals, and what is left out."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

import outvote as ov
from command_line import run
from made_results import ENVIRONMENT, made_results, write_store
from outvote.report.paired import bootstrap, most_coverage
from outvote.report.runs import Runs
from outvote.results.export import to_export

BOTH = {"rule": ["median", "gas(median)"], "attack": ["lie", "none"], "rounds": 6}


def made(seeds=5, **settings):
    """Runs of made-up settings."""
    return Runs(made_results(BOTH | settings, seeds=seeds))


def shifted(runs, by):
    """The same runs with accuracies that are higher by so much; `by` is a number or by seed."""

    def one(result):
        more = by[result.seed] if isinstance(by, dict) else by
        series = replace(result.series, accuracy=result.series.accuracy + more)
        return replace(result, series=series)

    return Runs([one(each) for each in runs])


def test_a_constant_shift_is_found_exactly_in_every_setting():
    runs = made()
    found = ov.compare(runs, shifted(runs, 0.01))
    assert len(found.rows) == 4
    assert {(row.settings["rule"], row.settings["attack"]) for row in found.rows} == {
        (rule, attack) for rule in BOTH["rule"] for attack in BOTH["attack"]
    }
    for row in found.rows:
        assert row.difference.mean == pytest.approx(1.0)
        assert (row.difference.low, row.difference.high) == pytest.approx((1.0, 1.0))
        assert row.seeds == (0, 1, 2, 3, 4)
        assert row.b - row.a == pytest.approx(1.0)
    assert found.overall.mean == pytest.approx(1.0)
    assert found.differs == {}
    assert found.unpaired == ()


def test_differences_are_paired_by_seed():
    runs = made(attack="lie", rule="median")
    by = {0: 0.01, 1: 0.02, 2: 0.03, 3: 0.04, 4: 0.05}
    reverse = Runs([*shifted(runs, by)][::-1])
    (row,) = ov.compare(runs, reverse).rows
    # Unpaired, the spread of the runs themselves would count; the differences are 1 to 5 points.
    assert row.difference.mean == pytest.approx(3.0)
    assert 1 <= row.difference.low < 2
    assert 4 < row.difference.high <= 5
    assert row.difference.side == 1
    back = ov.compare(reverse, runs).rows[0].difference
    assert back.mean == pytest.approx(-3.0)
    assert back.side == -1


def test_what_differs_is_found_and_pairs_share_the_rest():
    a, b = made(data={"beta": [0.1, 0.5]}), made(data={"beta": [0.5, 0.9]})
    found = ov.compare(a, b)
    assert found.differs == {}  # They share 0.5, so beta is a setting of pairs.
    assert {row.difference.mean for row in found.rows} == {0.0}
    assert len(found.unpaired) == 2 * 4 * 5
    other = ov.compare(made(), made(training={"learning_rate": 0.02}))
    ((key, (_, theirs)),) = other.differs.items()
    assert (key, theirs) == ("training.learning_rate", (0.02,))
    assert len(other.rows) == 4
    assert "training.learning_rate" in repr(other)


def test_two_rules_of_one_store_are_compared_under_every_attack():
    runs = made()
    found = ov.compare(runs.select(rule="median"), runs.select(rule="gas(median)"))
    assert found.differs == {"rule": (("median",), ("gas(median)",))}
    assert [row.settings for row in found.rows] == [{"attack": "lie"}, {"attack": "none"}]
    lie = found.rows[0]
    best = {
        rule: [each.best for each in runs.select(rule=rule, attack="lie")] for rule in BOTH["rule"]
    }
    gains = 100 * (np.array(best["gas(median)"]) - best["median"])
    assert lie.difference.mean == pytest.approx(gains.mean())
    assert gains.min() <= lie.difference.low <= gains.mean() <= lie.difference.high <= gains.max()


def test_a_parameter_of_some_rules_may_be_what_differs():
    a = made(rule=["mean", "gas(median, num_groups=10)"])
    b = made(rule=["mean", "gas(median, num_groups=20)"])
    found = ov.compare(a, b)
    assert found.differs == {"rule.num_groups": ((10, "none"), (20, "none"))}
    assert {row.settings["rule"] for row in found.rows} == {"mean", "gas(median)"}
    means = [row for row in found.rows if row.settings["rule"] == "mean"]
    assert {row.difference.mean for row in means} == {0.0}


def test_a_default_that_is_written_out_is_the_same_setting():
    a, b = made(attack=["lie"]), made(attack=["lie(z=1.5)"])
    assert ov.compare(a, b).differs == {}


def test_runs_without_a_partner_unfinished_runs_and_runs_without_a_number_are_named():
    runs = [*made(seeds=6, attack="lie", rule="median")]
    running = msgspec.structs.replace(runs[0].status, outcome="interrupted", round=3)
    unknown = replace(runs[1].series, accuracy=np.full(len(runs[1].series), np.nan))
    b = [replace(runs[0], status=running), replace(runs[1], series=unknown), *runs[2:5]]
    found = ov.compare(Runs(runs), Runs(b))
    assert found.rows[0].seeds == (2, 3, 4)
    reasons = {each.run.rpartition("/")[2]: each.reason for each in found.unpaired}
    assert reasons[runs[5].name] == "without a partner of the same settings and seed"
    left = [each for each in found.unpaired if each.side == "B"]
    assert [each.reason for each in left] == [
        "unfinished (interrupted)",
        "without a number for best",
    ]
    assert runs[5].name in found.to_markdown()


def test_few_seeds_are_stated():
    one = ov.compare(made(seeds=1), made(seeds=1))
    assert {row.difference.low for row in one.rows} == {None}
    assert "One seed gives no interval" in repr(one)
    assert "their mean has no interval" in repr(one)
    three = repr(ov.compare(made(seeds=3), made(seeds=3)))
    assert "3 values covers the truth in at most 75 %" in three
    assert "]*" in three
    runs = made(seeds=4)
    few = ov.compare(runs, shifted(runs, 0.01))
    assert {row.difference.side for row in few.rows} == {0}
    assert "Of 4 settings: undecided in 4." in repr(few)
    five = repr(ov.compare(made(), made()))
    assert "Few seeds" not in five
    assert "*" not in five


def test_several_runs_for_one_are_an_error_that_names_the_setting():
    a, b = made(training={"learning_rate": [0.01, 0.02]}), made(training={"learning_rate": 0.03})
    with pytest.raises(ValueError, match=r"A has 2 .* training.learning_rate = 0.01, 0.02; choose"):
        ov.compare(a, b)


def test_without_a_pair_the_error_names_what_is_in_the_way():
    runs = made()
    with pytest.raises(ValueError, match="differ in seed; give runs that share"):
        ov.compare(runs.select(seed=[0, 1]), runs.select(seed=[2, 3]))
    with pytest.raises(ValueError, match="B has no runs"):
        ov.compare(runs, runs.select(seed=9))
    with pytest.raises(ValueError, match=r"metric must be one of .* got 'bset'"):
        ov.compare(runs, runs, metric="bset")


def of_protocol(runs, protocol, **changes):
    """The same runs with another protocol; `protocol` is a number or by seed."""

    def one(result):
        number = protocol[result.seed] if isinstance(protocol, dict) else protocol
        return msgspec.structs.replace(ENVIRONMENT, protocol=number, **changes)

    return Runs([replace(each, environment=one(each)) for each in runs])


def test_pairs_across_protocols_are_stated_in_every_format():
    runs = made(seeds=1)
    assert "rotocol" not in repr(ov.compare(runs, runs))
    found = ov.compare(of_protocol(runs, 2), runs)
    note = "Protocols: 2 in A, 1 in B; the same seed draws other random splits in each."
    assert note in repr(found).splitlines()
    assert f"- {note}" in found.to_markdown().splitlines()
    assert note in found._repr_html_()
    assert note in found.to_dict()["notes"]
    assert found.to_dict()["software"] == {"protocol": {"a": [2], "b": [1]}}


def test_revisions_of_the_protocol_are_stated():
    runs = made(seeds=1)
    found = ov.compare(runs, of_protocol(runs, 1, revision=10))
    note = "Revisions of the protocol: unknown in A, 10 in B; they may differ by rounding."
    assert note in found.notes()


def test_all_settings_are_pooled_by_seed():
    """Two settings of opposite differences by seed: no seed has a difference in the mean."""
    up = {seed: 0.01 * (seed + 1) for seed in range(5)}
    down = {seed: -value for seed, value in up.items()}
    runs = made(rule="median")
    other = [*shifted(runs.select(attack="lie"), up), *shifted(runs.select(attack="none"), down)]
    found = ov.compare(runs, Runs(other))
    assert sorted(row.difference.side for row in found.rows) == [-1, 1]
    assert (found.overall.low, found.overall.high, found.overall.num) == pytest.approx((0, 0, 5))


def test_intervals_cover_the_truth_about_as_often_as_they_should():
    random = np.random.default_rng(1)
    for num, least, most in ((3, 0.65, 0.80), (5, 0.88, 0.96), (10, 0.91, 0.97)):
        found = [bootstrap([dict(enumerate(random.normal(size=num)))]) for _ in range(300)]
        covered = np.mean([each.low <= 0 <= each.high for each in found])
        assert least <= covered <= most, (num, covered)
        assert covered <= most_coverage(num) + 0.05


def test_the_same_values_give_the_same_interval():
    values = [{0: 0.3, 1: 0.1, 2: 0.7, 3: 0.2, 4: 0.9}]
    assert bootstrap(values) == bootstrap(values)
    assert bootstrap([]) is None


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    root = tmp_path_factory.mktemp("store")
    write_store(root / "runs" / "mine", BOTH, seeds=2)
    write_store(root / "runs" / "slow", BOTH | {"training": {"learning_rate": 0.02}}, seeds=3)
    return root / "runs"


def test_the_verb_prints_a_table_markdown_and_json(store, capsys, tmp_path):
    done = run(capsys, "compare", store / "mine", store / "slow")
    assert done.code == 0, done.err
    assert "B − A: best accuracy of all rounds, in percent" in done.out
    assert "training.learning_rate" in done.out
    assert "all settings" in done.out
    assert "Left out of B" in done.out
    data = run(capsys, "compare", store / "mine", store / "slow", "--json").json
    assert len(data["rows"]) == 4
    assert {row["num_seeds"] for row in data["rows"]} == {2}
    assert len(data["unpaired"]) == 4
    file = tmp_path / "compared.md"
    assert run(capsys, "compare", store / "mine", store / "slow", "-o", file).out == ""
    printed = run(capsys, "compare", store / "mine", store / "slow", "--format", "md").out
    assert file.read_text() == printed
    assert printed.startswith("### B − A")
    assert "| rule | attack | A | B | B − A | 95 % interval | higher | seeds |" in printed


def test_the_verb_takes_exports_and_chooses_runs(store, capsys, tmp_path):
    export = tmp_path / "all.csv.gz"
    export.write_bytes(to_export([*ov.read_runs(store / "mine")]))
    words = ["--a", "rule=median", "--b", "rule=gas(median)", "--metric", "last-ten", "--json"]
    data = run(capsys, "compare", export, *words).json
    assert data["metric"] == "last_ten"
    assert data["differs"] == {"rule": {"a": ["median"], "b": ["gas(median)"]}}
    chosen = ["--a", "seed=0", "--a", "seed=1", "--b", "data.beta=0.5"]
    assert run(capsys, "compare", export, export, *chosen, "--json").json["rows"]


def test_mistakes_are_one_line(store, capsys):
    run(capsys, "compare", store).assert_fails(2, "nothing to compare with", "--a and --b")
    run(capsys, "compare", store, store, "--a", "rule").assert_fails(2, "KEY=VALUE", "'rule'")
    run(capsys, "compare", store, store, "--a", "rule=krum").assert_fails(2, "no run in", "krum")
    run(capsys, "compare", store, store / "no").assert_fails(2, "no file or folder")
    words = ["--a", "seed=0", "--b", "seed=1"]
    run(capsys, "compare", store / "mine", *words).assert_fails(2, "no run of A", "differ in seed")


def test_the_report_has_a_section(store, capsys, tmp_path):
    page = tmp_path / "page.html"
    done = run(capsys, "compare", store / "mine", store / "slow", "--report", page)
    assert done.code == 0, done.err
    text = page.read_text()
    assert '<section id="comparison"' in text
    assert "95 % interval" in text
    assert "training.learning_rate" in text
    assert run(capsys, "report", store / "mine", "-o", page).code == 0
    assert 'id="comparison"' not in page.read_text()


def test_a_frame_has_one_row_for_each_setting():
    pytest.importorskip("pandas")
    frame = ov.compare(made(), made()).to_frame()
    assert len(frame) == 4
    assert {"rule", "attack", "difference", "low", "high", "num_seeds"} <= {*frame.columns}
