"""Every attack again, in plain float64 loops: slow, short and obviously right."""

import math
from statistics import NormalDist, fmean, pstdev, stdev


def mean(H):
    return [fmean(column) for column in zip(*H, strict=True)]


def spread(H, ddof=0):
    if len(H) == 1:
        return [0.0] * len(H[0])
    return [(stdev if ddof else pstdev)(column) for column in zip(*H, strict=True)]


def lie(H, z=1.5, ddof=0, sign=-1):
    return [m + sign * z * s for m, s in zip(mean(H), spread(H, ddof), strict=True)]


def lie_by_variance(H, z=1.5):
    return [m - z * s * s for m, s in zip(mean(H), spread(H), strict=True)]


def alie_z(n, f):
    share = (n - f - (math.floor(n / 2 + 1) - f)) / (n - f)
    return max(0.0, NormalDist().inv_cdf(share))


def squared_distance(a, b):
    return math.fsum((x - y) ** 2 for x, y in zip(a, b, strict=True))


def direction(H, name="std", ddof=0):
    mu = mean(H)
    if name == "std":
        return spread(H, ddof)
    if name == "sign":
        return [float((m > 0) - (m < 0)) for m in mu]
    length = math.sqrt(math.fsum(m * m for m in mu))
    return [m / length if length else 0.0 for m in mu]


def moved(H, gamma, name="std", ddof=0, sign=-1):
    return [m + sign * gamma * v for m, v in zip(mean(H), direction(H, name, ddof), strict=True)]


def keeps_min_max(row, H):
    widest = max(squared_distance(a, b) for a in H for b in H)
    return max(squared_distance(row, h) for h in H) <= widest


def keeps_min_sum(row, H, bound="max"):
    sums = [math.fsum(squared_distance(a, b) for b in H) for a in H]
    limit = max(sums) if bound == "max" else min(sums)
    return math.fsum(squared_distance(row, h) for h in H) <= limit


def stealth_gamma(H, ddof=0, bound=None, name="std", sign=-1):
    """The search of the NDSS authors; `bound` None means Min-Max."""
    gamma, step, feasible = 10.0, 10.0, 0.0
    while abs(feasible - gamma) > 1e-5:
        row = moved(H, gamma, name, ddof, sign)
        if keeps_min_max(row, H) if bound is None else keeps_min_sum(row, H, bound):
            feasible = gamma
            gamma += step / 2
        else:
            gamma -= step / 2
        step /= 2
    return feasible


def ipm(H, epsilon):
    return [-epsilon * m for m in mean(H)]


def line_maximize(objective, evals, delta=1.0, ratio=0.8, highest=1e6):
    best, best_value = 0.0, objective(0.0)
    tried, is_growing = 0.0, True
    for _ in range(evals - 1):
        if is_growing:
            tried = best + delta
        elif tried < best:
            tried += delta
        else:
            old, tried = tried, tried - delta
            while tried < 0:
                tried = (tried + old) / 2 if old > 0 else 0.0
        tried = min(tried, highest)
        value = objective(tried)
        if value > best_value:
            best, best_value = tried, value
        else:
            is_growing = False
        delta = 2 * delta if is_growing else ratio * delta
    return best


def fang_trimmed_mean(H, b, uniform):
    row = []
    for column, m, u in zip(zip(*H, strict=True), mean(H), uniform, strict=True):
        low, high = min(column), max(column)
        if m > 0:
            ends = (b * low, low) if low < 0 else (low / b, low)
        else:
            ends = (high, b * high) if high > 0 else (high, high / b)
        row.append(ends[0] + u * (ends[1] - ends[0]))
    return row


def fang_krum_lambda(H, f, threshold=1e-5, neighbours="code"):
    n, dim = len(H) + f, len(H[0])
    signs = direction(H, "sign")
    k = max(0, n - 2 * f - 2 if neighbours == "code" else n - f - 2)
    near = [math.fsum(sorted(math.sqrt(squared_distance(h, g)) for g in H)[1 : k + 1]) for h in H]
    longest = max(math.sqrt(math.fsum(x * x for x in h)) for h in H)
    step = (min(near) / max(1, n - 2 * f - 1) + longest) / math.sqrt(dim)
    while step > threshold and _krum([[-step * s for s in signs]] * f + list(H), f) >= f:
        step /= 2
    return step


def _krum(rows, f):
    scores = [
        math.fsum(sorted(squared_distance(a, b) for b in rows)[1 : len(rows) - f - 1]) for a in rows
    ]
    return scores.index(min(scores))


def mimic_step(H, direction, running, t):
    """One step of the learnt variant: the client to copy, the new direction, the new mean."""
    mu = [(t * r + m) / (t + 1) for r, m in zip(running, mean(H), strict=True)]
    away = [[x - m for x, m in zip(h, mu, strict=True)] for h in H]
    weights = [math.fsum(a * z for a, z in zip(row, direction, strict=True)) for row in away]
    step = [
        math.fsum(w * a for w, a in zip(weights, column, strict=True))
        for column in zip(*away, strict=True)
    ]
    unit = _unit(step)
    mixed = _unit([(t * z + u) / (t + 1) for z, u in zip(direction, unit, strict=True)])
    scores = [math.fsum(x * z for x, z in zip(h, mixed, strict=True)) for h in H]
    return scores.index(max(scores)), mixed, mu


def _unit(vector):
    length = math.sqrt(math.fsum(x * x for x in vector))
    return [x / length if length else 0.0 for x in vector]
