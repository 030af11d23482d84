"""IID: a random equal split, every client looks like the whole."""

from typing import Any

import numpy as np

from outvote.partition.checks import Indices, check_count, check_enough, check_labels, in_order
from outvote.seeding import Seed, seed_from


def partition_iid(labels: Any, *, num_clients: int, seed: Seed = None) -> list[Indices]:
    """Split the samples at random into equal parts; sizes differ by one at most.

    Returns one int64 array of sample indices per client, in increasing order.

    >>> [part.tolist() for part in partition_iid([0, 0, 1, 1, 1], num_clients=2, seed=0)]
    [[2, 3, 4], [0, 1]]
    """
    num_samples = len(check_labels(labels))
    num_clients = check_count("num_clients", num_clients)
    check_enough(num_clients, num_samples)
    order = np.random.default_rng(seed_from(seed)).permutation(num_samples)
    return in_order(np.array_split(order, num_clients))
