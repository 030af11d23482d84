"""Scores of one round on a scale that other rounds share."""

import numpy as np


def robust_z(scores: np.ndarray) -> list[float | None]:
    """Return how far scores are above their median, in standard deviations estimated robustly.

    The deviation is 1.4826 times the median distance to the median; None where that is 0 or the
    score is not finite.

    >>> robust_z(np.array([2.0, 2.0, 2.0, 9.0, np.inf]))
    [None, None, None, None, None]
    >>> [round(z, 2) for z in robust_z(np.array([1.0, 2.0, 3.0, 100.0]))]
    [-1.01, -0.34, 0.34, 65.76]
    """
    finite = scores[np.isfinite(scores)]
    if not len(finite):
        return [None] * len(scores)
    middle = float(np.median(finite))
    deviation = 1.4826 * float(np.median(np.abs(finite - middle)))
    is_known = np.isfinite(scores) & (deviation > 0)
    return [
        (float(score) - middle) / deviation if known else None
        for score, known in zip(scores, is_known, strict=True)
    ]
