"""What honest clients get: accuracy on their own label distribution, how often they are kept."""

import json
import shutil
from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

import outvote as ov
from federations import CPU, TRAINING, make_runs, networks, samples
from made_results import made_results, reseal, write_store
from outvote.cli import main
from outvote.engine.federation import ClientTests, client_accuracy, make_federation, num_worst
from outvote.engine.simulation import first_state, make_run_stack, simulate
from outvote.report.layout import grids_of
from outvote.report.rendered_table import render
from outvote.report.table_formats import as_json, latex, markdown
from outvote.results.collect import collect
from outvote.results.disk import DamagedFileError
from outvote.results.export import read_export, to_export
from outvote.results.round import Round
from outvote.results.series import clients_of
from outvote.training.objective import Objective, Strata
from outvote.training.samples import ArraySamples, ByteImages
from outvote.training.sequential import SequentialTrainer
from outvote.training.stacked_trainer import StackedTrainer
from outvote.training.vmap_trainer import VmapTrainer
from simulations import Recorder, execute, results, tiny

TWO = {"rule": ["krum", "gas(krum)"], "attack": ["none", "lie"], "rounds": 4}


def plainly(model, train, test, federation):
    """The metric by loops over classes and clients; None where a client has nothing to test on."""
    with torch.no_grad():
        answers = model.eval()(*test.inputs(torch.arange(len(test)))).argmax(dim=1)
    right, asked = {}, {}
    for answer, label in zip(answers.tolist(), test.targets.tolist(), strict=True):
        asked[label] = asked.get(label, 0) + 1
        right[label] = right.get(label, 0) + (answer == label)
    found = []
    for part in federation.parts:
        labels = [label for label in train.targets[part].tolist() if label in asked]
        rates = [right[label] / asked[label] for label in labels]
        found.append(sum(rates) / len(rates) if rates else None)
    return found


def loaded(module, state, run):
    nn.utils.vector_to_parameters(state.weights[run], module.parameters())
    return module


def test_a_round_records_what_loops_over_clients_and_classes_give():
    runs = make_runs([("mean", "lie"), ("krum", "none"), ("median", "ipm")])
    modules = networks(runs)
    train, test = samples(120), samples(41)
    stack = make_run_stack(modules[0], train, test, runs, training=TRAINING, num_classes=4)
    *_, step = simulate(stack, first_state(modules, train), 2)
    for k, (run, record) in enumerate(zip(runs, step.records, strict=True)):
        each = plainly(loaded(modules[0], step.state, k), train, test, run.federation)
        honest = [
            a for a, is_bad in zip(each, run.federation.is_byzantine, strict=True) if not is_bad
        ]
        assert record.client_accuracy == pytest.approx(sum(honest) / len(honest), rel=1e-12)
        assert record.worst_decile == pytest.approx(min(honest), rel=1e-12)
        assert record.client_accuracies == tuple(
            None if is_bad else round(a, 4)
            for a, is_bad in zip(each, run.federation.is_byzantine, strict=True)
        )


def test_without_heterogeneity_it_is_the_accuracy_and_no_other_metric_changes():
    runs = make_runs([("mean", "lie")])
    modules, train = networks(runs), samples(120)
    test = samples(40)
    stack = make_run_stack(modules[0], train, test, runs, training=TRAINING, num_classes=4)
    assert stack.client_tests is not None
    # All clients have the labels of the test set.
    alike = replace(stack.client_tests, of_training=test.targets.numpy()[np.arange(120) % 40, None])
    parts = [torch.arange(120) for _ in range(8)]
    run = replace(runs[0], federation=replace(runs[0].federation, parts=tuple(parts)))
    stack = replace(stack, runs=(run,), client_tests=alike)
    *_, with_tests = simulate(stack, first_state(modules, train), 2)
    *_, without = simulate(replace(stack, client_tests=None), first_state(modules, train), 2)
    (found,), (plain,) = with_tests.records, without.records
    assert found.client_accuracy == pytest.approx(found.accuracy, rel=1e-12)
    assert found.worst_decile == pytest.approx(found.accuracy, rel=1e-12)
    unknown = {"client_accuracy": None, "worst_decile": None, "client_accuracies": None}
    assert replace(found, **unknown) == plain
    assert torch.equal(with_tests.state.weights, without.state.weights)


