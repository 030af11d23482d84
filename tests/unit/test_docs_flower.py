"""docs/reference/flower.md is correct: every setting and default, every number of a benchmark."""

import inspect
import json
import re
from pathlib import Path

import pytest

from outvote.flower import RobustStrategy

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "flower.md").read_text()
RESULTS = ROOT / "benchmarks" / "results"


def rows_under(start, page=PAGE):
    """The cells of the first table after some words."""
    after = page.split(start)[1].splitlines()
    table = []
    for line in after:
        if line.startswith("|"):
            table.append([cell.strip() for cell in line.strip("|").split("|")])
        elif table:
            break
    return table[0], table[2:]


def result(start):
    """The benchmark file that is named first after some words."""
    path = RESULTS / re.search(r"results/([\w-]+\.json)", PAGE.split(start)[1])[1]
    found = json.loads(path.read_text())
    about = found["circumstances"]
    assert f"{about['date']}, commit {about['commit']}" in PAGE.split(start)[1][:120]
    return found["rows"]


def test_the_settings_are_those_of_the_strategy_with_their_defaults():
    _, rows = rows_under("## Settings")
    written = [(row[0].strip("`"), row[1].strip("`")) for row in rows]
    parameters = inspect.signature(RobustStrategy).parameters.values()
    named = [each for each in parameters if each.kind is not each.VAR_KEYWORD]
    assert written == [(each.name, repr(each.default)) for each in named]


def test_bad_replies_are_listed_as_measured():
    head, rows = rows_under("**One bad reply among eleven")
    for row, measured in zip(rows, result("**One bad reply among eleven, f = 2.**"), strict=True):
        assert row[0] == measured["kind"]
        for name, cell in zip(head[2:], row[2:], strict=True):
            ours = name.removeprefix("ours: ")
            expected = measured["outvote"][ours] if ours != name else measured["flower"][name]
            assert cell == expected


def test_precision_is_listed_as_measured():
    _, rows = rows_under("**Precision.**")
    for row, measured in zip(rows, result("**Precision.**"), strict=True):
        assert float(row[0]) == measured["ratio"]
        assert row[1:] == [str(measured["flower"]), str(measured["outvote"])]


def test_times_are_listed_as_measured():
    _, rows = rows_under("milliseconds. 2")
    for row, measured in zip(rows, result("f = 4, milliseconds. "), strict=True):
        clock, cpu = measured["milliseconds"], measured["least cpu"]
        assert row[:2] == [measured["flower"], measured["rule"]]
        assert row[3:5] == [str(clock["outvote"]), str(clock["outvote with log"])]
        assert row[7] == str(cpu["outvote"])
        if "flower" in clock:
            assert [row[2], row[6]] == [str(clock["flower"]), str(cpu["flower"])]
            assert float(row[5]) == pytest.approx(clock["outvote"] / clock["flower"], abs=0.005)


def test_krum_like_rules_take_at_most_one_and_a_half_times_flowers_time_and_others_less():
    by_name = {row["flower"]: row["milliseconds"] for row in result("f = 4, milliseconds. ")}
    for name, limit in (("Krum", 1.5), ("MultiKrum", 1.5), ("Bulyan", 1), ("FedMedian", 1)):
        assert by_name[name]["outvote with log"] <= limit * by_name[name]["flower"]


EXCLUSION = (ROOT / "docs" / "how-to" / "flower-exclusion.md").read_text()


def measured_exclusion():
    found = json.loads((RESULTS / "2026-11-16-flower-exclusion.json").read_text())
    about = found["circumstances"]
    assert f"{about['date']}, commit {about['commit']}" in EXCLUSION
    assert f"{about['trials']} trials of {about['rounds']} rounds" in EXCLUSION
    return {(row["case"], row["rule"]): row for row in found["rows"]}


def at(row, limit, rate):
    return next(c for c in row["curve"] if (c["limit"], c["rate"]) == (limit, rate))


def percent(value):
    return "–" if value is None else f"{100 * value:.1f} %"


def number(value):
    return "–" if value is None else f"{value:g}"


def test_exclusion_is_listed_as_simulated():
    measured = measured_exclusion()
    _, rows = rows_under("rule `gas(multi-krum)`:**", EXCLUSION)
    assert len(rows) == len({case for case, _ in measured})
    for case, *cells in rows:
        row = measured[case, "gas(multi-krum)"]
        rates, found = row["drop rate"], at(row, 2.0, 0.01)
        assert cells == [
            *(percent(rates.get(kind)) for kind in ("unusual", "usual", "byzantine")),
            str(row["three drops in a row"]["trials with an honest node"]),
            *(percent(found.get(kind)) for kind in ("unusual", "usual", "byzantine")),
            number(found["median round"]),
        ]


def test_the_operating_curve_is_listed_as_simulated():
    measured = measured_exclusion()
    head, rows = rows_under("**All thresholds**", EXCLUSION)
    assert len(rows) == 16
    for limit, rate, *cells in rows:
        for name, cell in zip(head[2:], cells, strict=True):
            case = name.removesuffix(", rule gas(median)").removesuffix(", median round")
            rule = "gas(median)" if name.endswith("gas(median)") else "gas(multi-krum)"
            found = at(measured[case, rule], float(limit), float(rate))
            if name.endswith("median round"):
                assert cell == number(found["median round"])
            else:
                is_attack = case.startswith(("bit-flip", "lie"))
                assert cell == percent(found["byzantine" if is_attack else "unusual"])


def test_no_rule_excludes_honest_nodes_up_to_the_limit_in_the_simulation():
    """What the page claims of all five rules, with the default limit and a rate of 0.01."""
    measured = measured_exclusion()
    assert len({rule for _, rule in measured}) == 5
    for (case, _), row in measured.items():
        if "3.0 ×" not in case:
            assert at(row, 2.0, 0.01)["trials with an honest node"] == 0


def test_the_documented_resume_keeps_the_settings_of_the_drill():
    page = (ROOT / "docs" / "how-to" / "flower.md").read_text()
    commands = re.findall(r"flwr run examples/flower secure --stream \\\n\s+-c '(.*?)'", page)
    first, again = (dict(re.findall(r'([a-z-]+)=("[^"]*"|\S+)', each)) for each in commands)
    assert again.pop("resume") == "true"
    drill = {name: first[name] for name in ("attack", "num-attackers", "audit-dir")}
    assert {name: again.get(name) for name in drill} == drill
