"""From settings to what the engine runs: datasets, federations, networks, run stacks."""

import os
import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from outvote.attacks.attack_spec import make_attack
from outvote.data.array_dataset import ArrayDataset, make_dataset
from outvote.data.checksum import sha256_of
from outvote.data.dataset import Dataset
from outvote.data.loader import load
from outvote.engine.federation import Federation, make_federation
from outvote.engine.run_stack import Run, RunStack
from outvote.engine.simulation import make_run_stack
from outvote.experiment.run_spec import DataSpec, FederationSpec, RunSpec
from outvote.models.model_spec import make_model, make_own_model
from outvote.partition import (
    Indices,
    check_parts,
    partition_by_group,
    partition_dirichlet,
    partition_iid,
    partition_shards,
)
from outvote.results.schema import DataUsed
from outvote.rules.rule_spec import make_rule
from outvote.seeding import RandomStream
from outvote.training.batch_norm import check_batch_size
from outvote.training.gpu_memory import free_on_gpu
from outvote.training.objective import Objective
from outvote.training.samples import ArraySamples, ByteImages, Samples
from outvote.training.trial import try_model
from outvote.user_objects import find_object, is_user_object

# Updates, attacked updates, aggregates, and copies of them; trainers bound their own memory.
VECTORS_PER_CLIENT = 8
SHARE_OF_FREE = 0.6
SHARE_OF_FILES = 0.5
BYTES = 4
UNLIMITED = 1 << 30
MEMINFO = Path("/proc/meminfo")
DataKey = tuple[str, int | None]
AnyDataset = Dataset | ArrayDataset
CPU = torch.device("cpu")
FEW = 8
"""Samples that a model is tried on."""


@final
class DatasetCache:
    """The datasets of a sweep: each is loaded once, and identified by its checksum."""

    def __init__(self) -> None:
        """Start empty."""
        self._datasets: dict[DataKey, AnyDataset] = {}
        self._used: dict[DataKey, DataUsed] = {}
        self._num_groups: dict[DataKey, int] = {}

    def dataset(self, data: DataSpec) -> AnyDataset:
        """Return a dataset; the first time it is loaded."""
        if data.key not in self._datasets:
            is_own = is_user_object(data.name)
            found = load_own(data.name) if is_own else load(data.name, size=data.image_size)
            self._datasets[data.key] = found
        return self._datasets[data.key]

    def used(self, data: DataSpec) -> DataUsed:
        """Return the source, sizes and checksum of a dataset."""
        if data.key not in self._used:
            found = self.dataset(data)
            self._used[data.key] = DataUsed(
                name=found.name,
                source=found.source,
                num_train=num_train(found),
                num_test=num_test(found),
                checksum=sha256_of(*arrays_of(found)),
            )
        return self._used[data.key]

    def groups(self, data: DataSpec) -> NDArray[Any]:
        """Return the group (writer) of every training sample."""
        found = self.dataset(data).train_groups
        if found is None:
            raise ValueError(
                f"data.partition = 'by-group' needs groups of samples, and {data.name} has none; "
                "choose another partition, or pass groups."
            )
        return found

    def num_groups(self, data: DataSpec) -> int:
        """Return how many groups there are; asked for every run, counted once."""
        if data.key not in self._num_groups:
            self._num_groups[data.key] = len(np.unique(self.groups(data)))
        return self._num_groups[data.key]


