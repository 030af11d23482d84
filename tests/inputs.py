"""Named families of inputs, and how far a rule may be from its oracle on them."""

import math

import numpy as np


def normal(rng, n, d):
    return rng.normal(size=(n, d))


def heterogeneous(rng, n, d):
    """Rows of very different length around different centres, columns of different scale."""
    rows = rng.normal(size=(n, d)) * 10.0 ** rng.uniform(-1, 1, size=(n, 1))
    return (rows + rng.normal(size=d)) * 10.0 ** rng.uniform(-1, 1, size=d)


def duplicated(rng, n, d):
    """Up to half of the rows are copies of one row, as colluding attackers send them."""
    rows = rng.normal(size=(n, d))
    copies = rng.permutation(n)[: max(2, int(rng.integers(2, n // 2 + 2)))]
    rows[copies] = rows[copies[0]]
    return rows


def nearly_duplicated(rng, n, d):
    """The same, but for rounding: copies that went through different arithmetic."""
    return duplicated(rng, n, d) * (1 + 1e-15 * rng.uniform(-1, 1, size=(n, d)))


def offset(rng, n, d):
    """A common offset of 1e4 times the differences."""
    return rng.normal(size=(n, d)) + 1e4 * rng.choice([-1.0, 1.0], size=d)


def one_huge_row(rng, n, d):
    rows = rng.normal(size=(n, d))
    rows[rng.integers(n)] *= 1e8
    return rows


FAMILIES = {
    family.__name__: family
    for family in (normal, heterogeneous, duplicated, nearly_duplicated, offset, one_huge_row)
}


def make_rows(family, n, d, seed):
    return FAMILIES[family](np.random.default_rng(seed), n, d)


def scale_of(X):
    """The usual deviation from the coordinate-wise median; huge rows and offsets do not count."""
    X = np.asarray(X, dtype=np.float64)
    deviations = np.abs(X - np.median(X, axis=0))
    deviations = deviations[deviations > 1e-12 * np.abs(X)]
    usual = float(np.median(deviations)) if deviations.size else 0.0
    return usual or float(np.abs(X).max()) or 1.0


def tolerance(X, expected, relative=1e-9):
    """Relative to the scale of the data without its offset; 1e-3 of it of the offset itself."""
    centre = np.median(X, axis=0) if np.shape(expected) == X.shape[1:] else 0.0
    away = float(np.abs(np.asarray(expected) - centre).max())
    return relative * (scale_of(X) * math.sqrt(X.shape[1]) + away + 1e-3 * np.abs(expected).max())


def is_clear(oracle, X, seed, noise=1e-10, jump=1e-5):
    """Whether the oracle's choices survive small noise: rounding must not decide the case.

    Exact ties that are not broken by the noise stay in: the lowest row index wins them.
    """
    rng = np.random.default_rng(seed)
    expected = np.asarray(oracle(X))
    step = noise * scale_of(X) + 1e-13 * np.abs(X)
    at_most = tolerance(X, expected, jump)
    # Which of two equal rows is taken first is up to rounding, and may matter later.
    for _ in range(15 if has_equal_rows(X) else 3):
        moved = np.asarray(oracle(X + step * rng.uniform(-1, 1, size=X.shape)))
        if np.abs(moved - expected).max() > at_most:
            return False
    return True


def has_equal_rows(X):
    """Whether two rows are equal but for rounding."""
    atol = 1e-12 * scale_of(X)
    apart = np.abs(X[:, None] - X[None])
    is_equal = (apart <= atol + 1e-12 * np.abs(X)).all(axis=-1)
    return bool(is_equal[np.triu_indices(len(X), k=1)].any())


def is_on_a_line(X):
    """Whether the rows lie on one line, or nearly so."""
    lengths = np.linalg.svd(X - np.median(X, axis=0), compute_uv=False)
    return len(lengths) < 2 or lengths[1] < 1e-3 * lengths[0]
