"""`simulate`: federations of a user's own model and data, by the engine and store of the CLI."""

import os
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
from torch import Tensor, nn
from torch.optim import Optimizer

from outvote.attacks.attack import Attack
from outvote.attacks.attack_spec import make_attack
from outvote.data.array_dataset import ArrayDataset, make_dataset
from outvote.errors import OutvoteWarning, check_choice, check_kind, closest, plural, warn_notes
from outvote.experiment.dataset_cache import arrays_of
from outvote.experiment.environment import choose_device
from outvote.experiment.plan import Job, Plan, RunEnd
from outvote.experiment.progress import (
    KINDS,
    Listener,
    ProgressKind,
    RoundProgress,
    shown_on_stderr,
)
from outvote.experiment.run_spec import (
    PARTITIONS,
    DataSpec,
    FederationSpec,
    ModelSpec,
    RunSpec,
    checked,
)
from outvote.experiment.runner import CHECKPOINT_EVERY, Runner
from outvote.experiment.stop_signal import StopSignal
from outvote.plugins import is_plugin_class
from outvote.report.runs import Runs
from outvote.results.collect import collect
from outvote.results.labels import outline
from outvote.results.round import Round
from outvote.rules.rule import Rule
from outvote.rules.rule_spec import make_rule
from outvote.server.selection import make_selection
from outvote.server.step import Server
from outvote.training.local_sgd import LocalSGD
from outvote.user_code import checksum_of, text_of
from outvote.user_objects import is_user_object, registered

