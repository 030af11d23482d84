"""Audits of runs and of production logs: each client's record, and who stands out."""

import json
import math
import re

import msgspec
import numpy as np
import pytest

from audit_logs import line, write_log
from command_line import run
from made_results import without_kept, write_store
from outvote.cli.audit import print_audit
from outvote.report.audit import (
    Audit,
    Mark,
    audit_log,
    audit_run,
    client_summaries,
    detection,
    findings,
    longest_streaks,
    within_round_ranks,
)
from outvote.results.audit_log import ClientRecord
from outvote.results.disk import DamagedFileError, StoreError

K, D, R = Mark.KEPT, Mark.DROPPED, Mark.REJECTED
NAN, INF = math.nan, math.inf


def made(scores, marks, byzantine=None):
    scores, marks = np.array(scores, dtype=float), np.array(marks, dtype=np.uint8)
    return Audit(
        title="made",
        clients=tuple("abcdefgh"[: marks.shape[1]]),
        rounds=np.arange(1, len(marks) + 1),
        scores=scores,
        marks=marks,
        is_byzantine=None if byzantine is None else np.array(byzantine, dtype=bool),
        reasons={},
        about={},
    )


def record(audit, client):
    return next(each for each in client_summaries(audit) if each.client == client)


def test_ranks_lie_between_0_and_1_and_equals_share_theirs():
    audit = made([[3.0, 1.0, 2.0, 2.0, NAN]], [[D, K, K, K, 0]])
    ranks, compared = within_round_ranks(audit)
    np.testing.assert_array_equal(ranks, [[1.0, 0.0, 0.5, 0.5, NAN]])
    assert compared.tolist() == [4]


def test_ranks_are_those_of_a_plain_count():
    random = np.random.default_rng(0)
    marks = random.integers(0, 4, size=(60, 7))
    scores = np.where(marks == R, INF, random.integers(0, 4, size=marks.shape).astype(float))
    scores[marks == Mark.ABSENT] = NAN
    ranks, _ = within_round_ranks(made(scores, marks))
    for row, own in zip(ranks, scores, strict=True):
        known = own[~np.isnan(own)]
        for rank, score in zip(row, own, strict=True):
            if math.isnan(score) or len(known) < 2:
                assert math.isnan(rank)
                continue
            below, equal = (known < score).sum(), (known == score).sum()
            assert rank == pytest.approx((below + (equal - 1) / 2) / (len(known) - 1))


def test_what_cannot_be_used_ranks_above_all_scores():
    audit = made([[INF, 1e300, NAN]], [[R, K, Mark.MALFORMED]])
    np.testing.assert_array_equal(within_round_ranks(audit)[0], [[0.75, 0.0, 0.75]])


def test_a_client_that_is_alone_in_its_round_has_no_rank():
    only = record(made([[1.0, NAN]], [[K, 0]]), "a")
    assert math.isnan(only.suspicion)
    assert math.isnan(only.error)


def test_the_error_is_that_of_ranks_drawn_by_chance():
    """Of three clients the ranks 0, 1/2, 1 have variance 1/6; over six rounds the mean has 1/36."""
    audit = made([[1.0, 2.0, 3.0]] * 6, [[K, K, D]] * 6)
    found = record(audit, "c")
    assert (found.suspicion, found.error) == (1.0, pytest.approx(1 / 6))
    assert found.lower_bound == pytest.approx(1 - 1 / 6)


def test_who_is_steadily_worst_stands_out_and_who_is_so_once_does_not():
    """The error of eight clients is 0.327 / sqrt(rounds): h stands out from 4 on, g from 8."""
    scores, marks = [list(range(8))], [[K] * 7 + [D]]
    assert not any(each.stands_out for each in client_summaries(made(scores, marks)))
    found = client_summaries(made(scores * 6, marks * 6))
    assert [each.client for each in found if each.stands_out] == ["h"]


def test_streaks_go_on_over_rounds_without_the_client():
    decided = np.array([[1, 1], [0, 1], [1, 1], [1, 1], [1, 1]], dtype=bool)
    refused = np.array([[1, 1], [0, 0], [1, 1], [0, 1], [1, 0]], dtype=bool)
    assert longest_streaks(decided, refused).tolist() == [2, 2]


