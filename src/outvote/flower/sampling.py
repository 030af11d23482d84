"""Who is asked in a round."""

import random
import time
from collections.abc import Callable, Sequence
from logging import getLogger

from flwr.serverapp import Grid

from outvote.seeding import RandomStream

Sampler = Callable[[int, Sequence[int]], Sequence[int]]
"""Somebody's own way to choose: the round and the nodes to choose from -> who is asked."""

LOG = getLogger("flwr")
SECONDS_BETWEEN_LOOKS = 1.0


def wait_for_nodes(grid: Grid, num_needed: int) -> list[int]:
    """Return who is there, as soon as they are enough."""
    is_told = False
    while len(online := sorted(set(grid.get_node_ids()))) < num_needed:
        if not is_told:
            LOG.info("Waiting for nodes: %d of %d are connected.", len(online), num_needed)
            is_told = True
        time.sleep(SECONDS_BETWEEN_LOOKS)
    return online


def num_to_ask(num_online: int, fraction: float, at_least: int) -> int:
    """Return how many nodes a round wants, as Flower's own strategies reckon."""
    return max(int(num_online * fraction), at_least)


def draw(candidates: Sequence[int], num_wanted: int, seed: int | None, what: str) -> list[int]:
    """Draw nodes at random: a secret draw, or one that a seed repeats."""
    source = random.SystemRandom() if seed is None else seeded(seed, what)
    return sorted(source.sample(sorted(candidates), min(num_wanted, len(candidates))))


def seeded(seed: int, what: str) -> random.Random:
    """Return a generator of its own for every use of a seed."""
    return random.Random(derive(seed, what))


def derive(seed: int, what: str) -> int:
    """Return a seed of its own for every use of a seed."""
    return RandomStream((seed,)).fold_in(what).derived()[0]


def check_sample(chosen: Sequence[int], candidates: Sequence[int]) -> list[int]:
    """Check what somebody's own sampling chose."""
    strangers = sorted(set(chosen) - set(candidates))
    if strangers:
        raise ValueError(
            f"sample chose node {strangers[0]}, which is not among the {len(candidates)} that it "
            "was given; choose from those."
        )
    return sorted(set(chosen))
