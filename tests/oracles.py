"""Every rule once more, in slow float64 loops that share no code with the package.

Rules take the rows `X` and `f`, already within the rule's limit, and return the update as a
list of floats. The number after each summary is the section of the specification it restates.
Sums are `math.fsum` so that an oracle's own rounding never decides a comparison.
"""

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np

Row = list[float]
Rows = list[Row]
Oracle = Callable[[Sequence[Sequence[float]], int], Row]


def as_rows(X: Sequence[Sequence[float]]) -> Rows:
    return [[float(value) for value in row] for row in X]


def columns(X: Rows) -> Rows:
    return [[row[j] for row in X] for j in range(len(X[0]))]


def average(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def average_rows(X: Rows, chosen: Sequence[int]) -> Row:
    return [average([X[i][j] for i in chosen]) for j in range(len(X[0]))]


def weighted_sum(X: Rows, weights: Sequence[float]) -> Row:
    return [math.fsum(w * x for w, x in zip(weights, column, strict=True)) for column in columns(X)]


def dot(a: Row, b: Row) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def difference(a: Row, b: Row) -> Row:
    return [x - y for x, y in zip(a, b, strict=True)]


def norm(a: Row) -> float:
    return math.hypot(*a)


def distance(a: Row, b: Row) -> float:
    return norm(difference(a, b))


def squared_distance(a: Row, b: Row) -> float:
    return math.fsum((x - y) ** 2 for x, y in zip(a, b, strict=True))


def ranked(score: float) -> float:
    """A score with 40 significant bits: what differs by rounding alone is a tie."""
    if not math.isfinite(score):
        return score
    fraction, exponent = math.frexp(score)
    return math.ldexp(math.floor(fraction * 2**40 + 0.5), exponent - 40)


def smallest(values: Sequence[float], count: int) -> list[int]:
    """Indices of the `count` smallest values; equal values: lowest index first (0.4)."""
    order = sorted(range(len(values)), key=lambda i: (ranked(values[i]), i))
    return sorted(order[:count])


def middle(values: Sequence[float], even: str = "mean") -> float:
    """Median of a list (2.4)."""
    ordered = sorted(values)
    upper, lower = ordered[len(values) // 2], ordered[(len(values) - 1) // 2]
    return lower if even == "lower" else (lower + upper) / 2


def mean_around_middle(values: Sequence[float], count: int, even: str = "mean") -> float:
    """Mean of the `count` values closest to the median (2.3, 3.3)."""
    centre = middle(values, even)
    return average([values[i] for i in smallest([abs(v - centre) for v in values], count)])


def scaled_to_norm(row: Row, most: float) -> Row:
    """The row, shortened to the norm `most` where it is longer (3.8)."""
    length = norm(row)
    return list(row) if length <= most else [x * (most / length) for x in row]


def mean(X, f=0):
    """2.1"""
    X = as_rows(X)
    return average_rows(X, range(len(X)))


def median(X, f=0, even="mean"):
    """2.4"""
    return [middle(column, even) for column in columns(as_rows(X))]


def trimmed_mean(X, f):
    """2.7"""
    return [average(sorted(column)[f : len(column) - f]) for column in columns(as_rows(X))]


def meamed(X, f):
    """3.3"""
    X = as_rows(X)
    return [mean_around_middle(column, len(X) - f) for column in columns(X)]


def pair_distances(X: Rows) -> Rows:
    """2.2, step 1: all squared distances."""
    return [[squared_distance(a, b) for b in X] for a in X]


def krum_scores_among(apart: Rows, rows: Sequence[int], num_neighbours: int) -> Row:
    """2.2, step 2: sums of the smallest distances among some rows, oneself excluded."""
    others = [sorted(apart[i][j] for j in rows if j != i) for i in rows]
    return [math.fsum(far[:num_neighbours]) for far in others]


def krum_scores(X, f, num_neighbours=None, power=2):
    """2.2, steps 1 and 2."""
    apart = pair_distances(as_rows(X))
    if power != 2:
        apart = [[math.sqrt(value) ** power for value in row] for row in apart]
    k = max(1, len(apart) - f - 2) if num_neighbours is None else num_neighbours
    return krum_scores_among(apart, range(len(apart)), k)


def krum(X, f, num_neighbours=None, power=2):
    """2.2"""
    return multi_krum(X, f, num_selected=1, num_neighbours=num_neighbours, power=power)


def multi_krum(X, f, num_selected=None, num_neighbours=None, power=2):
    """2.2"""
    X = as_rows(X)
    m = len(X) - f if num_selected is None else num_selected
    return average_rows(X, smallest(krum_scores(X, f, num_neighbours, power), m))


def bulyan_selection(X, f, selection="iterative"):
    """2.3, step 2: the rows that reach the tail."""
    X = as_rows(X)
    theta = len(X) - 2 * f
    if selection == "one-shot":
        return smallest(krum_scores(X, f), theta)
    apart, left, selected = pair_distances(X), list(range(len(X))), []
    for _ in range(theta):
        scores = krum_scores_among(apart, left, max(1, len(left) - f - 2))
        selected.append(left.pop(smallest(scores, 1)[0]))
    return sorted(selected)


def bulyan(X, f, selection="iterative", even="mean"):
    """2.3"""
    X = as_rows(X)
    selected = [X[i] for i in bulyan_selection(X, f, selection)]
    beta = len(X) - 4 * f
    return [mean_around_middle(column, beta, even) for column in columns(selected)]


def rfa_weights(X, num_iterations=3, smoothing=1e-6, start="mean"):
    """2.5: the shares of the rows after the last reweighting."""
    X = as_rows(X)
    weights = [1 / len(X)] * len(X)
    z = weighted_sum(X, weights) if start == "mean" else [0.0] * len(X[0])
    for _ in range(num_iterations):
        pulls = [1 / max(smoothing, distance(row, z)) for row in X]
        weights = [pull / math.fsum(pulls) for pull in pulls]
        z = weighted_sum(X, weights)
    return weights


def rfa(X, f=0, num_iterations=3, smoothing=1e-6, start="mean"):
    """2.5"""
    return weighted_sum(as_rows(X), rfa_weights(X, num_iterations, smoothing, start))


def sum_of_distances(X, z):
    """What the geometric median minimises (3.7)."""
    return math.fsum(distance(row, list(z)) for row in as_rows(X))


def geometric_median(X, f=0):
    """3.7: a row where its optimality condition holds, else damped Newton from the best row."""
    X = as_rows(X)
    best = min(range(len(X)), key=lambda k: sum_of_distances(X, X[k]))
    pull, count, stiffness = pull_on_row(X, best)
    if norm(pull) <= count * (1 + 1e-12):
        return X[best]
    # Leaving the best row downhill, no later step can end on any row.
    step = (1 - count / norm(pull)) / stiffness
    z = [x - step * p for x, p in zip(X[best], pull, strict=True)]
    for _ in range(20):
        pulls = [1 / max(1e-300, distance(row, z)) for row in X]
        z = weighted_sum(X, [pull / math.fsum(pulls) for pull in pulls])
    for _ in range(60):
        newton = newton_step(X, z)
        if norm(newton) <= 1e-15 * norm(z):
            break
        tries = [difference(z, [x / 2**t for x in newton]) for t in range(30)]
        at_most = sum_of_distances(X, z) * (1 + 1e-15)
        z = next((new for new in tries if sum_of_distances(X, new) <= at_most), z)
    return z


def pull_on_row(X: Rows, k: int) -> tuple[Row, int, float]:
    """The unit pulls of the other rows on row k, how often row k occurs, and sum 1/distance.

    Rows that are equal but for noise count as equal: between them there is nothing to find.
    """
    pull, count, stiffness = [0.0] * len(X[0]), 0, 0.0
    centre = median(X)
    usual = sorted(distance(row, centre) for row in X)[3 * (len(X) - 1) // 4]
    for row in X:
        length = distance(X[k], row)
        if length <= max(1e-5 * usual, 1e-12 * norm(X[k])):
            count += 1
        else:
            pull = [p + (x - y) / length for p, x, y in zip(pull, X[k], row, strict=True)]
            stiffness += 1 / length
    return pull, count, stiffness


def newton_step(X: Rows, z: Row) -> Row:
    gradient, hessian = np.zeros(len(z)), np.zeros((len(z), len(z)))
    for row in X:
        away = np.array(difference(z, row))
        length = max(1e-300, norm(list(away)))
        direction = away / length
        gradient += direction
        hessian += (np.eye(len(z)) - np.outer(direction, direction)) / length
    return [float(x) for x in np.linalg.lstsq(hessian, gradient, rcond=1e-13)[0]]


def dnc_scores(X, coordinates):
    """2.6, steps 2 and 3."""
    S = np.array([[row[j] for j in coordinates] for row in as_rows(X)])
    centred = np.array([[x - average(list(S[:, j])) for j, x in enumerate(row)] for row in S])
    top = np.linalg.svd(centred, full_matrices=False)[2][0]
    return [dot(list(row), list(top)) ** 2 for row in centred]


def dnc(X, f, stream=None, removal_factor=1.0):
    """2.6; `stream` holds the coordinates of each iteration, by default all of them, once."""
    X = as_rows(X)
    stream = [range(len(X[0]))] if stream is None else stream
    num_good = len(X) - min(math.ceil(removal_factor * f), len(X) - 1)
    scores = [dnc_scores(X, coordinates) for coordinates in stream]
    good = set(range(len(X)))
    for one in scores:
        good &= set(smallest(one, num_good))
    if not good:
        good = set(smallest([math.fsum(column) for column in columns(scores)], num_good))
    return average_rows(X, sorted(good))


def mda_subset(X, f):
    """3.4: the subset of n - f rows with the smallest diameter, first in lexicographic order."""
    X = as_rows(X)
    apart = pair_distances(X)
    best, best_diameter = None, math.inf
    for subset in itertools.combinations(range(len(X)), len(X) - f):
        diameter = max((apart[i][j] for i, j in itertools.combinations(subset, 2)), default=0.0)
        if diameter < best_diameter:
            best, best_diameter = list(subset), diameter
    return best


def mda(X, f):
    """3.4"""
    return average_rows(as_rows(X), mda_subset(X, f))


def centered_clipping(X, f=0, radius=10.0, num_iterations=3, v0=None):
    """3.5"""
    X = as_rows(X)
    v = [0.0] * len(X[0]) if v0 is None else [float(x) for x in v0]
    for _ in range(num_iterations):
        steps = [scaled_to_norm(difference(row, v), radius) for row in X]
        v = [x + average(column) for x, column in zip(v, columns(steps), strict=True)]
    return v


def norm_clipping(X, f=0, max_norm=2.0):
    """3.8"""
    return mean([scaled_to_norm(row, max_norm) for row in as_rows(X)])


def fltrust(X, f=0, reference=()):
    """3.9"""
    X, root = as_rows(X), [float(x) for x in reference]
    weights = []
    for row in X:
        both = norm(row) * norm(root)
        trust = max(0.0, dot(row, root) / both) if both > 0 else 0.0
        weights.append((trust, trust * norm(root) / norm(row) if trust > 0 else 0.0))
    total = math.fsum(trust for trust, _ in weights)
    if total == 0:
        return [0.0] * len(root)
    return weighted_sum(X, [share / total for _, share in weights])


def cosine(a: Row, b: Row) -> float:
    both = norm(a) * norm(b)
    if a == b and both > 0:
        return 1.0
    return dot(a, b) / both if both > 0 else 0.0


def foolsgold_weights(H):
    """3.11: from the histories, this round included."""
    H = as_rows(H)
    n = len(H)
    alike = [[0.0 if i == j else cosine(H[i], H[j]) for j in range(n)] for i in range(n)]
    most = [max(row) + 1e-5 for row in alike]
    for i in range(n):
        for j in range(n):
            if i != j and most[i] < most[j]:
                alike[i][j] *= most[i] / most[j]
    weights = [min(1.0, max(0.0, 1 - max(row))) for row in alike]
    if max(weights) == 0:
        return weights
    weights = [w / max(weights) for w in weights]
    weights = [0.99 if w == 1 else w for w in weights]
    return [min(1.0, max(0.0, math.log(w / (1 - w) + 1e-5) + 0.5)) for w in weights]


def foolsgold(X, f=0, history=None, normalise=False):
    """3.11; `history` is the sum of the earlier rounds."""
    X = as_rows(X)
    before = [[0.0] * len(X[0])] * len(X) if history is None else as_rows(history)
    H = [[a + b for a, b in zip(old, new, strict=True)] for old, new in zip(before, X, strict=True)]
    weights = foolsgold_weights(H)
    total = math.fsum(weights) if normalise else 1.0
    return weighted_sum(X, [w / total if w > 0 else 0.0 for w in weights])


def sign_features(X, start, window):
    """3.10 (b): shares of the signs +, 0, - in the window, each by its largest over the rows."""
    shares = []
    for row in as_rows(X):
        seen = row[start : start + window]
        positive, negative = sum(x > 0 for x in seen), sum(x < 0 for x in seen)
        counts = [positive, len(seen) - positive - negative, negative]
        shares.append([count / len(seen) for count in counts])
    most = [max(column) for column in columns(shares)]
    return [[x / (m + 1e-8) for x, m in zip(row, most, strict=True)] for row in shares]


def estimated_bandwidth(features: Rows) -> float:
    """3.10 (b): mean distance to the point at quantile 0.5 of the neighbours, self included."""
    k = max(1, len(features) // 2)
    return average([sorted(distance(p, q) for q in features)[k - 1] for p in features])


def shifted_to_peak(seed: Row, features: Rows, bandwidth: float) -> tuple[Row, int]:
    """Mean shift of one seed: the mean of the features within the bandwidth, until it rests."""
    peak, count = seed, 0
    for _ in range(301):
        near = [i for i, p in enumerate(features) if distance(p, peak) <= bandwidth]
        count = len(near)
        if not near:
            break
        before, peak = peak, average_rows(features, near)
        if distance(before, peak) <= 1e-3 * bandwidth:
            break
    return peak, count


def largest_cluster(features: Rows, bandwidth: float) -> list[int]:
    """3.10 (b): mean shift from the occupied bins; features beyond the bandwidth stay out."""
    if bandwidth == 0:  # Left open there: only equal features are one cluster.
        return max(([i for i, q in enumerate(features) if q == p] for p in features), key=len)
    seeds = features
    bins = {tuple(round(x / bandwidth) for x in p) for p in features}
    if len(bins) < len(features):
        seeds = [[x * bandwidth for x in cell] for cell in bins]
    peaks = {}
    for seed in seeds:
        peak, count = shifted_to_peak(seed, features, bandwidth)
        if count:
            peaks[tuple(peak)] = count
    centres: Rows = []
    for peak in sorted(peaks, key=lambda peak: (peaks[peak], peak), reverse=True):
        if all(distance(list(peak), centre) > bandwidth for centre in centres):
            centres.append(list(peak))
    members: list[list[int]] = [[] for _ in centres]
    for i, p in enumerate(features):
        apart = [distance(p, centre) for centre in centres]
        if min(apart) <= bandwidth:
            members[apart.index(min(apart))].append(i)
    return max(members, key=len)


def signguard(X, start, window, lower=0.1, upper=3.0, widen=1.0):
    """3.10; the window's start is given. Returns the update and the kept rows.

    `widen` moves the bandwidth, to see whether a feature is exactly at it.
    """
    X = as_rows(X)
    norms = [norm(row) for row in X]
    usual = middle(norms)
    plausible = [i for i, length in enumerate(norms) if lower * usual < length < upper * usual]
    features = sign_features(X, start, window)
    cluster = largest_cluster(features, widen * estimated_bandwidth(features))
    kept = [i for i in plausible if i in cluster] or plausible
    if not kept:
        return [0.0] * len(X[0]), []
    return average_rows([scaled_to_norm(row, usual) for row in X], kept), kept


def nnm_rows(X, f):
    """3.6: each row replaced by the mean of its n - f nearest rows, itself included."""
    X = as_rows(X)
    mixed = []
    for i in range(len(X)):
        apart = [squared_distance(X[i], row) for row in X]
        apart[i] = -1.0
        mixed.append(average_rows(X, smallest(apart, len(X) - f)))
    return mixed


def nnm(base: Oracle, f_base: int):
    """3.6"""
    return lambda X, f: base(nnm_rows(X, f), f_base)


def bucket_means(X, permutation, size):
    """2.8, for a given permutation."""
    X = as_rows(X)
    order = [int(i) for i in permutation]
    return [average_rows(X, order[at : at + size]) for at in range(0, len(order), size)]


def bucketing(base: Oracle, permutation, size: int, f_base: int):
    """2.8"""
    return lambda X, f: base(bucket_means(X, permutation, size), f_base)


def adaptive_norm(X, f):
    """3.8, ARC: the norm ranked n - floor(2 (f/n) (n-f)) in ascending order."""
    norms = sorted(norm(row) for row in as_rows(X))
    return norms[len(norms) - 2 * f * (len(norms) - f) // len(norms) - 1]


def clip(base: Oracle, max_norm: float | str = 2.0):
    """3.8: every row clipped to a fixed norm or to ARC's, then the base rule."""

    def clipped(X, f):
        most = adaptive_norm(X, f) if max_norm == "adaptive" else max_norm
        return base([scaled_to_norm(row, most) for row in as_rows(X)], f)

    return clipped


def gas(base: Oracle, X, groups, f_total: int, f_base: int):
    """1: returns the output, the scores and the kept rows."""
    X = as_rows(X)
    scores = [0.0] * len(X)
    for group in groups:
        block = [[row[j] for j in group] for row in X]
        aggregate = base(block, f_base)
        scores = [s + distance(row, aggregate) for s, row in zip(scores, block, strict=True)]
    kept = smallest(scores, max(1, len(X) - f_total))
    return average_rows(X, kept), scores, kept


def balanced_sizes(dim: int, num_groups: int) -> list[int]:
    """1, step 1: the first (d mod p) blocks are the larger ones."""
    p = min(dim, num_groups)
    return [dim // p + (1 if q < dim % p else 0) for q in range(p)]


def ceil_sizes(dim: int, num_groups: int) -> list[int]:
    """1, step 1: blocks of ceil(d/p), the last one shorter."""
    width = -(-dim // min(dim, num_groups))
    return [min(width, dim - start) for start in range(0, dim, width)]


def num_from_fraction(fraction: float, num_clients: int) -> int:
    """1: ceil(delta * n), guarded against floating error."""
    return math.ceil(fraction * num_clients - 1e-9)
