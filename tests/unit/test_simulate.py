"""`ov.simulate`: a user's own model, data, partition, loss, optimiser, rules and attacks."""

import copy
import dataclasses
import functools
import inspect
import threading
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn

import outvote as ov
from outvote.engine.reference import ReferenceRun
from outvote.experiment.builder import RunBuilder
from outvote.results.round import Round

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(240, 6)).astype(np.float32)
Y = (X @ RANDOM.normal(size=(6, 3))).argmax(axis=1)
TRAIN, TEST = (X[:200], Y[:200]), (X[200:], Y[200:])
SMALL = {"num_clients": 5, "byzantine": 1, "rounds": 2, "device": "cpu", "progress": False}
ONE = {**SMALL, "rules": "median", "attacks": "ipm"}


class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.first, self.last = nn.Linear(6, width), nn.Linear(width, 3)

    def forward(self, x):
        return self.last(nn.functional.gelu(self.first(x)))


def simulate(**changes):
    return ov.simulate(**{"model": Net, "train": TRAIN, "test": TEST, **ONE, **changes})


def accuracies(runs):
    return [run.series.accuracy.tolist() for run in runs]


def test_every_rule_attack_and_seed_is_a_run():
    runs = simulate(
        rules=["mean", ov.GAS(ov.Median(), num_groups=3)], attacks=["lie", "ipm"], seeds=[0, 1]
    )
    settings = [(run.rule, run.attack, run.seed) for run in runs]
    assert settings == [
        (rule, attack, seed)
        for rule in ("mean", "gas(median)")
        for attack in ("lie", "ipm")
        for seed in (0, 1)
    ]
    assert all(len(run.series) == 2 for run in runs)
    assert all(run.folder is None for run in runs), "nothing is kept on disk"


def test_a_run_is_what_the_plain_loops_compute(tmp_path):
    seen = {}
    original = RunBuilder.stack

    def stack(self, spec, runs):
        seen["stack"], seen["module"] = original(self, spec, runs), self.network(spec)
        return seen["stack"]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunBuilder, "stack", stack)
        (found,) = simulate(rules="gas(multi-krum, num_groups=4)", local=ov.LocalSGD(batch_size=16))
    made = seen["stack"]
    plain = ReferenceRun(
        run=made.runs[0],
        model=seen["module"],
        train=made.trainer.samples,
        test=made.test,
        training=made.training,
        num_classes=3,
    )
    expected = [plain.run_round(number)["accuracy"] for number in (1, 2)]
    assert found.series.accuracy.tolist() == expected


@pytest.mark.parametrize(
    ("change", "is_same"),
    [
        ({}, True),
        ({"model": lambda: Net(8)}, False),
        ({"model": functools.partial(Net, 9)}, False),
        ({"train": (X[:200] + 1, Y[:200])}, False),
        ({"local": ov.LocalSGD(batch_size=20)}, False),
        ({"optimizer": torch.optim.Adam}, False),
        ({"loss": nn.functional.cross_entropy}, False),
        ({"output": None}, True),
    ],
)
def test_the_name_of_a_run_follows_from_what_it_is_made_of(change, is_same):
    assert (simulate(**change)[0].name == simulate()[0].name) is is_same


def test_parameters_of_a_closure_and_weights_of_a_module_are_part_of_the_name():
    def network(width):
        return lambda: Net(width)

    names = {simulate(model=network(width))[0].name for width in (4, 5, 5)}
    assert len(names) == 2
    one, two = Net(), Net()
    assert simulate(model=one)[0].name == simulate(model=one)[0].name != simulate(model=two)[0].name


def test_what_cannot_be_read_needs_a_name(tmp_path):
    lock = threading.Lock()

    def network():
        with lock:
            return Net()

    with pytest.raises(ValueError, match=r"network.lock \(lock\), whose values .* pass name='...'"):
        simulate(model=network, output=tmp_path)
    assert not list(tmp_path.iterdir())
    names = [simulate(model=network, name=name)[0].name for name in ("a", "a", "b")]
    assert names[0] == names[1] != names[2]


