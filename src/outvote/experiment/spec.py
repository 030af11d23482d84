"""The settings of one run; everything in here can change a result, and is part of its hash."""

import hashlib
from typing import Any, Literal

import msgspec
from msgspec import Struct

from outvote.experiment.user_code import digests
from outvote.results.renamed import SETTINGS
from outvote.server.step import Server
from outvote.training.local_sgd import LocalSGD

Partition = Literal["dirichlet", "iid", "shards", "by-group"]
Precision = Literal["float32", "tf32", "bfloat16"]
# Enters every hash: to be raised whenever the same settings give other numbers than before.
PROTOCOL = 1
# Settings that came later: where they have their default they are left out of the hash and of
# config.toml, so that the runs that there were before keep their names. Nothing is ever removed.
LATER = ("data.image_size", "diagnostics")


class Data(Struct, frozen=True, kw_only=True):
    """Which pictures, and who owns them."""

    name: str = "fashion-mnist-small"
    partition: Partition = "dirichlet"
    beta: float = 0.5
    balance: bool = True
    min_size: int = 10
    shards_per_client: int = 2
    image_size: int | None = None
    """The height and width of a folder's pictures; None: 224, or 64 for Tiny-ImageNet."""


class Members(Struct, frozen=True, kw_only=True):
    """The clients: whole numbers are counts, numbers with a point are fractions, rounded up."""

    num_clients: int | Literal["all"] = 50
    byzantine: int | float = 0.2
    sampled: int | float = 1.0
    assumed_byzantine: int | float | Literal["oracle"] = "oracle"


class Model(Struct, frozen=True, kw_only=True):
    """The network."""

    name: str = "small-cnn"


class Spec(Struct, frozen=True, kw_only=True):
    """One run."""

    rule: str = "gas(multi-krum)"
    attack: str = "lie"
    rounds: int = 50
    evaluate_every: int = 1
    seed: int = 0
    precision: Precision = "float32"
    root_size: int = 100
    aggregate: Literal["parameters", "state"] = "parameters"
    diagnostics: bool = False
    data: Data = msgspec.field(default_factory=Data)
    federation: Members = msgspec.field(default_factory=Members)
    model: Model = msgspec.field(default_factory=Model)
    training: LocalSGD = msgspec.field(default_factory=LocalSGD)
    server: Server = msgspec.field(default_factory=Server)

    @property
    def hash(self) -> str:
        """The checksum of all settings, and of the files that rules and attacks come from.

        Those are read anew every time: a `Job` keeps what it was when the plan was made.
        """
        code = digests(self.rule, self.attack)
        content = {"protocol": PROTOCOL, "spec": _as_hashed(self), "code": code}
        text = msgspec.json.encode(content, order="sorted")
        return hashlib.blake2b(text, digest_size=6).hexdigest()

    @property
    def label(self) -> str:
        """A readable name; together with the hash it is the name of the folder."""
        return f"{_slug(self.rule)}-{_slug(self.attack)}-seed{self.seed}"


def as_table(spec: Spec) -> dict[str, Any]:
    """Return the settings as plain values, without those of `LATER` that have their default."""
    table: dict[str, Any] = msgspec.to_builtins(spec)
    usual: dict[str, Any] = msgspec.to_builtins(Spec())
    for key in LATER:
        *above, last = key.split(".")
        inside, default = table, usual
        for word in above:
            inside, default = inside[word], default[word]
        if inside[last] == default[last]:
            del inside[last]
    return table


def _as_hashed(spec: Spec) -> dict[str, Any]:
    """Return the settings under the names that they had first, so that runs keep their names."""
    table = as_table(spec)
    for old, new in SETTINGS.items():
        section, _, key = new.partition(".")
        table[section][old.partition(".")[2]] = table[section].pop(key)
    return table


def _slug(text: str, longest: int = 40) -> str:
    words = "".join(c if c.isalnum() or c in "-." else " " for c in text).split()
    return "-".join(words)[:longest].strip("-.")