def test_single_clients_are_in_the_last_record_only_and_in_that_of_a_run_that_diverges():
    runs = make_runs([("mean", "none"), ("mean", "nan")])
    modules, train = networks(runs), samples(120)
    stack = make_run_stack(modules[0], train, samples(40), runs, training=TRAINING, num_classes=4)
    steps = list(simulate(stack, first_state(modules, train), 3, evaluate_every=2))
    assert [[r.client_accuracies is not None for r in step.records] for step in steps] == [
        [False] * 2,
        [False] * 2,
        [True] * 2,
    ]
    assert [step.records[0].client_accuracy is not None for step in steps] == [False, True, True]
    bad = replace(stack, training=replace(TRAINING, learning_rate=1e300, max_norm=None))
    with np.errstate(all="ignore"):
        first, *_ = simulate(bad, first_state(modules, train), 3)
    assert first.over == [0, 1]
    assert all(record.client_accuracies is not None for record in first.records)


@pytest.mark.parametrize(
    ("honest", "worst"), [(1, 1), (9, 1), (10, 1), (19, 1), (20, 2), (40, 4), (3500, 350)]
)
def test_the_worst_decile_is_a_tenth_of_the_honest_clients_and_at_least_one(honest, worst):
    assert num_worst(honest) == worst
    labels = torch.arange(honest + 2)
    train = ArraySamples([torch.zeros(len(labels), 1)], labels, device=CPU)
    tests = ClientTests.of(train, train, len(labels))
    federation = make_federation([[k] for k in range(len(labels))], num_byzantine=2, seed=1)
    correct = torch.tensor(np.random.default_rng(0).random(len(labels)))
    found = client_accuracy(tests, federation, correct)
    values = sorted(
        value
        for value, is_bad in zip(correct.tolist(), federation.is_byzantine, strict=True)
        if not is_bad
    )
    assert found.mean == pytest.approx(sum(values) / honest)
    assert found.worst_decile == pytest.approx(sum(values[:worst]) / worst)


def test_nothing_is_known_where_targets_are_no_classes_or_nobody_is_honest():
    numbers = ArraySamples([torch.zeros(4, 1)], torch.rand(4), device=CPU)
    labels = ArraySamples([torch.zeros(4, 1)], torch.arange(4), device=CPU)
    assert ClientTests.of(numbers, numbers, None) is None
    assert ClientTests.of(numbers, numbers, 4) is None
    assert ClientTests.of(labels, labels, 3) is None, "labels beyond the classes"
    everybody = make_federation([[0, 1], [2, 3]], num_byzantine=2)
    tests = ClientTests.of(labels, labels, 4)
    assert client_accuracy(tests, everybody, torch.ones(4).double()).each is None
    assert client_accuracy(tests, everybody, None).mean is None


def test_clients_that_are_groups_are_tested_on_samples_of_their_group():
    train = ArraySamples([torch.zeros(5, 1)], torch.tensor([0, 1, 0, 1, 1]), device=CPU)
    test = ArraySamples([torch.zeros(4, 1)], torch.tensor([0, 1, 0, 0]), device=CPU)
    groups = np.array(["ann", "bob", "ann", "cy", "bob"]), np.array(["bob", "ann", "ann", "dee"])
    tests = ClientTests.of(train, test, 2, groups)
    assert tests.strata.num == 4
    assert tests.strata.of_target.tolist() == [1, 0, 0, 3]
    federation = make_federation([[1, 4], [0, 2], [3]], num_byzantine=0)
    # Of ann one of two is correct, bob's is not, cy has no test sample.
    found = client_accuracy(tests, federation, torch.tensor([1.0, 0.0, 0.0, 1.0]).double())
    assert found.each == (0.0, 0.5, None)
    assert (found.mean, found.worst_decile) == (0.25, 0.0)


