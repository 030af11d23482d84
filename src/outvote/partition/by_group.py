"""By group: samples that belong together (of one writer, one device) stay together."""

from typing import Any

import numpy as np

from outvote.partition.checks import Indices, check_count, in_order
from outvote.seeding import Seed, seed_from


def partition_by_group(
    groups: Any, *, num_clients: int | None = None, seed: Seed = None
) -> list[Indices]:
    """Make every group a client, or deal whole groups to fewer clients at random.

    `groups` has one number or name per sample. Without `num_clients` there is one client per
    group, in the order of the sorted groups, and nothing is random. With it, the numbers of groups
    per client differ by one at most. Returns one int64 array of sample indices per client, in
    increasing order.

    >>> [part.tolist() for part in partition_by_group(["ann", "bob", "ann", "cyd"])]
    [[0, 2], [1], [3]]
    """
    array = np.asarray(groups)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(
            "groups must be a list with one group per sample, "
            f"got the shape {array.shape}; pass the train_groups of a dataset that has some."
        )
    if array.dtype.kind not in "iuUS":
        raise TypeError(f"groups must be whole numbers or names, got {array.dtype}.")
    members = _members(array)
    if num_clients is None:
        return in_order(members)
    num_clients = check_count("num_clients", num_clients)
    if num_clients > len(members):
        raise ValueError(
            f"num_clients must be at most the number of groups, {len(members)}, got "
            f"{num_clients}; take fewer clients."
        )
    order = np.random.default_rng(seed_from(seed)).permutation(len(members))
    dealt = np.array_split(order, num_clients)
    return in_order(np.concatenate([members[group] for group in part]) for part in dealt)


def _members(groups: np.ndarray[Any, Any]) -> list[Indices]:
    """List the samples of every group."""
    _, counts = np.unique(groups, return_counts=True)
    return np.split(np.argsort(groups, kind="stable"), np.cumsum(counts)[:-1])
