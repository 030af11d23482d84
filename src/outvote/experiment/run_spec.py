"""The settings of one run, and their checks; every setting is part of the run's hash."""

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from math import isfinite
from typing import Any, Literal

import msgspec
from msgspec import Struct

from outvote.attacks.attack_spec import ATTACKS, make_attack
from outvote.data.catalog import DATASETS
from outvote.data.loader import find_entry
from outvote.engine.federation import count_sampled
from outvote.errors import closest
from outvote.loading import find_file
from outvote.models.model_spec import MODELS, check_model_name
from outvote.plugins import Plugin, find_plugin
from outvote.results.labels import label_names, user_files
from outvote.results.later import LATER
from outvote.rules.rule_spec import RULES, make_rule
from outvote.server.selection import make_selection
from outvote.server.step import Server
from outvote.suites.presets import PLAIN_STEP
from outvote.training.local_sgd import LocalSGD, with_rates
from outvote.user_objects import is_own, is_user_object

PARTITIONS = ("dirichlet", "iid", "shards", "by-group")
Precision = Literal["float32", "tf32", "bfloat16"]
# Enters every hash: to be raised whenever the same settings give other numbers than before.
# 2: the splits of GAS, and everything that was drawn on a GPU and decides what a run does.
PROTOCOL = 2
# Not in the hash: raised whenever numbers differ from before by rounding alone; names stay. It is
# recorded in env.json.
REVISION = 11


class DataSpec(Struct, frozen=True, kw_only=True):
    """The dataset, and its partition among the clients."""

    name: str = "fashion-mnist-small"
    """The dataset. Allowed: those of `outvote list datasets`, or `path.py:name`, a function that
    returns your own."""
    partition: str = "dirichlet"
    """How the samples are divided among the clients; by-group keeps the samples of a group, such as
    a writer, together. Allowed: dirichlet, iid, shards, by-group, or `path.py:name`, a list of
    indices per client or a function (targets, num_clients, seed) that returns one."""
    beta: float = 0.5
    """Of dirichlet: the smaller, the more the clients differ. Allowed: above 0."""
    balance: bool = True
    """Of dirichlet: whether a client that has an equal share already gets no more."""
    min_size: int = 10
    """Of dirichlet: the fewest samples of a client. Allowed: at least 1."""
    shards_per_client: int = 2
    """Of shards: how many shards of samples sorted by label a client gets. Allowed: at least 1."""
    image_size: int | None = None
    """Of folders of images, such as imagenet12: the height and width after resizing; None: 224, or
    64 for Tiny-ImageNet. Allowed: at least 1."""

    @property
    def key(self) -> tuple[str, int | None]:
        """The samples, whatever their partition."""
        return self.name, self.image_size


class FederationSpec(Struct, frozen=True, kw_only=True):
    """The clients: whole numbers are counts, numbers with a point are fractions, rounded up."""

    num_clients: int | Literal["all"] = 50
    """How many clients there are; "all": one per group, for the partition by-group. Allowed: at
    least 1."""
    byzantine: int | float = 0.2
    """How many clients are Byzantine, drawn once per run. Allowed: a count of at most all clients,
    or a fraction from 0.0 to 1.0."""
    sampled: int | float = 1.0
    """How many clients take part in a round. Allowed: a count of at most all clients, or a fraction
    from 0.0 to 1.0."""
    assumed_byzantine: int | float | Literal["oracle"] = "oracle"
    """How many Byzantine clients the server assumes in a round; "oracle": their true number.
    Allowed: a count of at most those sampled, or a fraction from 0.0 to 1.0."""
    sample_counts: bool = False
    """Whether rules weigh clients by their numbers of samples, none more than three times the
    median."""
    selection: str = "uniform"
    """How the clients of a round are sampled; by-score: less often after high scores, see
    docs/concepts/client-selection.md. Allowed: uniform, or where not all are sampled by-score,
    as in `by-score(floor=0.2, memory=0.8)`."""

    def num_sampled(self, num_clients: int) -> int:
        """Return how many clients take part in a round."""
        is_count = isinstance(self.sampled, int)
        ratio, number = (None, self.sampled) if is_count else (self.sampled, None)
        return count_sampled(num_clients, ratio=ratio, number=number)  # type: ignore[arg-type]

    @property
    def assumes_majority(self) -> bool:
        """Whether the server assumes that half of a round's clients or more are Byzantine."""
        if isinstance(self.assumed_byzantine, float):
            return self.assumed_byzantine >= 0.5
        if isinstance(self.assumed_byzantine, str) or isinstance(self.num_clients, str):
            return False
        return 2 * self.assumed_byzantine >= self.num_sampled(self.num_clients)

    def check_sampled(self, num_clients: int) -> None:
        """Refuse what does not fit to the number of clients that take part in a round."""
        num_sampled = self.num_sampled(num_clients)
        if num_sampled == num_clients and self.selection != "uniform":
            raise ValueError(
                f"federation.selection = {self.selection!r} has no effect where all "
                f"{num_clients} clients take part in every round; lower federation.sampled, or "
                "leave it out."
            )
        if isinstance(self.assumed_byzantine, int) and self.assumed_byzantine > num_sampled:
            raise ValueError(
                f"federation.assumed_byzantine must be at most the {num_sampled} clients sampled "
                f"in a round, got {self.assumed_byzantine}; lower it, or write a fraction."
            )