def test_sequences_of_targets_and_ignored_ones_are_counted_one_by_one():
    generator = torch.Generator().manual_seed(0)
    tokens, targets = torch.randint(0, 5, (2, 30, 7), generator=generator)
    targets[::3, -1] = -100
    own = ArraySamples([tokens], targets, device=CPU, dtype=torch.float64)
    modules = [nn.Embedding(5, 5).double() for _ in range(2)]
    for module in modules:
        nn.init.normal_(module.weight, generator=generator)
    weights = torch.stack([module.weight.detach().flatten() for module in modules])
    strata = Strata(targets.clamp(min=0), 5)
    none = torch.empty(2, 0, dtype=torch.float64)
    objective = Objective(has_ignored=True)
    for trainer in (
        SequentialTrainer(modules[0], own, objective),
        VmapTrainer(modules[0], own, objective),
    ):
        scores = trainer.evaluate(weights, none, own, strata)
        for score, module in zip(scores, modules, strict=True):
            is_correct = module.weight[tokens].argmax(-1) == targets
            expected = [int((is_correct & (targets == c)).sum()) for c in range(5)]
            assert score.correct.tolist() == expected
            assert sum(expected) > 0


def test_all_trainers_count_the_same_and_the_accuracy_stays(device):
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (700, 6, 6, 1), dtype=np.uint8)
    own = ByteImages(images, random.integers(0, 4, 700), mean=[0.5], std=[0.3], device=device)
    module = ov.make_model("mlp", num_classes=4, input_shape=(6, 6, 1), seed=0)
    row = nn.utils.parameters_to_vector(module.parameters()).detach().to(device)
    weights = torch.stack([row, -row, row.flip(0)])
    buffers = torch.empty(3, 0, dtype=torch.float64, device=device)
    strata = Strata(own.targets, 4)
    found = {}
    for kind in (SequentialTrainer, VmapTrainer, StackedTrainer):
        trainer = kind(module, own)
        scores = trainer.evaluate(weights, buffers, own, strata)
        plain = trainer.evaluate(weights, buffers, own)
        assert [each.accuracy for each in scores] == [each.accuracy for each in plain]
        assert all(each.correct is None for each in plain)
        for score in scores:
            assert score.correct.device == CPU
            assert score.accuracy == float(score.correct.sum()) / 700
        found[kind] = [score.correct.tolist() for score in scores]
    assert found[SequentialTrainer] == found[VmapTrainer] == found[StackedTrainer]
    assert len({tuple(each) for each in found[SequentialTrainer]}) == 3


def test_a_resumed_run_has_the_same_numbers_and_the_same_clients(tmp_path):
    plan = tiny(rule=["krum"], data={"partition": "dirichlet", "beta": 0.3})
    execute(plan, tmp_path / "whole")
    recorder = Recorder()
    stop = {"listener": recorder, "should_stop": lambda: len(recorder.rounds) >= 2}
    execute(plan, tmp_path / "stopped", **stop)
    (stopped,) = collect([tmp_path / "stopped"])
    assert stopped.clients is None
    assert np.isfinite(stopped.series.worst_decile).all()
    execute(plan, tmp_path / "stopped")
    assert results(tmp_path / "stopped") == results(tmp_path / "whole")
    (run,) = collect([tmp_path / "stopped"])
    lines = (run.folder.path / "metrics.jsonl").read_text().splitlines()
    assert ["client_accuracies" in json.loads(line) for line in lines] == [False] * 3 + [True]
    assert np.isnan(run.clients.accuracy).sum() == 2, "the Byzantine clients"
    assert run.series.client_accuracy[-1] == pytest.approx(
        np.nanmean(run.clients.accuracy), abs=1e-4
    )


def test_regression_has_no_such_columns(tmp_path):
    random = np.random.default_rng(0)
    x = random.normal(size=(60, 3)).astype("float32")
    y = x.sum(axis=1, keepdims=True)
    runs = ov.simulate(
        lambda: nn.Linear(3, 1), (x, y), (x, y), num_clients=5, rounds=2, rules="mean"
    )
    assert runs[0].clients is None
    assert np.isnan(runs[0].series.client_accuracy).all()
    assert np.isnan(runs[0].worst_decile)
    header = to_export(runs, is_packed=False).decode().splitlines()[0]
    assert "client" not in header
    assert "test_loss" in header


