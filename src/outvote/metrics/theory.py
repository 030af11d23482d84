r"""The paper's analysis of GAS as numbers: its lemmas with all constants, and what is measured.

Everything is in the unit of a gradient, for one step of SGD per round. n clients take part, f of
them are Byzantine, m = n - f; p is the number of groups and lambda the constant of the rule inside
(`outvote.resilience`). sigma and kappa are those of the assumptions: how far the gradient of a
batch is from that of its client, and that of a client from the mean of the honest ones.

The constants follow from the steps of the proof, not from its printed lines where these differ:
docs/concepts/theory.md lists the differences.
"""

from dataclasses import dataclass
from math import inf, sqrt
from typing import final

from outvote.errors import check_kind


def lemma1_factor(num_honest: int, resilience: float) -> float:
    r"""Return c squared of Lemma 1: what is left of resilience in expectation.

    $$ \mathbb{E} \|A(x) - \bar{x}_S\|^2 \le c^2 \rho^2, \quad
       c^2 = 4 \lambda^2 \frac{(m - 1)^2}{m}, \quad \mathbb{E} \|x_i - x_j\|^2 \le \rho^2 $$

    >>> lemma1_factor(num_honest=4, resilience=0.5)
    2.25
    """
    return 4 * resilience**2 * (num_honest - 1) ** 2 / num_honest


def squared_pair_distance(kappa: float, sigma: float) -> float:
    r"""Return rho squared: how far two honest gradients are apart at most, in the mean square.

    $$ \rho^2 = 2 \sigma^2 + 4 \kappa^2 $$
    """
    return 2 * sigma**2 + 4 * kappa**2