Samples = Any
OPTIONS = {"dirichlet": ("beta", "balance", "min_size"), "shards": ("per_client",)}
"""The parameters of partitions."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RoundReport:
    """One round of one run, as callbacks get it."""

    run: str
    """The name of the run: rule, attack, seed and checksum."""
    rule: str
    """The rule of the run, as text."""
    attack: str
    """The attack of the run, as text."""
    seed: int
    """The seed of the run."""
    round: int
    """The number of the round, from 1."""
    accuracy: float | None
    """On the test set; None: not evaluated, or targets are not classes."""
    loss: float | None
    """The mean training loss of the honest clients."""
    test_loss: float | None
    """Where targets are not classes, or the loss is your own."""
    record: Round
    """Everything that is recorded of the round: clients, scores, deviation, and more."""


Callback = Callable[[RoundReport], object]


def simulate(  # noqa: PLR0913  (a simulation has many settings, each by name)
    model: str | nn.Module | Callable[..., nn.Module],
    train: Samples,
    test: Samples = None,
    *,
    groups: Sequence[Hashable] | None = None,
    channels: Literal["auto", "first", "last"] = "auto",
    partition: str | Sequence[Sequence[int]] | Callable[..., Any] = "iid",
    num_clients: int | None = None,
    num_sampled: int | float | None = None,
    byzantine: int | float = 0.2,
    assumed_byzantine: int | float | Literal["oracle"] = "oracle",
    sample_counts: bool = False,
    selection: str = "uniform",
    rules: str | Rule | Sequence[str | Rule] = "gas(multi-krum)",
    attacks: str | Attack | Sequence[str | Attack] = "lie",
    seeds: int | Sequence[int] = 0,
    rounds: int = 50,
    local: LocalSGD | None = None,
    optimizer: Callable[[Sequence[nn.Parameter]], Optimizer] | None = None,
    loss: Callable[[Any, Tensor], Tensor] | None = None,
    server: Server | None = None,
    aggregate: Literal["parameters", "state"] = "parameters",
    root_size: int = 100,
    diagnostics: bool = False,
    theory: bool = False,
    evaluate_every: int = 1,
    device: str = "auto",
    precision: Literal["float32", "tf32", "bfloat16"] = "float32",
    trainer: Literal["auto", "cores", "stacked", "vmap", "sequential"] = "auto",
    max_stacked: int | None = None,
    output: str | os.PathLike[str] | None = None,
    suite: str = "simulation",
    name: str | None = None,
    checkpoint_every: float = CHECKPOINT_EVERY,
    keep_weights: bool = True,
    callbacks: Callback | Sequence[Callback] = (),
    progress: bool | ProgressKind = "auto",
) -> Runs:
    """Simulate federations of your model on your data: every rule under every attack.

    In every round of a federation, each client trains the model on its own samples and sends the
    change of the weights, Byzantine clients send what the attack crafts, the rule aggregates what
    was sent, the server applies the result, and the model is evaluated on the test set. One run is
    one rule, one attack and one seed; a combination that is given twice is one run.

    With `output`, runs are stored as `outvote run` stores them. The same call reads finished runs
    and resumes unfinished ones (also after kill -9), and the tables, reports and audits of the
    command line work on the folder. A run is named by a checksum of its settings, your source and
    your data: after a change it is another run. More, with examples and recipes:
    docs/how-to/simulate-from-python.md.

    ::

        result = ov.simulate(Net, train=(x, y), test=(x_test, y_test), num_clients=20,
                             partition="dirichlet(beta=0.5)", rules=["mean", "gas(median)"],
                             attacks=["lie", "ipm"], rounds=20, output="runs")
        result.to_frame()  # pandas: one row per run and round
        result.table()  # rules against attacks
        result.plot("curves", path="curves.png")

    Args:
        model: A class or function that makes a network (it is called with `num_classes` if it has
            such a parameter; its first weights follow from the seed), a network (every run starts
            from its weights), or the name of a network of outvote (for the datasets of outvote).
        train: A pair (samples, targets) of arrays or tensors; a torch dataset of pairs; or the
            name of a dataset of outvote, without `test`. Samples may be a tuple of arrays, the
            arguments of the network. Floating-point samples become float32, bytes are
            divided by 255, other whole numbers (token ids) stay. Whole-number targets are classes
            from 0, for which the network returns one number per class (a target of -100 does not
            count); floating-point targets are values to regress on.
        test: Samples that no client trains on, of the same kinds.
        groups: The group (author, hospital, device) of every training sample, for the partition
            "by-group".
        channels: Which axis of images ``[samples, ?, ?, ?]`` are channels; "auto": the last if it
            has at most four entries and the first has more.
        partition: "iid", "dirichlet(beta=0.5, balance=true, min_size=10)", "shards(per_client=2)",
            "by-group"; a list with the indices of every client's samples, or a dictionary of them
            by client; or a function (targets, num_clients, seed) that returns a list. The smaller
            beta, the more the clients differ.
        num_clients: How many clients there are; default: those of a list, one per group of
            "by-group", otherwise 50.
        num_sampled: How many take part in a round, or their fraction; default: all.
        byzantine: How many clients are Byzantine (2), or their fraction (0.2), rounded up.
        assumed_byzantine: How many Byzantine clients the server assumes in a round, or their
            fraction; "oracle": their true number.
        sample_counts: Whether rules weigh clients by their numbers of samples, none more than three
            times the median.
        selection: How the clients of a round are sampled: "uniform", or "by-score", which samples
            those with high scores in earlier rounds less often, "by-score(floor=0.2, memory=0.8)";
            docs/concepts/client-selection.md has what it does to honest minorities.
        rules: Rules as text ("gas(multi-krum, num_groups=100)", "mine.py:MyRule") or objects.
        attacks: Attacks as text ("lie(z=1.5)", "mine.py:MyAttack") or objects; "none": Byzantine
            clients behave as honest ones.
        seeds: One or several. Everything random follows from a seed: first weights, partition, who
            is Byzantine, batches, splits of GAS. A run on a CPU is repeatable to the last bit.
        rounds: How many rounds a run has.
        local: The training of clients, see `LocalSGD`: learning rate, momentum, batches, epochs,
            clipping, FedProx; default: `LocalSGD()`.
        optimizer: A function of the parameters that makes a torch optimiser, instead of SGD:
            ``lambda parameters: torch.optim.Adam(parameters, lr=1e-3)``. Every client starts a new
            one in every round. Batches, epochs, the schedule (relative to its first round) and
            clipping (to the norm 2, unless `local=LocalSGD(max_norm=None)`) are those of `local`.
        loss: A function (outputs, targets) that returns one number; default: cross entropy for
            classes, the mean squared error for other targets.
        server: The server's step, see `Server`: learning rate, momentum, FedAdam, FedYogi; default:
            the aggregated update is applied as it is.
        aggregate: Whether rules aggregate the "parameters" alone, or the "state": also buffers,
            such as the running statistics of batch normalisation.
        root_size: How many clean samples the server has, for rules that need a reference.
        diagnostics: Whether to record the quantities of the theory (how far honest gradients are
            apart); costs about one more epoch per round.
        theory: Whether to measure the convergence analysis of the paper and the diagnostics; for
            one plain step of all clients, `LocalSGD(num_steps=1, momentum=0.0, weight_decay=0.0,
            max_norm=None)`; costs about two more epochs per round.
        evaluate_every: Rounds between two evaluations on the test set.
        device: "auto" (a GPU if there is one), "cpu", "cuda", "cuda:1".
        precision: Of products while clients train; "bfloat16" is for GPUs.
        trainer: How clients train: "cores" (on a CPU) or "stacked" (on a GPU) for networks of known
            layers, "vmap" (for networks that torch.func takes), "sequential" (plain PyTorch, for
            any network); "auto": the fastest of them that accepts the network.
        max_stacked: The most runs that train together; default: as many as fit into memory.
        output: The folder of a store, such as "runs"; None: nothing is kept on disk.
        suite: The folder of these runs below `output`.
        name: Stands in the names of runs for code without a source and for values that cannot be
            read, which are an error without it; take another name when you change them.
        checkpoint_every: Seconds between two checkpoints; 0: after every round.
        keep_weights: Whether the final weights of a run stay in its folder.
        callbacks: Functions that are called with a `RoundReport` after every round of every run.
        progress: "bar", "lines" (every ten seconds on stderr) or "none"; True is "lines", False
            "none". "auto": a bar on a terminal and in a notebook, lines elsewhere.

    Returns:
        The runs, see `Runs`: `to_frame()`, `summary()`, `table()`, `plot()`, `report()`. Runs that
        failed are among them with the reason, and a warning names the first.

    Raises:
        ValueError: Something cannot be simulated, such as targets that do not fit the model. It
            is found before anything trains; so is a TypeError.
        RuntimeError: All runs failed; the message has the reason of the first.
        KeyboardInterrupt: Ctrl-C; with `output` everything is saved, and the same call resumes.
    """
    counts = {"rounds": rounds, "evaluate_every": evaluate_every, "root_size": root_size}
    for key, value in counts.items():
        counts[key] = _whole(key, value)
    every_seed = _seeds(seeds)
    _check_how(suite, checkpoint_every, max_stacked, progress)
    given = _Objects(name)
    every_rule = given.parts("rules", rules, make_rule, Rule)
    every_attack = given.parts("attacks", attacks, make_attack, Attack)
    data = given.dataset(train, test, groups, channels)
    chosen = _partition(partition, given)
    number = _num_clients(num_clients, chosen["partition"], given)
    specs = [
        RunSpec(
            rule=rule,
            attack=attack,
            seed=seed,
            **counts,
            precision=precision,
            aggregate=aggregate,
            diagnostics=diagnostics,
            theory=theory,
            loss="auto" if loss is None else given.text("loss", loss),
            optimizer="local-sgd" if optimizer is None else given.text("optimizer", optimizer),
            trainer=trainer,
            data=DataSpec(name=data, **chosen),
            federation=FederationSpec(
                num_clients=number,
                byzantine=_count_or_fraction("byzantine", byzantine),
                sampled=1.0
                if num_sampled is None
                else _count_or_fraction("num_sampled", num_sampled),
                assumed_byzantine=assumed_byzantine
                if isinstance(assumed_byzantine, str)
                else _count_or_fraction("assumed_byzantine", assumed_byzantine),
                sample_counts=bool(sample_counts),
                selection=str(make_selection(selection)),
            ),
            model=ModelSpec(name=model if isinstance(model, str) else given.text("model", model)),
            training=_given("local", local, LocalSGD),
            server=_given("server", server, Server),
        )
        for rule in every_rule
        for attack in every_attack
        for seed in every_seed
    ]
    _check_names(precision, aggregate, trainer, specs)
    with registered(given.objects):
        by_hash = {}
        for spec in map(checked, specs):
            by_hash[spec.hash] = spec
        plan = Plan(suite, tuple(by_hash.values()), tuple(by_hash))
        warn_notes(plan.notes)
        reports = _callbacks(callbacks)
        runner = Runner(
            output=None if output is None else Path(output).expanduser(),
            device=choose_device(device),
            checkpoint_every=float("inf") if output is None else checkpoint_every,
            max_stacked=max_stacked,
            keep_weights=keep_weights,
        )
        if isinstance(progress, bool):
            progress = "lines" if progress else "none"
        with StopSignal() as stop, shown_on_stderr(progress) as shown:
            runner.should_stop, runner.listener = stop, _Reports(reports, shown)
            ends = runner.execute(plan)
        if stop():
            raise KeyboardInterrupt(_how_to_resume(output))
        return _results(ends)


def _results(ends: Sequence[RunEnd]) -> Runs:
    """Return the runs; one that failed is a warning, unless all did."""
    runs, failed, paths = [], [], []
    for end in ends:
        job = end.job
        if end.outcome not in ("finished", "diverged"):
            failed.append(end)
        if job.kept is None and job.folder.path.is_dir():
            paths.append(job.folder.path)
        elif job.kept is not None and (run := job.kept.result(job.suite, job.name)) is not None:
            runs.append(run)
    if failed:
        text = (
            f"{len(failed)} of {plural(len(ends), 'run')} failed; {failed[0].job.name}: "
            f"{failed[0].reason}"
        )
        if len(failed) == len(ends):
            raise RuntimeError(text)
        warnings.warn(text, OutvoteWarning, stacklevel=4)
    if paths:
        found = {result.hash: result for result in collect(paths)}
        runs = [found[end.job.hash] for end in ends if end.job.hash in found]
    return Runs(runs)


def _how_to_resume(output: Any) -> str:
    return (
        "stopped; nothing is kept without output="
        if output is None
        else (f"stopped and saved in {output}; the same call resumes")
    )


class _Objects:
    """The user's own objects of a simulation, by their texts."""

    def __init__(self, name: str | None) -> None:
        check_kind("name", name, str | None)
        self.name = name
        self.objects: dict[str, Any] = {}

    def text(self, kind: str, thing: Any) -> str:
        """Return the text of an object; a text stays."""
        if isinstance(thing, str):
            if not is_user_object(thing):
                raise ValueError(f"{kind} must be an object or path.py:name, got {thing!r}.")
            return thing
        if not callable(thing):
            raise TypeError(f"{kind} must be callable, got {type(thing).__name__}.")
        return self._add(thing)

    def _add(self, thing: Any) -> str:
        text = text_of(thing, self.name)
        self.objects[text] = thing
        return text

    def dataset(self, train: Any, test: Any, groups: Any, channels: str) -> str:
        """Return the text of a dataset."""
        if isinstance(train, str | ArrayDataset):
            name = repr(train) if isinstance(train, str) else train.name
            more = {"test": test, "groups": groups, "channels": None if channels == "auto" else 1}
            for key, value in more.items():
                if value is not None:
                    raise ValueError(f"{key} belongs to the dataset {name}; leave it out.")
        if isinstance(train, str):
            return train
        if isinstance(train, ArrayDataset):
            dataset = train
        elif test is None:
            raise TypeError("simulate needs test=, samples that no client trains on.")
        else:
            dataset = make_dataset(train, test, name="arrays", groups=groups, channels=channels)
        digest = checksum_of(*arrays_of(dataset), dataset.num_classes, dataset.is_channels_last)
        text = f"{dataset.name}#{digest}"
        self.objects[text] = replace(dataset, name=text)
        return text

    def parts(self, name: str, given: Any, make: Callable[[Any], Any], base: type) -> list[str]:
        """Return the texts of rules or attacks; classes are refused with the remedy."""
        several = [given] if isinstance(given, str | base | type) else given
        if not isinstance(several, Iterable):
            raise TypeError(f"{name} must be texts or objects, got {type(given).__name__}.")
        found = []
        for each in several:
            if isinstance(each, type):
                raise TypeError(
                    f"{name} must be texts or objects, got the class {each.__name__}; make an "
                    f"object of it: {each.__name__}()."
                )
            thing = make(each)
            if not isinstance(each, str):
                self._add_classes(thing, base)
            with registered(self.objects):
                found.append(str(thing))
        return found

    def _add_classes(self, thing: Any, base: type) -> None:
        """Register the user's classes of a rule or attack and of what it wraps."""
        kind = type(thing)
        is_known = kind.__module__.startswith("outvote.") or is_plugin_class(kind)
        if not is_known and not hasattr(kind, "loaded_from"):
            if not is_dataclass(thing) and getattr(thing, "__dict__", None):
                raise TypeError(
                    f"{kind.__name__} keeps parameters that its text would lose; make it a "
                    "dataclass: @dataclass(frozen=True)."
                )
            self._add(kind)
        for field in fields(thing) if is_dataclass(thing) else ():
            value = getattr(thing, field.name)
            if isinstance(value, base):
                self._add_classes(value, base)


