"""Exclusion: which nodes are excluded, on what evidence, and when it may come back."""

import numpy as np
import pytest

from bad_replies import HandMadeGrid, record_of, respond_with, run_round
from outvote.flower import RobustStrategy
from outvote.flower.exclusion import Exclusions
from outvote.results.audit_log import read_audit

MODEL = {"w": np.zeros((3, 4), np.float32)}
NODES = tuple(range(100, 112))


def out(exclusions, round_, online=NODES, wanted=12, num_byzantine=2, tolerates=None):
    return exclusions.excluded(
        round_, online, wanted, num_byzantine, tolerates or (lambda num_nodes: num_nodes)
    )


def test_after_so_many_offences_a_node_is_out():
    exclusions = Exclusions(exclude_after=3)
    for round_ in (1, 2):
        exclusions.record(round_, kept=[100], offences={101: "outvoted"})
        assert out(exclusions, round_ + 1) == []
    exclusions.record(3, kept=[100], offences={101: "malformed"})
    assert out(exclusions, 4) == out(exclusions, 400) == [101]
    assert exclusions.evidence(101) == (
        "excluded after round 3: outvoted in round 1, outvoted in round 2, malformed in round 3"
    )


def test_being_kept_forgives_being_outvoted_but_not_nonsense():
    exclusions = Exclusions(exclude_after=2)
    exclusions.record(1, kept=[], offences={101: "outvoted", 102: "malformed"})
    exclusions.record(2, kept=[101, 102], offences={})
    exclusions.record(3, kept=[], offences={101: "outvoted", 102: "malformed"})
    assert out(exclusions, 4) == [102]


def test_nobody_is_excluded_unless_that_is_wanted():
    exclusions = Exclusions()
    for round_ in range(1, 50):
        exclusions.record(round_, kept=[], offences={101: "malformed"})
    assert out(exclusions, 50) == []


def test_never_more_are_excluded_than_may_be_byzantine_and_the_worst_go_first():
    exclusions = Exclusions(exclude_after=1)
    exclusions.record(1, kept=[], offences={101: "outvoted", 102: "outvoted", 103: "outvoted"})
    exclusions.record(2, kept=[], offences={103: "outvoted"})
    assert out(exclusions, 3) == [101, 103]
    assert out(exclusions, 3, num_byzantine=1) == [103]
    assert out(exclusions, 3, num_byzantine=0) == []
    exclusions.record(3, kept=[], offences={104: "malformed"})
    assert out(exclusions, 4, num_byzantine=1) == [104]


def test_nobody_is_excluded_whom_the_rule_needs():
    exclusions = Exclusions(exclude_after=1)
    exclusions.record(1, kept=[], offences={101: "outvoted", 102: "outvoted"})

    def like_krum(num_nodes):
        return (num_nodes - 3) // 2

    assert out(exclusions, 2, NODES[:8], 8, 2, like_krum) == [101]
    assert out(exclusions, 2, NODES[:7], 7, 2, like_krum) == []
    # Enough are left for the sample.
    assert out(exclusions, 2, NODES[:9], 7, 2, like_krum) == [101, 102]


def test_probation_ends_with_the_first_offence():
    exclusions = Exclusions(exclude_after=2, probation=3)
    exclusions.record(1, kept=[], offences={101: "outvoted"})
    exclusions.record(2, kept=[], offences={101: "outvoted"})
    assert [out(exclusions, round_) for round_ in (3, 4, 5, 6)] == [[101], [101], [101], []]
    exclusions.record(6, kept=[], offences={101: "outvoted"})
    assert out(exclusions, 7) == [101]
    offences = "outvoted in round 2, outvoted in round 6"
    assert exclusions.evidence(101) == f"excluded after round 6: {offences}"


def test_who_behaves_on_probation_is_forgiven():
    exclusions = Exclusions(exclude_after=2, probation=1)
    for round_ in (1, 2):
        exclusions.record(round_, kept=[], offences={101: "outvoted"})
    assert out(exclusions, 4) == []
    exclusions.record(4, kept=[101], offences={})
    exclusions.record(5, kept=[], offences={101: "outvoted"})
    assert out(exclusions, 6) == []


