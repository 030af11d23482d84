"""What bounds the deviation of GAS in a round, by what was measured of its clients."""


def bound_factor(num_clients: int, num_byzantine: int, num_groups: int, resilience: float) -> float:
    r"""Return the factor of the paper's bound on the squared deviation.

    $$ \Big(1 + \frac{n - f + 1}{p}\Big) \Big(1 + \lambda^2 + \frac{1}{n - f}\Big)
       \frac{f^2}{(n - f)^2} $$
    """
    num_honest = num_clients - num_byzantine
    by_groups = 1 + (num_honest + 1) / num_groups
    by_rule = 1 + resilience**2 + 1 / num_honest
    return by_groups * by_rule * (num_byzantine / num_honest) ** 2


def certificate(
    num_kept_byzantine: int,
    num_honest: int,
    diameter: float,
    group_diameters: float,
    resilience: float,
) -> float:
    r"""Return an upper bound of the deviation of GAS, whatever the Byzantine clients sent.

    $$ \frac{b}{n - f} \Big(D + (1 + 2 \lambda) \sum_q D_q\Big) $$

    b Byzantine clients were kept, the honest gradients have the diameter D, and D_q on group q;
    `group_diameters` is the sum of those.
    """
    reach = diameter + (1 + 2 * resilience) * group_diameters
    return num_kept_byzantine / num_honest * reach