def _partition(given: Any, objects: _Objects) -> dict[str, Any]:
    """Return the settings of a partition."""
    if not isinstance(given, str):
        if callable(given):
            return {"partition": objects.text("partition", given)}
        parts = _parts(given)
        text = f"parts#{checksum_of(parts)}"
        objects.objects[text] = parts
        return {"partition": text}
    if is_user_object(given):
        return {"partition": given}
    name, _, options = outline(given)
    if name not in PARTITIONS:
        raise ValueError(f"unknown partition {given!r}; {closest(name, PARTITIONS)}")
    known = OPTIONS.get(name, ())
    for key in options:
        if key not in known:
            raise ValueError(f"partition {name} has no parameter {key!r}; {closest(key, known)}")
    if "per_client" in options:
        options = {"shards_per_client": options["per_client"]}
    return {"partition": name, **options}


def _parts(given: Any) -> list[Any]:
    """Return the indices of every client's samples; a dictionary has them by client."""
    if not isinstance(given, Iterable):
        raise TypeError(
            "partition must be a text, a list with the indices of every client's samples, or a "
            f"function, got {type(given).__name__}."
        )
    parts = list(given.values() if isinstance(given, Mapping) else given)
    for part in parts:
        if not isinstance(part, Iterable):
            raise TypeError(
                "partition must be a list with one list of indices for every client, got "
                f"{part!r} in it."
            )
    return [np.asarray(part) if hasattr(part, "__array__") else list(part) for part in parts]


