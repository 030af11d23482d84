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
from outvote.data.array_dataset import IGNORED
from outvote.data.catalog import DATASETS
from outvote.engine.federation import Federation, make_federation
from outvote.engine.run_stack import Run, RunStack
from outvote.engine.simulation import make_run_stack
from outvote.experiment.dataset_cache import DataKey, DatasetCache, few_samples, samples_on
from outvote.experiment.run_spec import PARTITIONS, DataSpec, FederationSpec, RunSpec
from outvote.models.model_spec import (
    is_own_model,
    make_model,
    make_own_model,
)
from outvote.partition import (
    Indices,
    check_parts,
    partition_by_group,
    partition_dirichlet,
    partition_iid,
    partition_shards,
)
from outvote.rules.rule_spec import make_rule
from outvote.seeding import RandomStream
from outvote.server.selection import make_selection
from outvote.training.batches import check_batch_size, has_batch_norm
from outvote.training.choose_trainer import choose_trainer, is_random, try_model
from outvote.training.gpu_memory import free_on_gpu
from outvote.training.objective import Objective
from outvote.training.samples import Samples
from outvote.user_objects import find_object, find_own, is_own, is_user_object

# Updates, attacked updates, aggregates, and copies of them; trainers bound their own memory.
VECTORS_PER_CLIENT = 8
SHARE_OF_FREE = 0.6
SHARE_OF_FILES = 0.5
BYTES = 4
UNLIMITED = 1 << 30
MEMINFO = Path("/proc/meminfo")


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
            elif spec.data.partition in PARTITIONS and spec.data.partition != "iid":
                self.datasets.labels(spec.data)
            if is_user_object(spec.data.partition) or is_own("dataset", spec.data.name, DATASETS):
                self._federation(spec)
            is_of_classes = self.datasets.dataset(spec.data).num_classes is not None
            if not is_of_classes and make_attack(spec.attack).poisons_data:
                raise ValueError(
                    f"{spec.attack} changes class labels, and the targets of {spec.data.name} are "
                    "not classes; choose an attack on gradients."
                )
            spec.federation.check_sampled(self.num_clients(spec))
            training = (spec.training.batch_size, spec.training.augment)
            own = (spec.loss, spec.optimizer, spec.trainer, spec.theory)
            tried = (spec.data.key, spec.model.name, *training, *own)
            if tried not in seen:
                seen.add(tried)
                self._try_network(spec)

    def samples(self, data: DataSpec) -> tuple[Samples, Samples]:
        """Move training and test samples to the device; those of the dataset before are freed."""
        if data.key not in self._samples:
            self._samples.clear()
            self._federations.clear()
            found = self.datasets.dataset(data)
            self._samples[data.key] = (
                samples_on(self.device, found, found.train_inputs, found.train_targets),
                samples_on(self.device, found, found.test_inputs, found.test_targets),
            )
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
            uses_sample_counts=spec.federation.sample_counts,
            selection=make_selection(spec.federation.selection),
            root=self._root(spec) if rule.traits.needs_reference else None,
        )

    def stack(self, spec: RunSpec, runs: Sequence[Run]) -> RunStack:
        """Stack runs that share all but federation, attack, rule and seed."""
        found, groups = self.datasets.dataset(spec.data), None
        if spec.data.partition == "by-group" and found.test_groups is not None:
            groups = found.train_groups, found.test_groups
        return make_run_stack(
            self.network(spec),
            *self.samples(spec.data),
            runs,
            training=spec.training,
            num_classes=found.num_classes,
            server=spec.server,
            aggregate=spec.aggregate,
            precision=spec.precision,
            has_diagnostics=spec.diagnostics,
            has_theory=spec.theory,
            loss=_own(spec.loss, "loss"),
            optimizer=_own(spec.optimizer, "optimizer"),
            trainer=spec.trainer,
            groups=groups,
        )

    def network(self, spec: RunSpec) -> nn.Module:
        """Make the initial network of a run."""
        dataset = self.datasets.dataset(spec.data)
        if is_own_model(spec.model.name):
            seed = _seed(spec, "network")
            return make_own_model(find_own("model", spec.model.name), dataset.num_classes, seed)
        if dataset.num_classes is None:
            raise ValueError(
                f"model.name: {spec.model.name} is for classes, and the targets of "
                f"{spec.data.name} are none; give a model of your own."
            )
        return make_model(
            spec.model.name,
            num_classes=dataset.num_classes,
            input_shape=dataset.shape,
            seed=_seed(spec, "network"),
        )

    def label_counts(self, spec: RunSpec, federation: Federation) -> NDArray[np.int64]:
        """Count the targets of each class that every client owns; without classes, its samples."""
        dataset = self.datasets.dataset(spec.data)
        if dataset.num_classes is None:
            return np.array([[len(part)] for part in federation.parts], dtype=np.int64)
        counts = []
        for part in federation.parts:
            targets = dataset.train_targets[part.numpy()]
            counted = targets[targets != IGNORED]
            counts.append(np.bincount(counted, minlength=dataset.num_classes))
        return np.stack(counts).astype(np.int64)

    def most_runs(self, spec: RunSpec) -> int:
        """Estimate how many such runs fit into memory together, at least 1."""
        free = free_bytes(self.device)
        if free is None:
            return UNLIMITED
        dim = sum(map(Tensor.numel, self.network(spec).parameters()))
        # With momentum, every client keeps a vector from round to round.
        num_kept = self.num_clients(spec) if spec.training.client_momentum > 0 else 0
        per_run = BYTES * dim * (VECTORS_PER_CLIENT * self.num_sampled(spec) + num_kept)
        return max(1, int(SHARE_OF_FREE * free) // per_run)

    def _try_network(self, spec: RunSpec) -> None:
        """Try a network on a few samples: a listed one forward, else also the loss and a step."""
        found = self.datasets.dataset(spec.data)
        if spec.training.augment and found.mean is None:
            raise ValueError(
                f"training.augment is for images stored as bytes, got true for {spec.data.name}; "
                "leave it out."
            )
        network = self.network(spec)
        samples = few_samples(found)
        loss, optimizer = _own(spec.loss, "loss"), _own(spec.optimizer, "optimizer")
        if is_own_model(spec.model.name) or loss or optimizer:
            if spec.diagnostics and optimizer:
                raise ValueError("diagnostics measure plain gradients; leave out the optimizer.")
            objective = Objective.of(
                samples.targets, loss, has_classes=found.num_classes is not None
            )
            try_model(network, samples, objective, optimizer, num_classes=found.num_classes)
        else:
            self._try_listed(spec, network, samples)
        check_batch_size(network, spec.training)
        if spec.theory:
            _check_loss_is_plain(spec.model.name, network, samples)
        if spec.trainer != "auto":
            objective = Objective.of(
                samples.targets, loss, has_classes=found.num_classes is not None
            )
            choose_trainer(network, samples, objective, optimizer, name=spec.trainer)

    def _try_listed(self, spec: RunSpec, network: nn.Module, samples: Samples) -> None:
        found = self.datasets.dataset(spec.data)
        try:
            with torch.no_grad():
                network.eval()(*samples.inputs(torch.zeros(1, dtype=torch.int64)))
        except (RuntimeError, ValueError) as error:
            kind = "images" if found.mean else "samples"
            size = " x ".join(str(each) for each in found.shape[:2])
            raise ValueError(
                f"model.name: {spec.model.name} cannot take the {size} {kind} of "
                f"{spec.data.name} ({str(error).splitlines()[0].rstrip('.')}); choose another "
                "network or dataset."
            ) from error

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
        num_samples = len(self.datasets.dataset(spec.data).train_targets)
        if spec.root_size > num_samples:
            raise ValueError(
                f"root_size must be at most the {num_samples} training samples, got "
                f"{spec.root_size}."
            )
        stream = RandomStream((spec.seed,)).fold_in("root")
        order = stream.permutations(num_samples, torch.device("cpu"))[0]
        return order[: spec.root_size].long()


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
    if is_user_object(data.partition):
        targets, found = datasets.dataset(data).train_targets, _own(data.partition, "partition")
        parts = found(targets, *shared.values()) if callable(found) else found
        return check_parts(parts, len(targets))
    if data.partition == "by-group":
        return partition_by_group(datasets.groups(data), **shared)
    if data.partition == "iid":
        num_samples = len(datasets.dataset(data).train_targets)
        return partition_iid(np.zeros(num_samples, dtype=np.int64), **shared)
    labels = datasets.labels(data)
    if data.partition == "shards":
        return partition_shards(labels, shards_per_client=data.shards_per_client, **shared)
    chosen = {name: getattr(data, name) for name in ("beta", "balance", "min_size")}
    return partition_dirichlet(labels, **chosen, **shared)


def _seed(spec: RunSpec, name: str) -> int:
    return RandomStream((spec.seed,)).fold_in(name).derived()[0]


def _own(text: str, kind: str) -> Any:
    """Return a user's object; None for the name of something built in."""
    return find_object(text, kind) if is_user_object(text) else None


def _check_loss_is_plain(name: str, network: nn.Module, samples: Samples) -> None:
    """Refuse networks whose loss is not a mean over samples and a function of the weights."""
    reason = ""
    if has_batch_norm(network):
        reason = "with batch normalisation, where a gradient depends on the whole batch"
    elif is_random(network, samples):
        reason = "that draws random numbers (dropout), where a loss is one draw of many"
    if reason:
        raise ValueError(
            f"theory = true is for networks whose loss is a mean over samples, got {name} "
            f"{reason}; take another network, or leave theory out."
        )
