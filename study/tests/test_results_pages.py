"""The published results are what the exports beside them give, to the last byte."""

import re
import shlex
import shutil
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import fmean

import msgspec
import pytest

import client_selection
import results_pages
import who_pays
from choosing import worst_cases
from gain_figure import draw_gains, gain_map
from made_results import made_results
from outvote.experiment.choosing import Choice, choose
from outvote.experiment.plan import plan_suite
from outvote.results.collect import collect
from outvote.results.export import to_export
from outvote.results.labels import label
from outvote.suites.suite import read_suite
from regimes import (
    LATER,
    reading,
    readings,
)

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "study" / "results"
EXPORTS = [path.name.removesuffix(".csv.gz") for path in sorted(FOLDER.glob("*.csv.gz"))]

PAGES = {path.relative_to(ROOT).as_posix(): text for path, text in results_pages.pages().items()}


@pytest.mark.parametrize("name", PAGES)
def test_each_page_is_what_its_exports_give(name):
    page = (ROOT / name).read_text(encoding="utf-8")
    assert page == PAGES[name], "run `make study`"


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


def test_who_pays_on_small_images_are_means_over_seeds_of_the_last_ten_rounds():
    page = who_pays.PAGE.read_text(encoding="utf-8")
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


def head_of_attacks():
    return section("Seeds of each cell")[0][1:]


def test_every_missing_cell_has_a_command_that_runs_it_and_no_other():
    table = results_pages.missing_table(FOLDER)
    found = {
        (each.rule, each.attack, each.seed, each.setting("training.batch_size"))
        for each in collect([FOLDER / "table1-cifar10-all-clients.csv.gz"])
    }
    rounds = {
        (each.attack, each.setting("training.batch_size")): each.setting("rounds")
        for each in collect([FOLDER / "table1-cifar10-all-clients.csv.gz"])
    }
    asked = set()
    for command in re.findall(r"`outvote bench (study\S+) --part (\S+) (.*?)`", table):
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
    pages = results_pages.tables(tmp_path)
    assert set(pages) == {"probes.md"}
    assert "### CIFAR-10, other readings of the rules" in pages["probes.md"]
    assert "have the seed of another run" not in pages["probes.md"]


def test_the_ablations_with_all_clients_get_a_page_once_they_have_runs(tmp_path):
    shutil.copy(FOLDER / "ablations-all-clients.toml", tmp_path)
    assert results_pages.page_names(tmp_path) == []
    suite = str(tmp_path / "ablations-all-clients.toml")
    results = made_results(suite, seeds=1, rounds=1, parts=("table3", "table5"))
    (tmp_path / "ablations-all-clients.csv.gz").write_bytes(to_export(results))
    (text,) = results_pages.tables(tmp_path).values()
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


@pytest.mark.parametrize("outcome", ["finished", "interrupted"])
def test_figure_1_is_drawn_once_runs_are_over(tmp_path, outcome):
    results = made_results("figure1-motivation", seeds=1, rounds=2)
    ended = [
        replace(each, status=msgspec.structs.replace(each.status, outcome=outcome))
        for each in results
    ]
    (tmp_path / "figure1-motivation.csv.gz").write_bytes(to_export(ended))
    drawn = results_pages.figures(tmp_path)
    assert [path.name for path in drawn] == ["figure1-motivation.png"] * (outcome == "finished")
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)


def test_chances_of_being_sampled_have_the_mean_one():
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
