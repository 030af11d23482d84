"""Dirichlet: label skew, drawn class by class."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from outvote.partition.checks import Indices, check_count, check_labels, in_order
from outvote.seeding import Seed, seed_from

MOST_DRAWS = 10_000


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
    array = check_labels(labels)
    num_clients = check_count("num_clients", num_clients)
    min_size = check_count("min_size", min_size, least=0)
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
    return in_order(np.concatenate(part) for part in parts)


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