def test_counts_of_a_client():
    marks = [[K, D], [0, R], [D, Mark.LATE], [K, Mark.MISSING], [K, Mark.EXCLUDED]]
    scores = [[1.0, 2.0], [NAN, INF], [3.0, NAN], [1.0, NAN], [1.0, NAN]]
    b = record(made(scores, marks), "b")
    assert (b.num_sampled, b.num_received, b.num_dropped, b.num_rejected) == (4, 2, 1, 1)
    assert (b.longest_streak, b.drop_rate, b.last_seen) == (1, 1.0, 2)
    assert {name: num for name, num in b.faults.items() if num} == {
        "late": 1,
        "missing": 1,
        "excluded": 1,
    }


def production(num_rounds, *, num_dropped=2):
    """A log: a rule that drops the two highest of seven in every round.

    eve attacks (ten times too long, reversed), odd is honest with unusual data, bad sends
    what cannot be read.
    """

    def aggregated(client, rank, norm=1.0, cosine=0.8):
        is_kept = rank < 6 - num_dropped
        reason = "" if is_kept else "outvoted"
        return ClientRecord(
            client=client, score=rank, kept=is_kept, reason=reason, norm=norm, cosine=cosine
        )

    return [
        line(
            number % 10,
            *(aggregated(name, rank) for rank, name in enumerate(("ann", "bob", "cat", "dan"))),
            aggregated("odd", 4.0, 1.4, 0.5),
            aggregated("eve", 5.0, 10.0, -0.9),
            ClientRecord(client="bad", standing="malformed", reason="no tensor 'w'"),
        )
        for number in range(num_rounds)
    ]


def test_malformed_replies_and_outliers_are_counted_apart_from_being_outvoted(tmp_path, capsys):
    write_log(tmp_path, production(8))
    by_name = {each.client: each for each in client_summaries(audit_log(tmp_path))}
    outvoted = {name: each.num_dropped for name, each in by_name.items()}
    assert outvoted == {"ann": 0, "bob": 0, "cat": 0, "dan": 0, "odd": 8, "eve": 8, "bad": 0}
    assert by_name["bad"].faults["malformed"] == 8
    assert [by_name[name].num_norm_outliers for name in ("odd", "eve", "ann")] == [0, 8, 0]
    assert [by_name[name].num_cosine_outliers for name in ("odd", "eve", "ann")] == [0, 8, 0]
    out = run(capsys, "audit", tmp_path).out
    assert "Norm or cosine unlike the others in most rounds: eve." in out
    assert "Malformed or not finite replies: bad (8)." in out
    head = next(text for text in out.splitlines() if "suspicion" in text)
    for column in ("dropped", "malformed", "norm outlier", "cosine outlier"):
        assert column in head


def test_text_json_and_page_have_the_same_findings(tmp_path, capsys):
    for num_rounds in (3, 8):
        write_log(tmp_path, production(num_rounds))
        found = run(capsys, "audit", tmp_path, "-o", tmp_path / "audit.html")
        audit = audit_log(tmp_path)
        expected = findings(audit, client_summaries(audit))
        assert len(expected) >= 3
        page = (tmp_path / "audit.html").read_text()
        data = json.loads(
            re.search(r'<script type="application/json"[^>]*>(.*?)</script>', page)[1]
        )
        assert data["runs"][0]["audit"]["findings"] == list(expected)
        assert all(each in " ".join(found.out.split()) for each in expected)
        assert run(capsys, "audit", tmp_path, "--json").json["findings"] == list(expected)


def test_of_several_logs_in_a_folder_the_newest_is_shown(tmp_path, capsys):
    write_log(tmp_path / "2026-01-01T00-00-00Z", production(3))
    write_log(tmp_path / "2026-01-01T00-00-00Z-2", production(8))
    (tmp_path / "unrelated").mkdir()
    out = run(capsys, "audit", tmp_path).out
    assert f"{tmp_path.name}/2026-01-01T00-00-00Z-2: 8 rounds" in out
    assert "the newest of 2 logs" in " ".join(out.split())