def test_the_history_survives_a_restart():
    exclusions = Exclusions(exclude_after=2, probation=9)
    for round_ in (1, 2):
        exclusions.record(round_, kept=[], offences={101: "outvoted", 102: "malformed"})
    again = Exclusions(exclude_after=2, probation=9)
    again.from_notes(exclusions.to_notes())
    assert out(again, 3) == out(exclusions, 3) == [101, 102]
    assert again.evidence(102) == exclusions.evidence(102)


def test_what_excludes_can_be_settled_anew_at_a_restart():
    exclusions = Exclusions(exclude_after=2)
    for round_ in (1, 2, 3):
        exclusions.record(round_, kept=[], offences={101: "malformed"})
    exclusions.record(3, kept=[], offences={102: "malformed"})
    exclusions.record(4, kept=[], offences={102: "malformed"})
    found = {}
    for exclude_after in (None, 2, 3, 4):
        again = Exclusions(exclude_after)
        again.from_notes(exclusions.to_notes())
        found[exclude_after] = out(again, 5)
    assert found == {None: [], 2: [101, 102], 3: [101], 4: []}


def test_the_stored_offences_of_a_node_do_not_grow_for_ever():
    for exclude_after in (None, 150):
        exclusions = Exclusions(exclude_after)
        for round_ in range(1, 151):
            exclusions.record(round_, kept=[], offences={101: "malformed"})
        rounds = [round_ for _, round_, _ in exclusions.to_notes()["offences"]]
        assert len(rounds) == (exclude_after or 100)
        assert rounds[-1] == 150
    assert out(exclusions, 151) == [101]


def test_exclusion_does_not_lower_the_number_of_byzantine_nodes(tmp_path):
    grid = HandMadeGrid(range(100, 130), respond_with("shape", range(100, 106)))
    strategy = RobustStrategy(
        "multi-krum", byzantine_fraction=0.2, audit_dir=tmp_path, exclude_after=1
    )
    for number in (1, 2):
        run_round(strategy, grid, record_of(MODEL), number)
    strategy.close()
    assert len(grid.asked[1]) == 24
    assert [entry.num_byzantine for entry in read_audit(tmp_path)] == [6, 6]


@pytest.mark.parametrize("kind", ["shape", "big"])
def test_the_strategy_stops_asking_and_logs_why(kind, tmp_path):
    grid = HandMadeGrid(NODES, respond_with(kind, [104]))
    strategy = RobustStrategy(
        "gas(multi-krum)", num_byzantine=1, audit_dir=tmp_path, exclude_after=2, probation=2
    )
    model = record_of(MODEL)
    for number in range(1, 6):
        run_round(strategy, grid, model, number)
    strategy.close()
    assert [104 in asked for asked in grid.asked] == [True, True, False, False, True]
    entry = read_audit(tmp_path)[2]
    (out_,) = [each for each in entry.clients if each.standing == "excluded"]
    what = "malformed" if kind == "shape" else "outvoted"
    assert out_.client == "104"
    assert out_.reason == f"excluded after round 2: {what} in round 1, {what} in round 2"


@pytest.mark.parametrize("rule", ["krum", "multi-krum(num_selected=6)"])
def test_a_rule_that_keeps_half_of_the_clients_or_fewer_blames_nobody(rule, tmp_path):
    assert len(NODES) == 12
    grid = HandMadeGrid(NODES, respond_with("none", []))
    strategy = RobustStrategy(rule, num_byzantine=2, audit_dir=tmp_path, exclude_after=1)
    for number in (1, 2):
        run_round(strategy, grid, record_of(MODEL), number)
    strategy.close()
    assert grid.asked == [list(NODES)] * 2
    assert {each.reason for each in read_audit(tmp_path)[1].clients} == {"", "not chosen"}