@final
class RunBuilder:
    """Builds runs; what several runs share is built once."""

    def __init__(self, device: torch.device) -> None:
        """Take the device to train on."""
        self.device = device
        self.datasets = DatasetCache()
        self._samples: dict[DataKey, tuple[Samples, Samples]] = {}
        self._federations: dict[tuple[DataSpec, FederationSpec, int], Federation] = {}

    def check(self, specs: Sequence[RunSpec]) -> None:
        """Load the data and try each network on one sample; a fault is a ValueError."""
        seen = set()
        for spec in specs:
            if spec.precision == "bfloat16" and self.device.type == "cpu":
                raise ValueError(
                    "precision must be 'float32' or 'tf32' on a CPU, got 'bfloat16'; change it, or "
                    "take --device cuda."
                )
            if spec.data.partition == "by-group":
                self.datasets.groups(spec.data)
            spec.federation.check_assumed(self.num_sampled(spec))
            training = (spec.training.batch_size, spec.loss, spec.optimizer)
            tried = (spec.data.key, spec.model.name, *training)
            if tried not in seen:
                seen.add(tried)
                self._try_network(spec)
            if is_user_object(spec.data.partition):
                self._federation(spec)

    def samples(self, data: DataSpec) -> tuple[Samples, Samples]:
        """Move training and test samples to the device; those of the dataset before are freed."""
        if data.key not in self._samples:
            self._samples.clear()
            self._federations.clear()
            self._samples[data.key] = samples_on(self.device, self.datasets.dataset(data))
        return self._samples[data.key]

    def num_clients(self, spec: RunSpec) -> int:
        """Return how many clients there are, without a partition."""
        number = spec.federation.num_clients
        return number if isinstance(number, int) else self.datasets.num_groups(spec.data)

    def num_sampled(self, spec: RunSpec) -> int:
        """Return how many of them take part in a round."""
        return spec.federation.num_sampled(self.num_clients(spec))

    def run(self, spec: RunSpec) -> Run:
        """Build one run."""
        federation = self._federation(spec)
        rule = make_rule(spec.rule)
        assumed = spec.federation.assumed_byzantine
        return Run(
            federation=federation,
            attack=make_attack(spec.attack),
            rule=rule,
            seed=spec.seed,
            num_sampled=spec.federation.num_sampled(federation.num_clients),
            assumed_byzantine=None if isinstance(assumed, str) else assumed,
            root=self._root(spec) if rule.traits.needs_reference else None,
        )

    def stack(self, spec: RunSpec, runs: Sequence[Run]) -> RunStack:
        """Stack runs that share all but federation, attack, rule and seed."""
        return make_run_stack(
            self.network(spec),
            *self.samples(spec.data),
            runs,
            training=spec.training,
            num_classes=self.datasets.dataset(spec.data).num_classes,
            server=spec.server,
            aggregate=spec.aggregate,
            precision=spec.precision,
            has_diagnostics=spec.diagnostics,
            loss=_own(spec.loss, "loss"),
            optimizer=_own(spec.optimizer, "optimizer"),
            trainer=spec.trainer,
        )

    def network(self, spec: RunSpec) -> nn.Module:
        """Make the initial network of a run."""
        dataset = self.datasets.dataset(spec.data)
        if is_user_object(spec.model.name):
            seed = _seed(spec, "network")
            return make_own_model(_own(spec.model.name, "model"), dataset.num_classes, seed)
        if isinstance(dataset, ArrayDataset):
            raise ValueError(  # noqa: TRY004  (a setting is a value)
                f"model.name: {spec.model.name} takes the images of a listed dataset, got "
                f"{dataset.name}; pass a model of your own."
            )
        return make_model(
            spec.model.name,
            num_classes=dataset.num_classes,
            image_shape=dataset.shape,
            seed=_seed(spec, "network"),
        )

    def label_counts(self, spec: RunSpec, federation: Federation) -> NDArray[np.int64]:
        """Count the targets of each class that every client owns; without classes, the samples."""
        dataset = self.datasets.dataset(spec.data)
        if dataset.num_classes is None:
            return np.array([[len(part)] for part in federation.parts], dtype=np.int64)
        targets = targets_of(dataset)
        own = [targets[part.numpy()].reshape(-1) for part in federation.parts]
        counts = [np.bincount(x[x >= 0], minlength=dataset.num_classes) for x in own]
        return np.stack(counts).astype(np.int64)

    def most_runs(self, spec: RunSpec) -> int:
        """Estimate how many such runs fit into memory together, at least 1."""
        free = free_bytes(self.device)
        if free is None:
            return UNLIMITED
        dim = sum(parameter.numel() for parameter in self.network(spec).parameters())
        # With momentum, every client keeps a vector from round to round.
        num_kept = self.num_clients(spec) if spec.training.client_momentum > 0 else 0
        per_run = BYTES * dim * (VECTORS_PER_CLIENT * self.num_sampled(spec) + num_kept)
        return max(1, int(SHARE_OF_FREE * free) // per_run)

    def _try_network(self, spec: RunSpec) -> None:
        dataset = self.datasets.dataset(spec.data)
        if spec.training.augment and isinstance(dataset, ArrayDataset):
            raise ValueError("training.augment is for the images of listed datasets; leave it out.")
        if not isinstance(dataset, Dataset) or is_user_object(spec.model.name) or spec.has_own:
            network = self.network(spec)
            loss, optimizer = _own(spec.loss, "loss"), _own(spec.optimizer, "optimizer")
            if spec.diagnostics and optimizer is not None:
                raise ValueError("diagnostics measure plain gradients; leave out the optimizer.")
            few = samples_on(CPU, dataset, FEW)[0]
            objective = Objective(loss, has_classes=dataset.num_classes is not None)
            try_model(network, few, objective, optimizer, num_classes=dataset.num_classes)
            check_batch_size(network, spec.training)
            return
        height, width, channels = dataset.shape
        try:
            network = self.network(spec).eval()
            with torch.no_grad():
                network(torch.zeros(1, channels, height, width))
        except (RuntimeError, ValueError) as error:
            raise ValueError(
                f"model.name: {spec.model.name} cannot take the {height} x {width} images of "
                f"{spec.data.name} ({str(error).splitlines()[0].rstrip('.')}); choose another "
                "network or dataset."
            ) from error
        check_batch_size(network, spec.training)

    def _federation(self, spec: RunSpec) -> Federation:
        key = (spec.data, spec.federation, spec.seed)
        if key not in self._federations:
            byzantine = spec.federation.byzantine
            self._federations[key] = make_federation(
                _partition(spec, self.datasets),
                num_byzantine=byzantine if isinstance(byzantine, int) else None,
                fraction=float(byzantine),
                seed=spec.seed,
            )
        return self._federations[key]

    def _root(self, spec: RunSpec) -> Tensor:
        num_samples = num_train(self.datasets.dataset(spec.data))
        if spec.root_size > num_samples:
            raise ValueError(
                f"root_size must be at most the {num_samples} training samples, got "
                f"{spec.root_size}."
            )
        stream = RandomStream((spec.seed,)).fold_in("root")
        order = stream.permutations(num_samples, torch.device("cpu"))[0]
        return order[: spec.root_size].long()


def load_own(name: str) -> ArrayDataset:
    """Load a user's dataset: an `ArrayDataset`, or a function that returns what `simulate` takes.

    The function returns ``(train, test)`` or ``(train, test, groups)``.
    """
    found = find_object(name, "dataset")
    found = found() if callable(found) else found
    if isinstance(found, ArrayDataset):
        return found
    if not isinstance(found, tuple) or len(found) not in (2, 3):
        raise ValueError(
            f"data.name: {name} must return (train, test) or (train, test, groups), got "
            f"{type(found).__name__}."
        )
    return make_dataset(*found[:2], name=name, groups=found[2] if len(found) == 3 else None)


def samples_on(
    device: torch.device, dataset: AnyDataset, number: int | None = None
) -> tuple[Samples, Samples]:
    """Move the training and test samples to a device; `number`: only the first ones."""
    some = slice(number)
    if isinstance(dataset, ArrayDataset):
        last = dataset.is_channels_last
        pairs = (
            (dataset.train_inputs, dataset.train_targets),
            (dataset.test_inputs, dataset.test_targets),
        )
        train, test = (
            ArraySamples(
                [each[some] for each in inputs],
                targets[some],
                device=device,
                is_channels_last=last,
            )
            for inputs, targets in pairs
        )
        return train, test
    same: dict[str, Any] = {"mean": dataset.mean, "std": dataset.std, "device": device}
    return (
        ByteImages(dataset.train_images[some], dataset.train_labels[some], **same),
        ByteImages(dataset.test_images[some], dataset.test_labels[some], **same),
    )


def targets_of(dataset: AnyDataset) -> NDArray[Any]:
    """Return the targets of the training samples."""
    return dataset.train_targets if isinstance(dataset, ArrayDataset) else dataset.train_labels


def num_train(dataset: AnyDataset) -> int:
    """Return how many training samples there are."""
    return len(targets_of(dataset))


def num_test(dataset: AnyDataset) -> int:
    """Return how many test samples there are."""
    if isinstance(dataset, ArrayDataset):
        return len(dataset.test_targets)
    return len(dataset.test_labels)


def arrays_of(dataset: AnyDataset) -> list[NDArray[Any]]:
    """Return all arrays of a dataset, in the order in which its checksum takes them."""
    if isinstance(dataset, ArrayDataset):
        groups = [] if dataset.train_groups is None else [dataset.train_groups]
        inputs = (*dataset.train_inputs, *dataset.test_inputs)
        return [*inputs, dataset.train_targets, dataset.test_targets, *groups]
    groups = [each for each in (dataset.train_groups, dataset.test_groups) if each is not None]
    images = (dataset.train_images, dataset.test_images)
    return [*images, dataset.train_labels, dataset.test_labels, *groups]


def _own(text: str, kind: str) -> Any:
    """Return a user's object; None for the name of something built in."""
    return find_object(text, kind) if is_user_object(text) else None


def most_locks() -> int:
    """Return how many run folders can be locked at once: each is an open file."""
    if find_spec("resource") is None:
        return UNLIMITED
    import resource  # Windows has none.

    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return UNLIMITED
    num_open = len(list(Path("/dev/fd").iterdir()))
    return max(1, int(SHARE_OF_FILES * (limit - num_open)))


def free_bytes(device: torch.device) -> int | None:
    """Return how much memory is free; None: unknown."""
    if device.type == "cuda":
        return free_on_gpu(device)
    # Unlike free pages, it counts the cache of files, which the system gives back.
    text = MEMINFO.read_text() if MEMINFO.is_file() else ""
    if found := re.search(r"^MemAvailable:\s*(\d+)", text, re.MULTILINE):
        return int(found[1]) * 1024
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def _partition(spec: RunSpec, datasets: DatasetCache) -> list[Indices]:
    data, number = spec.data, spec.federation.num_clients
    shared: dict[str, Any] = {
        "num_clients": None if number == "all" else number,
        "seed": _seed(spec, "partition"),
    }
    dataset = datasets.dataset(data)
    if is_user_object(data.partition):
        found = _own(data.partition, "partition")
        parts = found(targets_of(dataset), *shared.values()) if callable(found) else found
        return check_parts(parts, num_train(dataset))
    if data.partition == "by-group":
        return partition_by_group(datasets.groups(data), **shared)
    if data.partition == "iid":
        return partition_iid(np.zeros(num_train(dataset), dtype=np.int64), **shared)
    labels = dataset.train_labels
    if labels is None:
        raise ValueError(
            f"data.partition = {data.partition!r} needs one class per sample, and {data.name} has "
            "other targets; choose iid or by-group, or pass a list of indices."
        )
    if data.partition == "shards":
        return partition_shards(labels, shards_per_client=data.shards_per_client, **shared)
    chosen = {name: getattr(data, name) for name in ("beta", "balance", "min_size")}
    return partition_dirichlet(labels, **chosen, **shared)


def _seed(spec: RunSpec, name: str) -> int:
    return RandomStream((spec.seed,)).fold_in(name).derived()[0]