class ModelSpec(Struct, frozen=True, kw_only=True):
    """The network: a name, or a user's class or function that makes one."""

    name: str = "small-cnn"
    """The network. Allowed: those of `outvote list models`, or `path.py:name`, a class or function
    that makes your own."""


class RunSpec(Struct, frozen=True, kw_only=True):
    """One run."""

    rule: str = "gas(multi-krum)"
    """The rule that aggregates, with parameters, as in `gas(median, num_groups=100)`. Allowed:
    those of `outvote list rules`, or `path.py:MyRule`."""
    attack: str = "lie"
    """What Byzantine clients send, with parameters, as in `lie(z=1.5)`. Allowed: those of
    `outvote list attacks`, or `path.py:MyAttack`."""
    rounds: int = 50
    """How many rounds the run has. Allowed: at least 1."""
    evaluate_every: int = 1
    """Rounds between two evaluations on the whole test set; the last round is always evaluated.
    Allowed: at least 1."""
    seed: int = 0
    """Everything random follows from it: partition, Byzantine clients, first weights, sampling,
    batches, attack and rule. Allowed: at least 0."""
    precision: Precision = "float32"
    """Of products while clients train; on a CPU tf32 changes nothing, and bfloat16 is an error."""
    root_size: int = 100
    """How many samples the server has, for rules such as fltrust; they are drawn from the training
    set, and clients keep them. Allowed: at least 1."""
    aggregate: Literal["parameters", "state"] = "parameters"
    """What rules aggregate; state: also running statistics, as in the authors' code."""
    diagnostics: bool = False
    """Whether to record the quantities of the theory too, at the cost of about one more epoch per
    round, see docs/concepts/diagnostics.md."""
    theory: bool = False
    """Whether to measure the convergence analysis and the diagnostics, at the cost of about two
    more epochs per round; for one plain step of all clients, as the preset theory has it, see
    docs/concepts/theory.md."""
    loss: str = "auto"
    """What clients minimise; auto: cross entropy for classes, the mean squared error for other
    targets. Allowed: auto, or `path.py:name`, a function (outputs, targets) that returns a number.
    """
    optimizer: str = "local-sgd"
    """How clients step; local-sgd: as the settings of training have it. Allowed: local-sgd, or
    `path.py:name`, a function that makes a torch optimiser of the parameters."""
    trainer: Literal["auto", "cores", "stacked", "vmap", "sequential"] = "auto"
    """How clients train; cores: one on each core of a CPU, for known layers; stacked: all as one
    program, for known layers; vmap: all, by torch.func; sequential: one by one, in plain PyTorch,
    for any network; auto: the fastest that accepts the network."""
    data: DataSpec = msgspec.field(default_factory=DataSpec)
    federation: FederationSpec = msgspec.field(default_factory=FederationSpec)
    model: ModelSpec = msgspec.field(default_factory=ModelSpec)
    training: LocalSGD = msgspec.field(default_factory=LocalSGD)
    server: Server = msgspec.field(default_factory=Server)

    @property
    def hash(self) -> str:
        """The checksum of all settings, and of the user's files of rules and attacks.

        Files are read anew every time: a `Job` keeps the hash of the plan.
        """
        code = file_digests(*self.user_texts)
        for plugin in self.plugins:
            code[plugin.package] = plugin.version
        table = as_table(self)
        # The name in the hashes of all runs, which are kept.
        table["federation"]["told"] = table["federation"].pop("assumed_byzantine")
        content = {"protocol": PROTOCOL, "spec": table, "code": code}
        text = msgspec.json.encode(content, order="sorted")
        return hashlib.blake2b(text, digest_size=6).hexdigest()

    @property
    def plugins(self) -> tuple[Plugin, ...]:
        """What its rule, attack, model and data take from other packages."""
        names: tuple[tuple[str, list[str], Collection[str]], ...] = (
            ("rule", label_names(self.rule), RULES),
            ("attack", label_names(self.attack), ATTACKS),
            ("model", [self.model.name], MODELS),
            ("dataset", [self.data.name], DATASETS),
        )
        found: dict[Plugin, None] = {}
        for kind, own, built_in in names:
            for name in own:
                if name in built_in or is_user_object(name):
                    continue
                if (plugin := find_plugin(kind, name)) is not None:
                    found[plugin] = None
        return tuple(found)

    @property
    def user_texts(self) -> tuple[str, ...]:
        """The settings that may name a user's objects."""
        data = (self.data.name, self.data.partition)
        return (self.rule, self.attack, self.model.name, *data, self.loss, self.optimizer)

    @property
    def label(self) -> str:
        """A readable name; together with the hash it is the name of the folder."""
        return f"{_slug(self.rule)}-{_slug(self.attack)}-seed{self.seed}"


