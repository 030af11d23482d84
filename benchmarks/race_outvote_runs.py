"""The race's work in outvote: several federations of other seeds side by side."""

from race_outvote import run as run_some
from race_outvote import versions
from race_work import Clock, Work

__all__ = ["num_federations", "run", "versions"]
DIFFERS = "the same work for several seeds in one call; samples and rounds of all are counted"


def num_federations(work: Work) -> int:
    """Return how many federations train side by side."""
    return work.runs


def run(work: Work, clock: Clock) -> float:
    """Train all of them; return the mean accuracy."""
    return run_some(work, clock, work.runs)
