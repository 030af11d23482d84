"""Partitions: labels or groups in, the samples of every client out."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outvote.seeding import Seed, seed_from

Indices = NDArray[np.int64]
MOST_DRAWS = 10_000

__all__ = ["partition_by_group", "partition_dirichlet", "partition_iid", "partition_shards"]


def partition_iid(labels: Any, *, num_clients: int, seed: Seed = None) -> list[Indices]:
    """Split the samples at random into equal parts; sizes differ by one at most.

    Returns one int64 array of sample indices per client, in increasing order.

    >>> [part.tolist() for part in partition_iid([0, 0, 1, 1, 1], num_clients=2, seed=0)]
    [[2, 3, 4], [0, 1]]
    """
    num_samples = len(_check_labels(labels))
    num_clients = _check_count("num_clients", num_clients)
    _check_enough(num_clients, num_samples)
    order = np.random.default_rng(seed_from(seed)).permutation(num_samples)
    return _in_order(np.array_split(order, num_clients))


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
    array = _check_labels(labels)
    num_clients = _check_count("num_clients", num_clients)
    num_shards = num_clients * _check_count("shards_per_client", shards_per_client)
    _check_enough(num_shards, len(array), "num_clients * shards_per_client")
    random = np.random.default_rng(seed_from(seed))
    shuffled = random.permutation(len(array))
    by_label = shuffled[np.argsort(array[shuffled], kind="stable")]
    shards = np.array_split(by_label, num_shards)
    dealt = random.permutation(num_shards).reshape(num_clients, -1)
    return _in_order(np.concatenate([shards[shard] for shard in part]) for part in dealt)


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
    _, counts = np.unique(array, return_counts=True)
    members = np.split(np.argsort(array, kind="stable"), np.cumsum(counts)[:-1])
    if num_clients is None:
        return _in_order(members)
    num_clients = _check_count("num_clients", num_clients)
    if num_clients > len(members):
        raise ValueError(
            f"num_clients must be at most the number of groups, {len(members)}, got "
            f"{num_clients}; take fewer clients."
        )
    order = np.random.default_rng(seed_from(seed)).permutation(len(members))
    dealt = np.array_split(order, num_clients)
    return _in_order(np.concatenate([members[group] for group in part]) for part in dealt)


def partition_dirichlet(
    labels: Any,
    *,
    num_clients: int,
    beta: float,
    seed: Seed = None,
    balance: bool = True,
    min_size: int = 10,
) -> list[Indices]:
    r"""Share every class among the clients in proportions from a Dirichlet distribution.

    $$ p^y \sim Dir(\beta, ..., \beta) $$

    The smaller `beta`, the more the clients differ. With `balance`, a client that already has its
    equal share (samples / clients) gets nothing of the classes still to come, as in NIID-Bench.
    All is redrawn until every client has `min_size` samples. Returns one int64 array of sample
    indices per client, in increasing order; every sample belongs to exactly one client.

    Differs from the paper: it has "for each client", but describes this draw for each class.
    Reference: Li et al., Federated learning on non-IID data silos, ICDE 2022.

    >>> parts = partition_dirichlet([0, 1] * 50, num_clients=4, beta=0.5, seed=0)
    >>> sum(len(part) for part in parts), min(len(part) for part in parts) >= 10
    (100, True)
    """
    array = _check_labels(labels)
    num_clients = _check_count("num_clients", num_clients)
    min_size = _check_count("min_size", min_size, least=0)
    _check_beta(beta)
    _check_possible(len(array), num_clients, min_size)
    random = np.random.default_rng(seed_from(seed))
    classes, counts = np.unique(array, return_counts=True)
    for _ in range(MOST_DRAWS):
        shares = _draw(counts, num_clients, float(beta), balance, random)
        if shares.sum(axis=0).min() >= min_size:
            return _deal([np.flatnonzero(array == label) for label in classes], shares, random)
    raise ValueError(
        f"no draw of {MOST_DRAWS:,} gave each of {num_clients} clients {min_size} samples (beta "
        f"{beta}, {len(array)} samples); take a larger beta, a smaller min_size, fewer clients or "
        "more data."
    )


def _draw(
    counts: NDArray[np.intp],
    num_clients: int,
    beta: float,
    balance: bool,
    random: np.random.Generator,
) -> NDArray[np.int64]:
    """Draw how many samples of each class every client gets, [classes, clients]."""
    shares = np.zeros((len(counts), num_clients), dtype=np.int64)
    held = np.zeros(num_clients, dtype=np.int64)
    for label, count in enumerate(counts):
        is_open = held * num_clients < counts.sum() if balance else np.ones(num_clients, dtype=bool)
        # A Dirichlet draw with some entries set to zero and the rest scaled up again is a
        # Dirichlet draw over the rest. Drawn like this, rounding cannot give a sample to a client
        # that was set to zero, and the rest cannot be all zeros.
        proportions = random.dirichlet(np.full(int(is_open.sum()), beta))
        cuts = np.floor(np.cumsum(proportions)[:-1] * count).astype(np.int64)
        shares[label, is_open] = np.diff(cuts, prepend=0, append=count)
        held += shares[label]
    return shares


def _deal(
    members: list[Indices], shares: NDArray[np.int64], random: np.random.Generator
) -> list[Indices]:
    """Shuffle every class and deal its samples to the clients."""
    parts: list[list[Indices]] = [[] for _ in range(shares.shape[1])]
    for samples, share in zip(members, shares, strict=True):
        pieces = np.split(random.permutation(samples), np.cumsum(share)[:-1])
        for part, piece in zip(parts, pieces, strict=True):
            part.append(piece)
    return _in_order(np.concatenate(part) for part in parts)


def _check_beta(beta: Any) -> None:
    if isinstance(beta, bool) or not isinstance(beta, int | float | np.integer | np.floating):
        raise TypeError(f"beta must be a number, got {beta!r}.")
    if not 0 < beta < float("inf"):
        raise ValueError(
            f"beta must be larger than 0 and finite, got {beta}; 0.5 is usual, partition_iid is "
            "the limit for large ones."
        )


def _check_possible(num_samples: int, num_clients: int, min_size: int) -> None:
    if num_clients * max(1, min_size) > num_samples:
        raise ValueError(
            f"{num_clients} clients with at least {max(1, min_size)} samples each need "
            f"{num_clients * max(1, min_size)} samples, got {num_samples}; take fewer clients, a "
            "smaller min_size or more data."
        )


def _check_labels(labels: Any) -> NDArray[np.integer]:
    array = np.asarray(labels)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(
            f"labels must be a list with one label per sample, got the shape {array.shape}; "
            "pass labels.reshape(-1) of a dataset that is not empty."
        )
    if not np.issubdtype(array.dtype, np.integer):
        raise TypeError(
            f"labels must be whole numbers, got {array.dtype}; number the classes from 0."
        )
    return array


def _check_count(what: str, value: Any, least: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{what} must be a whole number, got {value!r}.")
    if value < least:
        raise ValueError(f"{what} must be {least} or larger, got {value}.")
    return int(value)


def _check_enough(num_parts: int, num_samples: int, what: str = "num_clients") -> None:
    if num_parts > num_samples:
        raise ValueError(
            f"{what} must be at most the number of samples, {num_samples}, got {num_parts}; "
            "take fewer clients or more data."
        )


def _in_order(parts: Iterable[NDArray[np.integer]]) -> list[Indices]:
    """Return every client's samples in increasing order."""
    return [np.sort(part).astype(np.int64, copy=False) for part in parts]