def as_table(spec: RunSpec) -> dict[str, Any]:
    """Return the settings as plain values, without those of `LATER` that have their default."""
    table: dict[str, Any] = msgspec.to_builtins(spec)
    for key, default in LATER.items():
        section, _, last = key.rpartition(".")
        inside = table[section] if section else table
        if inside[last] == default:
            del inside[last]
    return table


def to_toml(spec: RunSpec, suite: str) -> str:
    """Return config.toml of one run; as the input of `outvote run` it is the same run."""
    table = {"suite": suite, **as_table(spec)}
    lines, sections = [], []
    for key, value in table.items():
        if not isinstance(value, Mapping):
            lines.append(f"{key} = {_toml_value(value)}")
            continue
        sections += ["", f"[{key}]"]
        for name, inside in value.items():
            sections.append(f"{name} = {_toml_value(inside)}")
    return "\n".join([*lines, *sections]) + "\n"


def file_digests(*texts: str) -> dict[str, str]:
    """Return the checksum of every file that is named in texts such as "gas(mine.py:MyRule)"."""
    found = {}
    for path in sorted(set[str]().union(*map(user_files, texts))):
        if (file := find_file(path)).is_file():
            found[path] = hashlib.blake2b(file.read_bytes(), digest_size=16).hexdigest()
    return found


def checked(spec: RunSpec) -> RunSpec:
    """Check the settings; return them in one form: another spelling of a run has the same hash."""
    for name, least in (("rounds", 1), ("evaluate_every", 1), ("seed", 0), ("root_size", 1)):
        _check_least(name, getattr(spec, name), least)
    _check_data(spec.data)
    try:
        selection = str(make_selection(spec.federation.selection))
    except (ValueError, TypeError) as error:
        raise ValueError(f"federation.selection: {error}") from error
    federation = msgspec.structs.replace(spec.federation, selection=selection)
    _check_federation(federation, spec.data)
    for name, usual in (("loss", "auto"), ("optimizer", "local-sgd")):
        _check_object(name, getattr(spec, name), (usual,))
    try:
        check_model_name(spec.model.name)
    except ValueError as error:
        raise ValueError(f"model.name: {error}") from error
    if spec.theory:
        _check_theory(spec)
    server = spec.server
    if server.optimizer == "sgd":  # What plain steps do not use is at its default.
        server = Server(learning_rate=server.learning_rate, momentum=server.momentum)
    return msgspec.structs.replace(
        spec,
        rule=str(make_rule(spec.rule)),
        attack=str(make_attack(spec.attack)),
        data=_without_unused(spec.data),
        federation=federation,
        training=with_rates(spec.training, spec.rounds),
        server=server,
    )