def test_precision_and_recall_against_the_truth():
    """Sent: 6 by honest ones, 3 by the Byzantine c; dropped: c twice, a and b once."""
    audit = made(
        [[1.0, 2.0, 9.0], [8.0, 1.0, 9.0], [1.0, 2.0, 1.5]],
        [[K, D, D], [D, K, D], [K, K, K]],
        byzantine=[False, False, True],
    )
    found = detection(audit, client_summaries(audit))
    assert found.num_byzantine == 1
    assert found.drop_precision == pytest.approx(2 / 4)
    assert found.drop_recall == pytest.approx(2 / 3)
    assert found.honest_kept == pytest.approx(4 / 6)
    assert found.top_precision == 1.0


def test_without_byzantine_clients_or_drops_shares_are_unknown_rather_than_zero():
    audit = made([[1.0, 2.0]], [[K, K]], byzantine=[False, False])
    found = detection(audit, client_summaries(audit))
    assert (found.drop_precision, found.drop_recall, found.top_precision) == (None, None, None)
    assert detection(made([[1.0]], [[K]]), []) is None


def test_without_an_attack_drops_have_no_precision():
    audit = made([[1.0, 2.0]], [[K, D]], byzantine=[False, False])
    found = detection(audit, client_summaries(audit))
    assert (found.drop_precision, found.honest_kept) == (None, 0.5)


def test_a_run_has_the_same_as_its_arrays(tmp_path):
    settings = {"rule": "gas(median)", "attack": "lie", "rounds": 7}
    (result,) = write_store(tmp_path, settings, seeds=1)
    audit = audit_run(result)
    arrays = np.load(result.folder.path / "audit.npz")
    np.testing.assert_array_equal(audit.scores, arrays["scores"])
    np.testing.assert_array_equal(audit.marks == Mark.KEPT, arrays["is_kept"])
    np.testing.assert_array_equal(audit.is_received, arrays["is_sampled"])
    seen = arrays["is_sampled"].any(axis=0)
    np.testing.assert_array_equal(audit.is_byzantine[seen], arrays["is_byzantine"][seen])


def test_a_rejected_client_of_a_run_is_marked(tmp_path):
    (result,) = write_store(tmp_path, {"rule": "mean", "rounds": 1}, seeds=1)
    path = result.folder.path / "metrics.jsonl"
    metrics = json.loads(path.read_text())
    first = metrics["clients"][0]
    metrics["rejected"], metrics["scores"][0] = [first], None
    metrics["kept"] = [client for client in metrics["kept"] if client != first]
    path.write_text(json.dumps(metrics) + "\n")
    audit = audit_run(result)
    assert audit.marks[0, first] == Mark.REJECTED
    assert audit.scores[0, first] == INF


def test_where_a_rule_does_not_report_who_was_kept_drops_are_unknown(tmp_path, capsys):
    settings = {"rule": "gas(median)", "attack": "lie", "rounds": 9}
    (result,) = write_store(tmp_path, settings, seeds=1)
    audit = audit_run(without_kept(result))
    assert set(np.unique(audit.marks)) <= {Mark.ABSENT, Mark.UNKNOWN}
    records = client_summaries(audit)
    seen = [each for each in records if each.num_received]
    assert {(each.num_dropped, each.longest_streak) for each in seen} == {(None, None)}
    assert all(math.isnan(each.drop_rate) for each in records)
    assert not math.isnan(records[0].suspicion)  # Scores are there.
    found = detection(audit, records)
    assert (found.drop_precision, found.drop_recall, found.honest_kept) == (None, None, None)
    assert found.top_precision is not None
    print_audit(audit, 3)
    row = next(text for text in capsys.readouterr().out.splitlines() if records[0].client in text)
    assert "0 %" not in row
    assert row.count("–") == 3