def test_the_same_call_reads_what_is_finished_and_resumes_what_is_not(tmp_path):
    whole = simulate(rounds=4, output=tmp_path / "whole", checkpoint_every=0)

    def stop(report):
        if report.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(rounds=4, output=tmp_path / "cut", checkpoint_every=0, callbacks=stop)
    rounds = []
    cut = simulate(rounds=4, output=tmp_path / "cut", checkpoint_every=0, callbacks=rounds.append)
    assert rounds[0].round > 1, "it resumed"
    assert accuracies(cut) == accuracies(whole)
    again = []
    assert accuracies(
        simulate(rounds=4, output=tmp_path / "cut", callbacks=again.append)
    ) == accuracies(whole)
    assert again == [], "finished runs are read"
    assert accuracies(ov.read_runs(tmp_path / "cut")) == accuracies(whole)


def test_a_callback_gets_every_round_of_every_run():
    seen = []
    runs = simulate(seeds=[3, 4], callbacks=[seen.append])
    assert {(report.run, report.round) for report in seen} == {
        (run.name, number) for run in runs for number in (1, 2)
    }
    assert seen[-1].accuracy == runs[-1].series.accuracy[-1]
    assert isinstance(seen[0].record, Round)


class TestData:
    def test_tensors_and_lists_and_torch_datasets_are_alike(self):
        pair = (torch.tensor(X[:200]), torch.tensor(Y[:200]))
        dataset = torch.utils.data.TensorDataset(*pair)
        expected = accuracies(simulate())
        for train in (pair, dataset, (X[:200].tolist(), Y[:200].tolist())):
            assert accuracies(simulate(train=train)) == expected

    def test_frames_of_pandas(self):
        pandas = pytest.importorskip("pandas")
        frame, series = pandas.DataFrame(X[:200]), pandas.Series(Y[:200])
        names = pandas.Series([f"g{k % 5}" for k in range(200)])
        assert accuracies(simulate(train=(frame, series))) == accuracies(simulate())
        by_name = simulate(train=(frame, series), groups=names, partition="by-group")
        by_text = simulate(groups=names.tolist(), partition="by-group")
        assert by_name[0].name == by_text[0].name

    def test_an_own_dataset_and_truth_values_as_targets(self):
        class Own(torch.utils.data.Dataset):
            def __init__(self, rows):
                self.rows = rows

            def __len__(self):
                return len(self.rows)

            def __getitem__(self, index):
                row = self.rows[index]
                return X[row], bool(Y[row] == 0)

        (run,) = simulate(
            model=lambda num_classes: nn.Linear(6, num_classes),
            train=Own(range(200)),
            test=Own(range(200, 240)),
        )
        assert run.series.accuracy[-1] <= 1

    def test_arrays_of_any_layout_and_precision_are_alike(self):
        expected = accuracies(simulate())
        backwards = (np.ascontiguousarray(X[:200][::-1])[::-1], Y[:200])
        for train in (backwards, (X[:200].astype(">f8"), Y[:200].astype("i2"))):
            assert accuracies(simulate(train=train)) == expected

    def test_bytes_are_images_from_zero_to_one(self):
        images = RANDOM.integers(0, 256, (60, 5, 7, 3), dtype=np.uint8)
        labels = RANDOM.integers(0, 3, 60)
        seen = []

        class Conv(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(3 * 5 * 7, 3)

            def forward(self, x):
                seen.append((x.shape[1:], float(x.min()) >= 0, float(x.max()) <= 1))
                return self.layer(x.flatten(1))

        for channels, given in (
            ("auto", images),
            ("last", images),
            ("first", images.transpose(0, 3, 1, 2)),
        ):
            simulate(model=Conv, train=(given, labels), test=(given, labels), channels=channels)
        assert set(seen) == {((3, 5, 7), True, True)}

    def test_token_ids_with_a_target_each(self):
        tokens = torch.randint(0, 7, (80, 9), generator=torch.Generator().manual_seed(0))
        targets = tokens[:, 1:].clone()
        targets[:, -1] = -100  # Does not count.

        def network():
            return nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 7))

        (run,) = simulate(
            model=network,
            train=(tokens[:, :-1], targets),
            test=(tokens[:, :-1], targets),
            attacks="label-flip",
        )
        assert 0 <= run.series.accuracy[-1] <= 1
        assert run.series.accuracy[-1] * 80 * 7 == pytest.approx(
            round(run.series.accuracy[-1] * 80 * 7)
        )

    def test_values_are_regressed_on(self):
        values = X[:, :1] * 2
        (run,) = simulate(
            model=lambda: nn.Linear(6, 1),
            train=(X, values),
            test=(X, values),
            rounds=6,
            attacks="none",
        )
        assert np.isnan(run.series.accuracy).all()
        assert run.series.test_loss[-1] < run.series.test_loss[0] / 2
        runs = ov.Runs([run])
        assert "Loss on the test set after the last round" in str(runs.table())
        assert runs.summary().to_frame()["test_loss"][0] == pytest.approx(
            run.series.test_loss[-1], rel=1e-4
        )
        assert runs.plot("curves").axes[0].get_ylabel() == "loss on the test set"

    def test_a_model_of_two_arguments(self):
        class Masked(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(6, 3)

            def forward(self, x, mask):
                return self.layer(x * mask)

        mask = (X > 0).astype(np.float32)
        runs = simulate(
            model=Masked,
            train=((X[:200], mask[:200]), Y[:200]),
            test=((X[200:], mask[200:]), Y[200:]),
        )
        assert len(runs) == 1

    def test_a_listed_dataset_by_its_name(self):
        runs = ov.simulate(
            "mlp",
            "fashion-mnist-small",
            rules="mean",
            attacks="none",
            num_clients=10,
            rounds=1,
            num_sampled=2,
            device="cpu",
            local=ov.LocalSGD(num_steps=1),
        )
        assert runs[0].setting("data.name") == "fashion-mnist-small"


class TestPartition:
    def test_texts_lists_and_functions(self):
        parts = [list(range(k, 200, 5)) for k in range(5)]

        def split(y, how_many, random):
            assert len(y) == 200
            assert isinstance(random, int)
            return np.array_split(np.arange(200), how_many)

        for partition in ("iid", "dirichlet(beta=5.0, min_size=2)", "shards(per_client=2)", split):
            assert len(simulate(partition=partition)) == 1
        (listed,) = simulate(partition=parts, num_clients=None)
        for same in (dict(enumerate(parts)), (part for part in parts)):
            assert simulate(partition=same, num_clients=None)[0].name == listed.name
        groups = [f"g{k % 5}" for k in range(200)]
        by_group = simulate(partition="by-group", groups=groups, num_clients=None)
        pairs = [("book", k % 5) for k in range(200)]
        by_pair = simulate(partition="by-group", groups=pairs, num_clients=None)
        assert accuracies(by_pair) == accuracies(by_group)
        assert by_group[0].setting("federation.num_clients") == "all"

    @pytest.mark.parametrize(
        ("parts", "fault"),
        [
            ([range(100), range(99, 200)], "clients must not share samples, 1 belong to several"),
            (
                [range(100), range(101, 200)],
                "every sample must belong to a client, 1 of 200 do not",
            ),
            ([range(200), []], "client 1 of 2 owns no sample"),
            ([range(200), [200]], "indices must be from 0 to 199"),
            ([[0.5], range(200)], "must be a list of indices"),
        ],
    )
    def test_overlaps_and_gaps_are_refused(self, parts, fault):
        with pytest.raises(ValueError, match=fault):
            simulate(partition=parts, num_clients=None)


class TestTraining:
    def test_an_optimizer_of_ones_own_trains_as_in_plain_torch(self):
        adam, loss = functools.partial(torch.optim.AdamW, lr=0.02), nn.functional.cross_entropy
        network = Net()
        local = ov.LocalSGD(batch_size=200, num_epochs=5, max_norm=None)
        honest = {"byzantine": 0, "rules": "mean", "attacks": "none", "num_clients": 1}
        (found,) = simulate(model=network, optimizer=adam, loss=loss, local=local, **honest)
        plain = copy.deepcopy(network)
        x, y, x_test, y_test = map(torch.tensor, (*TRAIN, *TEST))
        for number in range(2):
            optimizer = adam(plain.parameters())
            for _ in range(5):
                optimizer.zero_grad()
                loss(plain(x), y).backward()
                optimizer.step()
            expected = loss(plain(x_test), y_test).item()
            assert found.series.test_loss[number] == pytest.approx(expected, rel=1e-4)

    def test_a_loss_of_ones_own(self):
        def focal(outputs, targets):
            each = nn.functional.cross_entropy(outputs, targets, reduction="none")
            return ((1 - (-each).exp()) ** 2 * each).mean()

        (run,) = simulate(loss=focal)
        assert np.isfinite(run.series.test_loss).all()

    def test_rates_of_rounds(self):
        by_list = simulate(local=ov.LocalSGD(learning_rate=[0.1, 0.05]))
        by_function = simulate(local=ov.LocalSGD(learning_rate=lambda number: 0.1 / number))
        assert by_list[0].name == by_function[0].name
        assert accuracies(by_list) == accuracies(by_function)


@dataclass(frozen=True, slots=True)
class Halved(ov.VectorRule):
    share: float = 0.5

    def max_byzantine(self, num_clients):
        return 0

    def aggregate(self, rows, num_byzantine):
        return self.share * rows.mean(axis=0)


class Still(ov.Attack):
    def craft(self, context):
        return ov.AttackOutput(rows=context.own_rows * 0)


def test_rules_and_attacks_of_ones_own_are_runs_too():
    runs = simulate(rules=[Halved(0.25), ov.NNM(Halved())], attacks=[Still()])
    assert [run.rule for run in runs] == ["Halved", "nnm(Halved)"]
    assert runs[0].setting("rule.share") == 0.25
    assert runs[0].attack == "Still"
    assert not hasattr(Halved, "loaded_from"), "the class is left as it was"


WRONG = {
    "counts": (
        {"train": (X[:200], Y[:199])},
        "one target per sample, got 200 samples and 199 targets",
    ),
    "class": ({"test": (X[200:], Y[200:] + 1)}, r"targets must be classes from 0 to 2.*got"),
    "nan": ({"train": (X[:200] * np.nan, Y[:200])}, "samples must be finite in float32, got NaN"),
    "words": ({"train": (np.array(["a"] * 200), Y[:200])}, "must be numbers"),
    "outputs": ({"model": lambda: nn.Linear(6, 2)}, "3 classes, and the model has outputs for 2"),
    "inputs": ({"model": lambda: nn.Linear(5, 3)}, "cannot take a batch of 4 samples"),
    "vector": ({"loss": lambda o, t: (o.sum(1) - t) ** 2}, r"one number .*got the shape \[4\]"),
    "constant": ({"loss": lambda o, t: torch.zeros(())}, "does not depend on the parameters"),
    "closure": ({"optimizer": torch.optim.LBFGS}, "got LBFGS, which needs a closure"),
    "frozen": ({"model": nn.Flatten}, "no parameters to train"),
    "partition": ({"partition": "dirichlett"}, "did you mean 'dirichlet'"),
    "rule": ({"rules": "medain"}, "did you mean 'median'"),
    "precision": ({"precision": "bfloat16"}, "must be 'float32' or 'tf32' on a CPU"),
    "byzantine": ({"byzantine": 6}, "at most the 5 clients"),
    "kinds": ({"test": (X[200:, :5], Y[200:])}, "samples of one kind"),
    "groups": ({"groups": [0, 1], "partition": "by-group"}, "one entry for each of the 200"),
    "empty": ({"rules": []}, "must not be empty"),
    "trainer": ({"trainer": "stacked"}, "trainer stacked cannot train this model"),
    "clients": ({"num_clients": 500}, "500"),
    "lazy": ({"model": lambda: nn.LazyLinear(3)}, "lazy layers; give their sizes"),
    "test": ({"model": "mlp", "train": "fashion-mnist-small"}, "test belongs to the dataset"),
    "token": (
        {
            "model": lambda: nn.Sequential(nn.Embedding(50, 3), nn.Flatten(), nn.Linear(6, 3)),
            "train": (np.r_[[[0, 0]] * 150, [[0, 50]], [[1, 1]] * 49], Y[:200]),
            "test": (np.zeros((40, 2), dtype=int), Y[200:]),
        },
        "IndexError: index out of range",
    ),
    "labels": (
        {"train": (X[:200], X[:200, :3]), "test": (X[200:], X[200:, :3]), "attacks": "label-flip"},
        "label-flip changes class labels",
    ),
    "no rules": ({"rules": None}, "rules must be texts or objects, got NoneType"),
    "rule class": ({"rules": ov.Median}, r"got the class Median; make an object of it: Median\(\)"),
    "server": ({"server": "adam"}, "server must be an ov.Server, got str"),
    "callback": ({"callbacks": [None]}, "callbacks must be functions, got NoneType"),
    "seed": ({"seeds": 0.5}, "seeds must be a whole number, got 0.5"),
    "suite": ({"suite": "../other"}, "suite must be the name of a folder"),
    "stacked": ({"max_stacked": 0}, "max_stacked must be at least 1"),
    "progress": ({"progress": "bars"}, "progress must be one of True, False, 'auto', 'bar'"),
    "no partition": ({"partition": 3}, "partition must be a text, a list"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_one_line_before_anything_trains(name, tmp_path):
    changes, fault = WRONG[name]
    with pytest.raises((ValueError, TypeError), match=fault) as caught:
        simulate(**changes, output=tmp_path)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.rglob("status.json"))


def test_one_broken_run_is_a_warning_and_all_are_an_error():
    class Breaks(ov.Attack):
        def craft(self, context):
            raise RuntimeError("by design")

    with pytest.warns(ov.OutvoteWarning, match="1 of 2 runs failed.*by design"):
        runs = simulate(attacks=["none", Breaks()])
    assert [run.status.outcome for run in runs] == ["finished", "failed"]
    with pytest.raises(RuntimeError, match=r"1 of 1 run failed.*by design"):
        simulate(attacks=Breaks())


def test_the_same_attack_twice_is_one_run():
    still = Still()
    assert len(simulate(attacks=[still, still, Still()])) == 1


def test_a_model_and_a_loss_on_one_line_are_two_objects():
    (run,) = simulate(model=lambda: Net(4), loss=lambda o, y: nn.functional.nll_loss(o, y) / 2)
    assert run.status.outcome == "finished"


def test_an_instance_that_can_be_called_makes_models():
    class Maker:
        def __init__(self, width):
            self.width = width

        def __call__(self, num_classes):
            return nn.Sequential(nn.Linear(6, self.width), nn.Linear(self.width, num_classes))

    names = {simulate(model=Maker(width))[0].name for width in (4, 5, 5)}
    assert len(names) == 2


def test_a_callback_that_fails_is_named():
    def log(report):
        raise OSError("no space")

    with pytest.raises(RuntimeError, match=r"the callback .*log failed: OSError: no space"):
        simulate(callbacks=log)


def test_a_run_of_another_call_is_not_touched(tmp_path):
    errors = []

    def again(report):
        if report.round == 1:
            with pytest.raises(RuntimeError) as caught:
                simulate(output=tmp_path)
            errors.append(str(caught.value))

    simulate(output=tmp_path, callbacks=again)
    assert "another process works on" in errors[0]


def test_data_that_changes_between_two_calls_is_another_run(tmp_path):
    x = X[:200].copy()
    first = simulate(train=(x, Y[:200]), output=tmp_path)
    x[0, 0] += 1
    second = simulate(train=(x, Y[:200]), output=tmp_path)
    assert first[0].name != second[0].name
    assert len(ov.read_runs(tmp_path)) == 2


def test_every_keyword_is_explained():
    parameters = inspect.signature(ov.simulate).parameters
    assert not any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    words = inspect.getdoc(ov.simulate) or ""  # Python 3.13 strips the indentation itself.
    assert [name for name in parameters if f"\n    {name}: " not in words] == []


class TestBuffers:
    """Buffers that training does not change are no statistics: nobody merges them."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 3)
            self.register_buffer("scale", torch.full((6,), 0.7))
            self.register_buffer("offset", torch.arange(-3, 3))
            self.register_buffer("mask", torch.tensor([0.0, float("-inf")]))

        def forward(self, x):
            return self.layer(x * self.scale)

    @pytest.mark.parametrize("aggregate", ["parameters", "state"])
    @pytest.mark.parametrize("rule", ["mean", "median", "gas(multi-krum, num_groups=3)"])
    def test_constants_stay(self, aggregate, rule, tmp_path):
        (run,) = simulate(
            model=self.Net, rules=rule, attacks="lie", aggregate=aggregate, output=tmp_path
        )
        assert run.status.outcome == "finished"
        found = load_file(run.folder.path / "checkpoint.safetensors")["buffers"]
        assert found[:6].tolist() == [np.float32(0.7)] * 6
        assert found[6:].tolist() == [-3, -2, -1, 0, 1, 2, 0, float("-inf")]

    def test_statistics_of_other_layers_are_merged(self, tmp_path):
        def network():
            norm = nn.InstanceNorm1d(1, track_running_stats=True)
            return nn.Sequential(nn.Unflatten(1, (1, 6)), norm, nn.Flatten(), nn.Linear(6, 3))

        (run,) = simulate(model=network, rules="mean", attacks="lie", output=tmp_path)
        found = load_file(run.folder.path / "checkpoint.safetensors")["buffers"]
        assert found[1] == pytest.approx(1.0, abs=0.5), "a variance, with no zeros of idle clients"


class TestTargets:
    """What an accuracy is, and targets that do not count."""

    def test_one_output_per_sample_has_no_accuracy(self):
        labels = (Y > 0).astype(np.int64)

        def bce(outputs, targets):
            outputs = outputs.view_as(targets)
            return nn.functional.binary_cross_entropy_with_logits(outputs, targets.float())

        for targets in (labels, labels[:, None]):
            (run,) = simulate(
                model=lambda: nn.Linear(6, 1),
                train=(X[:200], targets[:200]),
                test=(X[200:], targets[200:]),
                loss=bce,
            )
            assert np.isnan(run.series.accuracy).all()
            assert np.isfinite(run.series.test_loss).all()

    @pytest.mark.parametrize("attack", ["none", "label-flip"])
    def test_ignored_targets_count_in_no_trainer(self, attack):
        targets = Y.copy()
        targets[::4] = -100
        pairs = {"train": (X[:200], targets[:200]), "test": (X[200:], targets[200:])}
        network = nn.Sequential(nn.Linear(6, 3))
        found = [
            simulate(model=network, attacks=attack, trainer=trainer, **pairs)[0].series
            for trainer in ("sequential", "vmap")
        ]
        assert found[0].loss == pytest.approx(found[1].loss, rel=1e-5)
        assert found[0].accuracy.tolist() == found[1].accuracy.tolist()
        with pytest.raises(ValueError, match="the loss is not cross entropy with one class"):
            simulate(model=network, trainer="stacked", **pairs)

    def test_a_client_without_a_target_that_counts_sends_zero(self):
        targets = Y[:200].copy()
        targets[:40] = -100
        parts = [list(range(k, k + 40)) for k in range(0, 200, 40)]
        (run,) = simulate(
            train=(X[:200], targets), partition=parts, num_clients=None, attacks="none", byzantine=0
        )
        assert np.isfinite(run.series.loss).all()
        assert run.series.num_rejected.tolist() == [0, 0]

    def test_outputs_that_can_be_read_in_two_ways_are_refused(self):
        x, y = RANDOM.normal(size=(60, 1, 4)).astype("f4"), RANDOM.integers(0, 4, (60, 4))
        changes = {"model": lambda: nn.Conv1d(1, 4, 1), "train": (x, y), "test": (x, y)}
        with pytest.raises(ValueError, match="classes as axis 1 or as the last one; pass loss="):
            simulate(**changes)
        (run,) = simulate(**changes, loss=nn.functional.cross_entropy)
        assert np.isnan(run.series.accuracy).all()


def test_an_assumed_byzantine_majority_is_a_warning():
    with pytest.warns(ov.OutvoteWarning, match=r"1 of 1 run.* half of a round's clients or more"):
        simulate(assumed_byzantine=0.5)


def test_a_run_in_memory_is_the_same_as_one_in_a_folder(tmp_path):
    change = {"seeds": [0, 1], "rounds": 3, "rules": ["mean", "gas(median)"], "num_clients": 6}
    kept, stored = simulate(**change), simulate(**change, output=tmp_path)
    for one, other in zip(kept, stored, strict=True):
        assert (one.suite, one.name, one.config) == (other.suite, other.name, other.config)
        assert (one.rule, one.attack, one.seed) == (other.rule, other.attack, other.seed)
        assert one.environment == other.environment
        assert one.status.outcome == other.status.outcome == "finished"
        assert one.summary == other.summary
        assert one.num_samples == other.num_samples
        for field in dataclasses.fields(one.series):
            same = getattr(one.series, field.name), getattr(other.series, field.name)
            np.testing.assert_array_equal(*same)
        for field in dataclasses.fields(one.clients):
            same = getattr(one.clients, field.name), getattr(other.clients, field.name)
            np.testing.assert_array_equal(*same)