def _check_theory(spec: RunSpec) -> None:
    """Refuse settings outside the analysis: one plain step of all clients, applied as it is."""
    needed: dict[str, Any] = {
        **{f"training.{key}": value for key, value in PLAIN_STEP.items()},
        "server": Server(),
        "federation.sampled": 1.0,
        "federation.sample_counts": False,
        "aggregate": "parameters",
        "optimizer": "local-sgd",
    }
    for key, value in needed.items():
        found: Any = spec
        for name in key.split("."):
            found = getattr(found, name)
        is_all = key == "federation.sampled" and found == spec.federation.num_clients
        if found != value and not is_all:
            raise ValueError(
                f"theory = true is for {key} = {_toml_value(value) if key != 'server' else value}, "
                f"got {_toml_value(found) if key != 'server' else found}; start from "
                "preset = 'theory', or leave theory out."
            )


def _slug(text: str, longest: int = 40) -> str:
    words = re.sub(r"[^\w.-]|_", " ", text).split()
    return "-".join(words)[:longest].strip("-.")


def _toml_value(value: Any) -> str:
    if value is None:
        return '"none"'
    if isinstance(value, float):
        return repr(value)  # JSON has no "inf".
    return json.dumps(value, ensure_ascii=False)


def _check_object(key: str, text: str, known: tuple[str, ...]) -> None:
    """Refuse a word that is neither known nor a user's object."""
    if text not in known and not is_user_object(text):
        raise ValueError(
            f"{key}: unknown value {text!r}; {closest(text, known).rstrip('.')}, or name an object "
            "in a file, path.py:name."
        )


def _check_data(data: DataSpec) -> None:
    _check_object("data.partition", data.partition, PARTITIONS)
    forms = () if is_own("dataset", data.name, DATASETS) else find_entry(data.name).forms
    if data.image_size is not None:
        if not any("size" in form.options for form in forms):
            raise ValueError(
                "data.image_size is for folders of images such as imagenet12, got "
                f"{data.image_size} for {data.name}; leave it out."
            )
        _check_least("data.image_size", data.image_size, 1)
    if not (isfinite(data.beta) and data.beta > 0):
        raise ValueError(f"data.beta must be larger than 0 and finite, got {data.beta}.")
    _check_least("data.min_size", data.min_size, 1)
    _check_least("data.shards_per_client", data.shards_per_client, 1)


def _check_federation(federation: FederationSpec, data: DataSpec) -> None:
    for name in ("byzantine", "sampled", "assumed_byzantine"):
        value = getattr(federation, name)
        if isinstance(value, float) and not 0 <= value <= 1:
            raise ValueError(
                f"federation.{name}: a number with a point is a fraction from 0 to 1, got {value}; "
                "write a count without a point."
            )
        if isinstance(value, int):
            _check_least(f"federation.{name}", value, 0)
    number = federation.num_clients
    if number == "all":
        if data.partition != "by-group":
            raise ValueError(
                "federation.num_clients = 'all' is for data.partition = 'by-group', got "
                f"{data.partition!r}; give a number."
            )
        return
    _check_least("federation.num_clients", number, 1)
    federation.check_sampled(number)
    if isinstance(federation.byzantine, int) and federation.byzantine > number:
        raise ValueError(
            f"federation.byzantine must be at most the {number} clients there are, got "
            f"{federation.byzantine}."
        )


def _check_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}.")


def _without_unused(data: DataSpec) -> DataSpec:
    """Set what the partition does not use to its default, and a size that is the default."""
    usual = DataSpec()
    changes: dict[str, Any] = {}
    is_listed = not is_own("dataset", data.name, DATASETS)
    if is_listed and data.image_size == find_entry(data.name).shape[0]:
        changes["image_size"] = None
    if data.partition != "dirichlet":
        changes |= {"beta": usual.beta, "balance": usual.balance, "min_size": usual.min_size}
    if data.partition != "shards":
        changes["shards_per_client"] = usual.shards_per_client
    return msgspec.structs.replace(data, **changes)