def recorded(rounds: list[Round], num_clients: int, byzantine=()) -> list[Round]:
    each = [None if k in byzantine else round(k / 60, 4) for k in range(num_clients)]
    found = [
        replace(line, client_accuracy=0.5 + line.round / 100, worst_decile=0.1) for line in rounds
    ]
    found[-1] = replace(found[-1], client_accuracies=tuple(each))
    return found


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A store whose runs record what honest clients get."""
    root = tmp_path_factory.mktemp("store")
    for result in write_store(root, TWO, seeds=2):
        path = result.folder.path / "metrics.jsonl"
        rounds = result.folder.rounds()
        byzantine = {client for line in rounds for client in line.byzantine}
        lines = recorded(rounds, result.config["federation"]["num_clients"], byzantine)
        path.write_bytes(b"".join(msgspec.json.encode(line.line()) + b"\n" for line in lines))
        reseal(path.parent)
    return root


def test_how_often_a_client_was_kept_is_counted_over_its_own_rounds():
    def line(number, clients, kept, **more):
        usual = {"loss": 0.1, "accuracy": 0.5, "rejected": (), "deviation": 0.1, "honest_norm": 1.0}
        return Round(
            round=number,
            num_samples=9,
            clients=clients,
            kept=kept,
            byzantine=(3,),
            num_byzantine_assumed=1,
            num_byzantine_used=1,
            scores=tuple(0.0 for _ in clients),
            **usual,
            **more,
        )

    rounds = [
        line(1, (0, 1, 3), (0, 3)),
        line(2, (0, 1, 2, 3), (0, 2)),
        line(3, (0, 1, 3), None),
        line(4, (0, 1, 3), (1,), client_accuracies=(0.5, 0.25, None, None, 0.75)),
    ]
    found = clients_of(rounds)
    np.testing.assert_equal(found.kept, [0.6667, 0.3333, 1.0, np.nan, np.nan])
    np.testing.assert_equal(found.accuracy, [0.5, 0.25, np.nan, np.nan, 0.75])
    np.testing.assert_equal(found.sampled, [1.0, 1.0, 0.25, np.nan, 0.0])
    assert found.least_kept == 0.3333
    assert clients_of(rounds[:3]) is clients_of([]) is None
    unknown = clients_of([line(1, (0, 3), None, client_accuracies=(0.5, 0.5, 0.5, None))])
    assert unknown.least_kept is None


def test_a_run_whose_last_line_has_too_few_clients_is_damaged(store, tmp_path):
    shutil.copytree(store, tmp_path / "runs")
    path = min((tmp_path / "runs").glob("*/*/metrics.jsonl"))
    lines = path.read_text().splitlines(keepends=True)
    last = json.loads(lines[-1])
    last["client_accuracies"] = last["client_accuracies"][:2]
    path.write_text("".join([*lines[:-1], json.dumps(last) + "\n"]))
    reseal(path.parent)
    faults = []
    assert len(collect([tmp_path / "runs"], faults.append)) == 7
    assert "metrics.jsonl is damaged: its last line has 2 clients" in faults[0]


def test_an_export_has_the_clients_and_gives_the_same_tables(store, tmp_path):
    from_folders = collect([store])
    export = tmp_path / "runs.csv.gz"
    export.write_bytes(to_export(from_folders))
    from_export = read_export(export)
    assert to_export(from_export) == export.read_bytes()
    for ours, theirs in zip(from_export, from_folders, strict=True):
        np.testing.assert_array_equal(ours.clients.accuracy, theirs.clients.accuracy)
        np.testing.assert_array_equal(ours.clients.kept, theirs.clients.kept)
        np.testing.assert_array_equal(ours.clients.sampled, theirs.clients.sampled)
        assert ours.summary == theirs.summary
        assert ours.client_accuracy == pytest.approx(np.mean([0.51, 0.52, 0.53, 0.54]))
        assert ours.worst_decile == pytest.approx(0.1)
        assert 0 <= ours.least_kept < 1
    tables = [
        markdown(render(grids_of(runs), clients=True)) for runs in (from_folders, from_export)
    ]
    assert tables[0] == tables[1]
    header, first, *_ = to_export(from_folders, is_packed=False).decode().splitlines()
    assert header.endswith(
        "client_accuracy,worst_decile,client_accuracies,client_kept,client_sampled"
    )
    assert "nan" in first.rpartition(",")[2]


def test_runs_without_clients_are_exported_beside_others(store, tmp_path):
    without = made_results(TWO, seeds=1)
    assert all(run.clients is None and np.isnan(run.worst_decile) for run in without)
    assert "client" not in to_export(without, is_packed=False).decode().splitlines()[0]
    both = [*without, *collect([store])]
    (tmp_path / "both.csv.gz").write_bytes(to_export(both))
    found = read_export(tmp_path / "both.csv.gz")
    assert {run.clients is None for run in found} == {True, False}
    assert "not measured" in markdown(render(grids_of(without), "worst_decile"))


def test_an_export_with_clients_that_do_not_fit_is_damaged(store, tmp_path):
    text = to_export(collect([store])[:1], is_packed=False).decode()
    cut = text.rstrip("\n").rpartition(" ")[0]
    (tmp_path / "cut.csv").write_text(cut + "\n")
    with pytest.raises(DamagedFileError, match="different numbers of clients"):
        read_export(tmp_path / "cut.csv")


def test_the_tables_of_clients_have_a_row_per_rule_and_a_column_per_metric(store):
    runs = collect([store])
    rendered = render(grids_of(runs), clients=True)
    ((usual, *tables),) = rendered.parts
    assert usual.headings == ["lie", "none", "worst case"]
    assert [table.caption.partition(",")[0] for table in tables] == [
        "Who pays under lie",
        "Who pays without an attack",
    ]
    for table, attack in zip(tables, ("lie", "none"), strict=True):
        assert table.headings == [
            "accuracy, last ten",
            "client accuracy",
            "worst decile",
            "least kept",
        ]
        for row in table.rows:
            own = [run for run in runs if (run.rule, run.attack) == (row.rule, attack)]
            assert len(own) == 2
            for name, cell in zip(
                ("last_ten", "client_accuracy", "worst_decile", "least_kept"),
                row.cells,
                strict=True,
            ):
                mean = 100 * sum(getattr(run, name) for run in own) / 2
                assert cell.mean.value == pytest.approx(mean)
    text = markdown(rendered)
    assert text.count("| rule | accuracy, last ten | client accuracy |") == 2
    assert text.count("Worst decile: accuracy on a client's own label distribution") == 1
    assert latex(rendered).count(r"\label{tab:") == len(
        set(latex(rendered).split(r"\label{tab:")[1:])
    )
    cells = as_json(rendered)["cells"]
    assert len(cells) == 4
    assert all(cell["worst_decile_mean"] == pytest.approx(10.0) for cell in cells)


def test_the_command_line_prints_them_and_more_is_better(store, capsys):
    assert main(["table", str(store), "--clients"]) == 0
    assert "Who pays under lie" in capsys.readouterr().out
    assert main(["table", str(store), "--metric", "least-kept"]) == 0
    assert "Worst case: the smallest mean of a row" in capsys.readouterr().out
    assert main(["table", str(store), "--metric", "worst-decile", "--paper"]) == 2


def test_frames_and_summaries_have_them(store, tmp_path):
    pytest.importorskip("pandas")
    runs = ov.read_runs(store)
    frame = runs.to_frame()
    assert frame["worst_decile"].eq(0.1).all()
    summary = runs.summary().to_frame()
    assert {"client_accuracy", "worst_decile", "least_kept"} <= set(summary)
    assert "worst decile" in repr(runs.summary())
    (tmp_path / "without.csv.gz").write_bytes(to_export(made_results(TWO, seeds=1)))
    assert "worst decile" not in repr(ov.read_runs(tmp_path / "without.csv.gz").summary())
    assert "Who pays" in runs.table(clients=True).to_markdown()