def check_parts(parts: Any, num_samples: int) -> list[Indices]:
    """Check that every sample belongs to exactly one client; return the indices as arrays."""
    found = []
    for client, part in enumerate(parts):
        indices = np.asarray(part)
        if indices.ndim != 1 or indices.dtype.kind not in "iu":
            raise ValueError(
                f"partition: the samples of client {client} must be a list of indices, got "
                f"{indices.dtype} of the shape {list(indices.shape)}."
            )
        if indices.size == 0:
            raise ValueError(f"partition: client {client} of {len(parts)} owns no sample.")
        if indices.min() < 0 or indices.max() >= num_samples:
            raise ValueError(
                f"partition: indices must be from 0 to {num_samples - 1}, client {client} has "
                f"{indices.min()} to {indices.max()}."
            )
        found.append(indices.astype(np.int64))
    if not found:
        raise ValueError("partition must have at least one client, got none.")
    counts = np.bincount(np.concatenate(found), minlength=num_samples)
    if counts.max() > 1:
        sample = int(counts.argmax())
        raise ValueError(
            f"partition: clients must not share samples, {int((counts > 1).sum())} belong to "
            f"several, such as sample {sample}; give each to one client."
        )
    if counts.min() == 0:
        raise ValueError(
            f"partition: every sample must belong to a client, {int((counts == 0).sum())} of "
            f"{num_samples} do not, such as sample {int(counts.argmin())}; leave them out of train."
        )
    return found
