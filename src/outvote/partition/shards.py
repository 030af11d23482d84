"""Shards: sort by label, cut into equal shards, deal a few to each client."""

from typing import Any

import numpy as np

from outvote.partition.checks import Indices, check_count, check_enough, check_labels, in_order
from outvote.seeding import Seed, seed_from


def partition_shards(
    labels: Any, *, num_clients: int, shards_per_client: int = 2, seed: Seed = None
) -> list[Indices]:
    """Give every client a few shards of samples sorted by label, so that it sees few classes.

    Which samples of a class share a shard is random, and so is who gets which shard. Sizes of
    shards differ by one at most. Returns one int64 array of sample indices per client, in
    increasing order.

    Reference: McMahan et al., AISTATS 2017.

    >>> labels = [0, 1, 0, 1, 0, 1, 0, 1]
    >>> parts = partition_shards(labels, num_clients=2, shards_per_client=1, seed=0)
    >>> [part.tolist() for part in parts]
    [[0, 2, 4, 6], [1, 3, 5, 7]]
    """
    array = check_labels(labels)
    num_clients = check_count("num_clients", num_clients)
    num_shards = num_clients * check_count("shards_per_client", shards_per_client)
    check_enough(num_shards, len(array), "num_clients * shards_per_client")
    random = np.random.default_rng(seed_from(seed))
    shuffled = random.permutation(len(array))
    by_label = shuffled[np.argsort(array[shuffled], kind="stable")]
    shards = np.array_split(by_label, num_shards)
    dealt = random.permutation(num_shards).reshape(num_clients, -1)
    return in_order(np.concatenate([shards[shard] for shard in part]) for part in dealt)
