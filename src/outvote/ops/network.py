"""A sorting network: which pairs of values are put in order, one after the other."""


def comparators(num: int) -> list[tuple[int, int]]:
    """Return the pairs that Batcher's odd-even merge sort puts in order.

    >>> comparators(3)
    [(0, 1), (0, 2), (1, 2)]
    """
    pairs = []
    run = 1
    while run < num:
        step = run
        while step >= 1:
            for start in range(step % run, num - step, 2 * step):
                for k in range(start, min(start + step, num - step)):
                    if k // (2 * run) == (k + step) // (2 * run):
                        pairs.append((k, k + step))
            step //= 2
        run *= 2
    return pairs