def _num_clients(number: int | None, chosen: str, objects: _Objects) -> int | Literal["all"]:
    parts = objects.objects.get(chosen)
    if isinstance(parts, list):
        if number is not None and number != len(parts):
            raise ValueError(
                f"num_clients must be the {len(parts)} clients of the partition, got {number}; "
                "leave it out."
            )
        return len(parts)
    if number is None:
        return "all" if chosen == "by-group" else 50
    return _whole("num_clients", number)


def _whole(name: str, value: Any) -> int:
    check_kind(name, value, int)
    return int(value)


def _count_or_fraction(name: str, value: Any) -> int | float:
    check_kind(name, value, int | float)
    return int(value) if isinstance(value, Integral) else float(value)


def _seeds(seeds: Any) -> list[int]:
    found = []
    for seed in seeds if isinstance(seeds, Iterable) and not isinstance(seeds, str) else [seeds]:
        found.append(_whole("seeds", seed))
    return found


def _callbacks(callbacks: Any) -> list[Callback]:
    several = [callbacks] if callable(callbacks) or callbacks is None else list(callbacks)
    for each in several:
        if not callable(each):
            raise TypeError(f"callbacks must be functions, got {type(each).__name__}.")
    return several


def _given(name: str, value: Any, kind: type) -> Any:
    """Return a `LocalSGD` or a `Server`: that of the caller, or the default."""
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be an ov.{kind.__name__}, got {type(value).__name__}.")
    return value


