"""From settings to what the engine plays."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from outvote.attacks.attack_spec import make_attack
from outvote.data.dataset import Dataset
from outvote.engine.federation import Federation, make_federation
from outvote.engine.run_stack import Run, RunStack
from outvote.engine.simulation import make_run_stack
from outvote.experiment.checking import num_sampled
from outvote.experiment.dataset_cache import DatasetCache, Wanted, wanted
from outvote.experiment.spec import Data, Members, Spec
from outvote.models.model_spec import make_model
from outvote.partition import (
    partition_by_group,
    partition_dirichlet,
    partition_iid,
    partition_shards,
)
from outvote.rules.rule_spec import make_rule
from outvote.seeding import RandomStream
from outvote.training.samples import Samples


@final
@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """A dataset, and its pictures on the training device."""

    dataset: Dataset
    train: Samples
    test: Samples


@final
class RunBuilder:
    """Builds runs; what several of them share is made once."""

    def __init__(self, device: torch.device) -> None:
        """Take the device to train on."""
        self.device = device
        self.datasets = DatasetCache()
        self._loaded: dict[Wanted, Loaded] = {}
        self._federations: dict[tuple[Data, Members, int], Federation] = {}

    def loaded(self, data: Data) -> Loaded:
        """Put the pictures of a dataset onto the device; those of the one before are let go."""
        key = wanted(data)
        if key not in self._loaded:
            self._loaded.clear()
            self._federations.clear()
            found = self.datasets.dataset(data)
            self._loaded[key] = Loaded(
                found,
                self._pictures(found, found.train_images, found.train_labels),
                self._pictures(found, found.test_images, found.test_labels),
            )
        return self._loaded[key]

    def num_clients(self, spec: Spec) -> int:
        """Return how many clients there are; for that alone nothing is partitioned."""
        number = spec.federation.num_clients
        return number if isinstance(number, int) else self.datasets.num_groups(spec.data)

    def num_sampled(self, spec: Spec) -> int:
        """Return how many of them take part in a round."""
        return num_sampled(spec.federation, self.num_clients(spec))

    def run(self, spec: Spec) -> Run:
        """Build one run."""
        federation = self._federation(spec)
        rule = make_rule(spec.rule)
        assumed = spec.federation.assumed_byzantine
        return Run(
            federation=federation,
            attack=make_attack(spec.attack),
            rule=rule,
            seed=spec.seed,
            num_sampled=num_sampled(spec.federation, federation.num_clients),
            assumed_byzantine=None if isinstance(assumed, str) else assumed,
            root=self._root(spec) if rule.traits.needs_reference else None,
        )

    def stack(self, spec: Spec, runs: Sequence[Run]) -> RunStack:
        """Put runs together that share all but federation, attack, rule and seed."""
        loaded = self.loaded(spec.data)
        return make_run_stack(
            self.network(spec),
            loaded.train,
            loaded.test,
            runs,
            training=spec.training,
            num_classes=loaded.dataset.num_classes,
            server=spec.server,
            aggregate=spec.aggregate,
            precision=spec.precision,
            has_diagnostics=spec.diagnostics,
        )

    def network(self, spec: Spec) -> nn.Module:
        """Make the network that a run starts with."""
        dataset = self.datasets.dataset(spec.data)
        return make_model(
            spec.model.name,
            num_classes=dataset.num_classes,
            image_shape=dataset.shape,
            seed=_seed(spec, "network"),
        )

    def label_counts(self, spec: Spec, federation: Federation) -> NDArray[np.int64]:
        """Count the pictures of each class that every client owns."""
        dataset = self.datasets.dataset(spec.data)
        return np.stack(
            [
                np.bincount(dataset.train_labels[part.numpy()], minlength=dataset.num_classes)
                for part in federation.parts
            ]
        ).astype(np.int64)

    def _federation(self, spec: Spec) -> Federation:
        key = (spec.data, spec.federation, spec.seed)
        if key not in self._federations:
            parts = _partition(spec, self.datasets)
            liars = spec.federation.byzantine
            self._federations[key] = make_federation(
                parts,
                num_byzantine=liars if isinstance(liars, int) else None,
                fraction=float(liars),
                seed=spec.seed,
            )
        return self._federations[key]

    def _root(self, spec: Spec) -> Tensor:
        num_samples = len(self.datasets.dataset(spec.data).train_labels)
        if spec.root_size > num_samples:
            raise ValueError(
                f"root_size must be at most the {num_samples} training pictures, got "
                f"{spec.root_size}."
            )
        stream = RandomStream((spec.seed,)).fold_in("root")
        order = stream.permutations(num_samples, torch.device("cpu"))[0]
        return order[: spec.root_size].long()

    def _pictures(self, dataset: Dataset, images: Any, labels: Any) -> Samples:
        return Samples(images, labels, mean=dataset.mean, std=dataset.std, device=self.device)


def _partition(spec: Spec, datasets: DatasetCache) -> list[Any]:
    data, number, seed = spec.data, spec.federation.num_clients, _seed(spec, "partition")
    if data.partition == "by-group":
        wanted = None if isinstance(number, str) else number
        groups = datasets.groups(data)
        return list(partition_by_group(groups, num_clients=wanted, seed=seed))
    labels = datasets.dataset(data).train_labels
    assert isinstance(number, int)
    if data.partition == "iid":
        return list(partition_iid(labels, num_clients=number, seed=seed))
    if data.partition == "shards":
        each = data.shards_per_client
        return list(partition_shards(labels, num_clients=number, shards_per_client=each, seed=seed))
    return list(
        partition_dirichlet(
            labels,
            num_clients=number,
            beta=data.beta,
            seed=seed,
            balance=data.balance,
            min_size=data.min_size,
        )
    )


def _seed(spec: Spec, what: str) -> int:
    return RandomStream((spec.seed,)).fold_in(what).derived()[0]