def test_a_log_of_production_has_clients_standings_and_reasons_but_no_truth(tmp_path):
    write_log(
        tmp_path,
        [
            line(
                1,
                ClientRecord(client="ann", score=1.0, kept=True),
                ClientRecord(client="eve", score=4.0),
                ClientRecord(client="nan"),
                ClientRecord(client="bad", standing="malformed", reason="no tensor 'w'"),
            ),
            line(2, ClientRecord(client="bob", standing="missing"), is_updated=False),
        ],
    )
    audit = audit_log(tmp_path)
    assert audit.clients == ("ann", "eve", "nan", "bad", "bob")
    assert audit.marks.tolist() == [[K, D, R, Mark.MALFORMED, 0], [0, 0, 0, 0, Mark.MISSING]]
    assert audit.scores[0, 2] == INF
    assert math.isnan(audit.scores[0, 3])
    assert audit.is_byzantine is None
    assert record(audit, "bad").reason == "no tensor 'w'"
    assert audit.about["rounds without an update"] == 1
    assert detection(audit, client_summaries(audit)) is None


def test_norms_and_cosines_of_a_log_are_medians(tmp_path, capsys):
    rounds = [
        line(
            number,
            ClientRecord(client="ann", score=1.0, kept=True, norm=norm, cosine=0.9),
            ClientRecord(client="eve", score=4.0, norm=8.0, cosine=-0.25 if number == 1 else None),
            ClientRecord(client="bob", standing="missing"),
        )
        for number, norm in ((1, 1.0), (2, 5.0), (3, 2.0))
    ]
    write_log(tmp_path / "log", rounds)
    audit = audit_log(tmp_path / "log")
    found = {each.client: (each.norm, each.cosine) for each in client_summaries(audit)}
    assert found["ann"] == (2.0, 0.9)
    assert found["eve"] == (8.0, -0.25)
    assert all(map(math.isnan, found["bob"]))
    lines = run(capsys, "audit", tmp_path / "log").out.splitlines()
    head = next(text.split() for text in lines if "cosine" in text)
    assert head[head.index("norm") : head.index("norm") + 2] == ["norm", "cosine"]
    assert " 8    -0.25 " in next(text for text in lines if " eve " in text)
    found_json = run(capsys, "audit", tmp_path / "log", "--json").json["clients"]
    assert {each["client"]: each["norm"] for each in found_json} == {
        "ann": 2.0,
        "eve": 8.0,
        "bob": None,
    }


def test_a_damaged_line_hides_no_other_and_is_counted(tmp_path, capsys):
    clients = (
        ClientRecord(client="ann", score=1.0, kept=True),
        ClientRecord(client="eve", score=4.0),
    )
    write_log(tmp_path, [line(k, *clients) for k in (1, 2, 3, 4)])
    path = tmp_path / "audit.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1][:30] + b"\n\xff\n" + lines[2] + lines[3])
    audit = audit_log(tmp_path)
    assert audit.rounds.tolist() == [1, 3, 4]
    assert audit.about["lines that cannot be read"] == 2
    found = run(capsys, "audit", tmp_path)
    assert found.code == 0
    assert "2 lines cannot be read" in found.err


def test_of_a_round_written_twice_the_last_counts(tmp_path):
    first, last = (ClientRecord(client="ann", standing=each) for each in ("missing", "late"))
    write_log(tmp_path, [line(1, first), line(2, first), line(1, last)])
    assert audit_log(tmp_path).marks.tolist() == [[Mark.LATE], [Mark.MISSING]]


def test_a_log_has_why_the_last_round_had_no_update(tmp_path):
    kept = msgspec.structs.replace(line(2, is_updated=False), reason="too few replies")
    write_log(tmp_path, [line(1), kept, line(3)], settings={"rule": "of another", "x": 1})
    about = audit_log(tmp_path).about
    assert about["last of them"] == "round 2: too few replies"
    assert about["rule"] == "gas(median)"  # A setting does not hide what the log is about.
    assert about["x"] == 1


def test_a_folder_without_a_log_has_no_audit_and_a_damaged_one_is_refused(tmp_path):
    assert audit_log(tmp_path) is None
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(DamagedFileError):
        audit_log(tmp_path)
    write_log(tmp_path, [], version=99)
    with pytest.raises(StoreError, match="newer"):
        audit_log(tmp_path)


@pytest.fixture
def suite(tmp_path):
    settings = {"rule": ["median", "gas(median)"], "attack": "lie", "rounds": 8}
    write_store(tmp_path, settings, seeds=1)
    return tmp_path / "own"