def _check_how(suite: Any, checkpoint_every: Any, max_stacked: Any, progress: Any) -> None:
    """Check what changes no result."""
    if not isinstance(suite, str) or not suite.strip(".") or Path(suite).name != suite:
        raise ValueError(f"suite must be the name of a folder, got {suite!r}.")
    check_kind("checkpoint_every", checkpoint_every, float)
    if not checkpoint_every >= 0:
        raise ValueError(f"checkpoint_every must be at least 0 seconds, got {checkpoint_every}.")
    check_kind("max_stacked", max_stacked, int | None)
    if max_stacked is not None and max_stacked < 1:
        raise ValueError(f"max_stacked must be at least 1, got {max_stacked}.")
    check_choice("progress", progress, (True, False, *KINDS))


def _check_names(precision: str, aggregate: str, trainer: str, specs: Sequence[RunSpec]) -> None:
    check_choice("precision", precision, ("float32", "tf32", "bfloat16"))
    check_choice("aggregate", aggregate, ("parameters", "state"))
    check_choice("trainer", trainer, ("auto", "cores", "stacked", "vmap", "sequential"))
    if not specs:
        raise ValueError("rules, attacks and seeds must not be empty.")
    assumed = specs[0].federation.assumed_byzantine
    if isinstance(assumed, str):
        check_choice("assumed_byzantine", assumed, ("oracle",))


class _Reports(Listener):
    """Calls callbacks, and passes the progress on."""

    def __init__(self, callbacks: Sequence[Callback], shown: Listener) -> None:
        self.callbacks, self.shown = callbacks, shown

    def on_plan(self, num_rounds: int) -> None:
        """Pass it on."""
        self.shown.on_plan(num_rounds)

    def on_record(self, job: Job, record: Round) -> None:
        """Call the callbacks."""
        spec = job.spec
        report = RoundReport(
            run=job.name,
            rule=spec.rule,
            attack=spec.attack,
            seed=spec.seed,
            round=record.round,
            accuracy=record.accuracy,
            loss=record.loss,
            test_loss=record.test_loss,
            record=record,
        )
        for callback in self.callbacks:
            try:
                callback(report)
            except Exception as error:
                name = getattr(callback, "__qualname__", type(callback).__qualname__)
                what = f"{type(error).__name__}: {error}".rstrip(".: ")
                raise RuntimeError(f"the callback {name} failed: {what}.") from error

    def on_round(self, progress: RoundProgress) -> None:
        """Pass it on."""
        self.shown.on_round(progress)

    def on_message(self, text: str) -> None:
        """Pass it on."""
        self.shown.on_message(text)