def squared_rule_bound(
    num_clients: int, num_byzantine: int, resilience: float, kappa: float, sigma: float
) -> float:
    r"""Return an upper bound of the mean squared deviation of a resilient rule without GAS.

    $$ 2 c^2 \rho^2 + \frac{2 \sigma^2}{m} $$

    It is Lemma 1 for the honest clients, and the noise of their mean.
    """
    num_honest = num_clients - num_byzantine
    factor = lemma1_factor(num_honest, resilience)
    return 2 * factor * squared_pair_distance(kappa, sigma) + 2 * sigma**2 / num_honest


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class GASBound:
    r"""Lemma 3 of the paper with all constants: how far GAS is from the expected gradient.

    The score of an honest client has a mean of at most A and a variance of at most B. That of a
    Byzantine client whose distances to the expected gradient are delta on average over the groups
    has a mean of at least p delta - C and a variance of at most D. By Chebyshev's inequality, it is
    kept with a probability of at most epsilon if delta is above the filter radius

    $$ R(\epsilon) = \frac{1}{p} \Big( A + C
       + \sqrt{\tfrac{m + 1}{\epsilon}} \big(\sqrt{B} + \sqrt{D}\big) \Big). $$

    That takes scores of different groups to be uncorrelated, and the distance of a Byzantine client
    to be fixed before the honest ones draw their batches. `kept_radius` and
    `squared_deviation_of_any_attack` need neither.

    >>> bound = GASBound(num_clients=10, num_byzantine=2, num_groups=100, resilience=0.77,
    ...                  kappa=1.0, sigma=1.0)
    >>> round(bound.filter_radius(), 1), round(bound.squared_deviation ** 0.5, 1)
    (36.8, 130.0)
    """

    num_clients: int
    """n of the paper."""
    num_byzantine: int
    """f of the paper."""
    num_groups: int
    """p of the paper."""
    resilience: float
    """lambda of the rule inside, on the widest group."""
    kappa: float
    """How far the expected gradient of an honest client is from the mean of all, at most."""
    sigma: float
    """The root mean square distance of an honest gradient to its expectation."""
    byzantine_sigma: float | None = None
    """The root mean square distance of a Byzantine gradient to its expectation; None: sigma."""

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name, low in (("num_clients", 1), ("num_byzantine", 0), ("num_groups", 1)):
            value = getattr(self, name)
            check_kind(name, value, int)
            if value < low:
                raise ValueError(f"{name} must be at least {low}, got {value}.")
        if 2 * self.num_byzantine >= self.num_clients:
            raise ValueError(
                f"num_byzantine must be below half of the {self.num_clients} clients, got "
                f"{self.num_byzantine}; no rule is resilient against more."
            )
        for name in ("resilience", "kappa", "sigma", "byzantine_sigma"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < inf:
                raise ValueError(f"{name} must be a finite number of at least 0, got {value}.")

    @property
    def num_honest(self) -> int:
        """The number m of clients that are kept."""
        return self.num_clients - self.num_byzantine

    @property
    def lemma1_factor(self) -> float:
        """The factor c squared."""
        return lemma1_factor(self.num_honest, self.resilience)

    @property
    def rule_error(self) -> float:
        """The factor c times rho: how far the rule inside is from the honest mean of a group."""
        return sqrt(self.lemma1_factor * squared_pair_distance(self.kappa, self.sigma))

    @property
    def honest_mean(self) -> float:
        r"""A, of the score of an honest client.

        $$ p \big((1 + 1/\sqrt{m}) \sigma + \kappa + c \rho\big) $$
        """
        noise = (1 + 1 / sqrt(self.num_honest)) * self.sigma
        return self.num_groups * (noise + self.kappa + self.rule_error)

    @property
    def honest_variance(self) -> float:
        r"""B, of the score of an honest client.

        $$ p \big((4 + 8 c^2 + 4/m) \sigma^2 + (4 + 16 c^2) \kappa^2\big) $$
        """
        own = (1 + 1 / self.num_honest) * self.sigma**2 + self.kappa**2
        return self.num_groups * 4 * (own + self.rule_error**2)

    @property
    def byzantine_loss(self) -> float:
        r"""C: what the score of a Byzantine client lacks of p times its mean distance.

        $$ p (c \rho + \sigma / \sqrt{m}) $$
        """
        return self.num_groups * (self.rule_error + self.sigma / sqrt(self.num_honest))

    @property
    def byzantine_variance(self) -> float:
        r"""D, of the score of a Byzantine client.

        $$ p \big(2 \sigma_b^2 + 12 c^2 \rho^2 + 6 \sigma^2 / m\big) $$
        """
        own = self.sigma if self.byzantine_sigma is None else self.byzantine_sigma
        noise = 6 * self.sigma**2 / self.num_honest
        return self.num_groups * (2 * own**2 + 12 * self.rule_error**2 + noise)

    def filter_radius(self, probability: float = 1.0) -> float:
        """Return R: a Byzantine client beyond it in the mean over the groups is rarely kept."""
        _check_probability(probability)
        spread = sqrt(self.honest_variance) + sqrt(self.byzantine_variance)
        chance = sqrt((self.num_honest + 1) / probability) * spread
        return (self.honest_mean + self.byzantine_loss + chance) / self.num_groups

    def vector_radius(self, probability: float = 1.0) -> float:
        r"""Return the radius for the distance of whole vectors, $\sqrt{p} R$.

        Constants of a group are those of the vector in R. Their squares add up to those of the
        vector, so that their sum is at most the root of p times that; and the distance of vectors
        is at most the sum of those of the groups, if one group has it all.
        """
        return sqrt(self.num_groups) * self.filter_radius(probability)

    @property
    def squared_deviation(self) -> float:
        r"""An upper bound of the mean squared deviation from the expected gradient.

        $$ \frac{2}{m^2} \Big(\big(\sqrt{m} (1 + \sqrt{f}) \sigma + f \kappa\big)^2
           + f^2 p R(1)^2\Big) $$

        The first term is `honest_error`. A Byzantine client at the distance d is kept with a
        probability of at most 1 and of at most (x / (d - y))^2, where the radius is
        y + x / sqrt(epsilon). So d^2 times that probability is at most the squared radius for
        epsilon = 1.
        """
        m, f = self.num_honest, self.num_byzantine
        return 2 / m**2 * (self.honest_error**2 + (f * self.vector_radius()) ** 2)

    @property
    def honest_error(self) -> float:
        r"""How far the sum of the honest clients that are kept is from that many expectations.

        $$ \sqrt{m} (1 + \sqrt{f}) \sigma + f \kappa $$

        In the root mean square. It is the sum of all honest clients, where only noise is left,
        without that of the b <= f clients that are dropped. Which ones these are may depend on
        their noise, so that its sum is at most the root of b times that of all squares, and is
        added to what the clients differ by.
        """
        m, f = self.num_honest, self.num_byzantine
        return sqrt(m) * (1 + sqrt(f)) * self.sigma + f * self.kappa

    @property
    def kept_radius(self) -> float:
        r"""How far a Byzantine client that is kept is from the expected gradient at most.

        $$ \sqrt{p} \big(\sqrt{m} \sigma + \kappa + 2 c \rho + 2 \sigma / \sqrt{m}\big) $$

        In the root mean square over the rounds, whole vectors, those without it counted as 0. If it
        is kept, an honest client is dropped whose score is as large. So its distances to the rule
        inside add up to at most the largest sum of an honest client, whatever it sends.
        """
        noise = (sqrt(self.num_honest) + 2 / sqrt(self.num_honest)) * self.sigma
        return sqrt(self.num_groups) * (noise + self.kappa + 2 * self.rule_error)

    @property
    def squared_deviation_of_any_attack(self) -> float:
        r"""An upper bound of the mean squared deviation, whatever Byzantine clients know and send.

        $$ \Big(\frac{1 + \sqrt{f}}{\sqrt{m}} \sigma + \frac{f}{m} \kappa
           + \frac{f}{m} \text{kept radius}\Big)^2 $$

        It needs unbiased batches, independent of each other, and the constants; nothing of groups.
        """
        distant = self.honest_error + self.num_byzantine * self.kept_radius
        return (distant / self.num_honest) ** 2

    def printed_radius(self, probability: float = 1.0) -> float:
        r"""Return the filter radius as the paper prints it.

        $$ \big(1 + \tfrac{1}{\sqrt{m}}\big) \sigma + \kappa + 2 c \rho
           + \sqrt{\tfrac{m + 1}{p \epsilon}} \Big(
           \sqrt{(4 + 16 c^2 + \tfrac{4}{m}) \sigma^2 + (4 + 8 c^2) \kappa^2}
           + \sqrt{2 \sigma_b^2 + (96 + \tfrac{6}{m}) \sigma^2 + 96 \kappa^2} \Big) $$
        """
        _check_probability(probability)
        m, factor = self.num_honest, self.lemma1_factor
        own = self.sigma if self.byzantine_sigma is None else self.byzantine_sigma
        first = (4 + 16 * factor + 4 / m) * self.sigma**2 + (4 + 8 * factor) * self.kappa**2
        second = 2 * own**2 + (96 + 6 / m) * self.sigma**2 + 96 * self.kappa**2
        chance = sqrt((m + 1) / (self.num_groups * probability)) * (sqrt(first) + sqrt(second))
        return (1 + 1 / sqrt(m)) * self.sigma + self.kappa + 2 * self.rule_error + chance

    @property
    def squared_printed_deviation(self) -> float:
        r"""The bound as the paper prints it, for epsilon = 1: there are inputs beyond it.

        $$ \frac{(n - 2f)^2}{m^2} \Big(\frac{\sigma^2}{n - 2f} + \kappa^2\Big)
           + \frac{f^2}{m^2} R(1)^2 $$
        """
        m, f = self.num_honest, self.num_byzantine
        honest = (m - f) * self.sigma**2 + ((m - f) * self.kappa) ** 2
        return (honest + (f * self.printed_radius()) ** 2) / m**2


def _check_probability(probability: float) -> None:
    if not 0 < probability <= 1:
        raise ValueError(f"probability must be above 0 and at most 1, got {probability}.")


def descent_bound(
    learning_rate: float, lipschitz: float, gradient_norm: float, deviation: float
) -> float:
    r"""Return the right side of the convergence inequality for one round.

    $$ L(w_t) - L(w_{t+1}) \ge \Big(\frac{\eta}{2} - \frac{L \eta^2}{4}\Big) \|\nabla L(w_t)\|^2
       - \Big(2 \eta - \frac{L \eta^2}{2}\Big) \|\hat{g}_t - \nabla L(w_t)\|^2 $$

    Summed over the rounds it is the paper's proposition; with eta = 1 / 2L the factors are 3 / 16L
    and 7 / 8L. It holds for eta up to 4 / 3L.
    """
    curved = lipschitz * learning_rate**2
    gain = (learning_rate / 2 - curved / 4) * gradient_norm**2
    return gain - (2 * learning_rate - curved / 2) * deviation**2