@pytest.fixture
def log(tmp_path):
    rounds = [
        line(
            number,
            ClientRecord(client="ann", score=1.0, kept=True),
            ClientRecord(client="bob", score=1.1, kept=True),
            ClientRecord(client="eve", score=9.0, reason="far away"),
        )
        for number in (1, 2, 3)
    ]
    write_log(tmp_path / "log", rounds)
    return tmp_path / "log"


def test_audit_of_a_suite_has_a_line_for_each_run(suite, capsys):
    found = run(capsys, "audit", suite)
    assert found.code == 0, found.err
    for path in suite.iterdir():
        assert path.name in found.out
    assert [entry["rounds"] for entry in run(capsys, "audit", suite, "--json").json] == [8, 8]


def test_audit_of_one_run_lists_its_clients(suite, capsys, tmp_path):
    page = tmp_path / "audit.html"
    found = run(capsys, "audit", suite, "--run", "gas-median", "--top", "3", "-o", page)
    assert found.code == 0, found.err
    assert "gas(median) against lie, seed 0: 8 rounds, 50 clients" in found.out
    assert "47 more: --top 50" in found.out
    assert page.exists()
    found_json = run(capsys, "audit", next(suite.glob("gas-*")), "--json").json
    assert len(found_json["clients"]) == 50
    assert found_json["detection"]["num_byzantine"] <= 10


def test_audit_of_a_log_names_the_one_who_was_dropped(log, capsys, tmp_path):
    found = run(capsys, "audit", log, "-o", tmp_path / "audit.html")
    assert found.code == 0, found.err
    first = next(text for text in found.out.splitlines() if "ann" in text or "eve" in text)
    assert first.split()[:2] == ["eve", "1.00"]
    assert "far away" in first
    assert "More than three errors" not in found.out
    assert (tmp_path / "audit.html").exists()
    found_json = run(capsys, "audit", log, "--json").json
    assert found_json["detection"] is None
    assert found_json["clients"][0]["client"] == "eve"


def test_audit_follows_a_log_until_it_is_stopped(log, capsys, monkeypatch):
    naps = []

    def nap(seconds):
        naps.append(seconds)
        if len(naps) == 3:
            raise KeyboardInterrupt
        if len(naps) == 2:
            with (log / "audit.jsonl").open("ab") as file:
                file.write(
                    msgspec.json.encode(line(4, ClientRecord(client="eve", score=2.0))) + b"\n"
                )

    monkeypatch.setattr("outvote.cli.audit.time.sleep", nap)
    found = run(capsys, "audit", log, "--follow")
    assert found.code == 0, found.err
    assert [text for text in found.out.splitlines() if "rounds, 3 clients" in text] == [
        "log: 3 rounds, 3 clients",
        "log: 4 rounds, 3 clients",
    ]


def test_audit_refuses_other_folders_in_one_line(tmp_path, suite, log, capsys):
    (tmp_path / "empty").mkdir()
    run(capsys, "audit", tmp_path / "empty").assert_fails(2, "no run")
    run(capsys, "audit", tmp_path / "nowhere").assert_fails(2, "no folder", "nowhere")
    run(capsys, "audit", suite, "--run", "krum").assert_fails(2, "'krum'", "2 runs", "closest")
    names = [path.name for path in suite.iterdir()]
    run(capsys, "audit", suite, "--run", "lie").assert_fails(2, "2 runs", "'lie'", *names)
    assert run(capsys, "audit", suite, "--run", names[0]).code == 0
    run(capsys, "audit", log, "--run", "krum").assert_fails(2, "leave out --run")
    (log / "manifest.json").write_bytes(b"\x00garbage")
    run(capsys, "audit", log).assert_fails(2, "manifest.json", "cannot be read")


def test_audit_prints_long_and_broken_names_on_a_short_line(tmp_path, capsys):
    names = "x" * 10_000, "eve\nOf 1 client"
    clients = [ClientRecord(client=name, standing="late", reason=name) for name in names]
    write_log(tmp_path / "log", [line(1, *clients)])
    found = run(capsys, "audit", tmp_path / "log")
    assert "log: 1 round, 2 clients" in found.out
    assert len(found.out) < 3000
    assert "eve Of 1 client" in found.out
    found_json = run(capsys, "audit", tmp_path / "log", "--json").json
    assert {each["client"] for each in found_json["clients"]} == set(names)
