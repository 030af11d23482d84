"""What is recorded of one round of one run, and its line in metrics.jsonl."""

from dataclasses import MISSING, dataclass, fields
from typing import Any, final


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostics:
    """The diagnostics of a round; None: not known, not finite, or does not apply."""

    kappa: float | None = None
    """The largest distance of an honest client from the mean of the honest ones: gradients over
    all its samples, at the weights before the round."""
    sigma: float | None = None
    """The root mean square distance of a batch's gradient to that of all samples, of the honest
    client where it is largest."""
    honest_diameter: float | None = None
    """The largest distance between two honest gradients."""
    resilience: float | None = None
    """The constant lambda of the rule; of GAS: of the rule inside, on its widest group."""
    bound_factor: float | None = None
    """The factor of kappa squared plus sigma squared in the paper's bound, GAS only."""
    certificate: float | None = None
    """An upper bound of the deviation, GAS only."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Theory:
    """The convergence analysis in a round of plain SGD, in the unit of a gradient.

    The paper's inequality is that the descents of all rounds are at least the bounds of them.
    None: not known, or not finite.
    """

    full_loss: float | None = None
    """L(w): the mean over the honest clients of the loss on all their samples, before the round."""
    gradient_norm: float | None = None
    """The norm of its gradient."""
    gradient_deviation: float | None = None
    """How far the update divided by the learning rate is from that gradient."""
    lipschitz: float | None = None
    """The change of the gradient in this round relative to that of the weights (a secant)."""
    deviation_bound: float | None = None
    """An upper bound of the root mean square of `gradient_deviation`, with all constants."""
    printed_bound: float | None = None
    """The same as the paper prints it, GAS only: there are inputs beyond it."""
    descent: float | None = None
    """The left side of the convergence inequality: how much the round lowered L."""
    descent_bound: float | None = None
    """Its right side, which is at most that."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round: who took part, who was kept, and the metrics; None in a file: not finite."""

    round: int
    num_samples: int
    """How many samples the clients trained on."""
    loss: float | None
    """Mean training loss of the honest clients of the round; those that diverged do not count,
    unless all did. None: no client had enough samples to train on."""
    accuracy: float | None
    """Accuracy on the test set after the round, if it was evaluated."""
    clients: tuple[int, ...]
    byzantine: tuple[int, ...]
    """The Byzantine ones among the clients."""
    num_byzantine_assumed: int
    """How many Byzantine clients the server assumed."""
    num_byzantine_used: int
    """How many the rule used, which may be lowered to its limit."""
    kept: tuple[int, ...] | None
    """The clients with a positive weight; None: the rule does not know its weights."""
    rejected: tuple[int, ...]
    """Clients that sent NaN or infinity."""
    scores: tuple[float | None, ...]
    deviation: float | None
    """How far the update is from the mean of the honest gradients."""
    honest_norm: float | None
    """The norm of that mean."""
    byzantine_weight: float | None = None
    """The Byzantine clients' share of the rule's weights; None: unknown, or all are 0."""
    test_loss: float | None = None
    """The mean loss on the test set, where targets are not classes or the loss is the user's."""
    client_accuracy: float | None = None
    """Accuracy on the own label distribution of a client, mean over the honest clients of the
    federation, sampled or not; None where targets are not classes."""
    worst_decile: float | None = None
    """The mean of the lowest tenth of these accuracies, of at least one client."""
    client_accuracies: tuple[float | None, ...] | None = None
    """One by one, in the last round of a run; None for Byzantine clients."""
    diagnostics: Diagnostics | None = None
    """Only of runs that want them."""
    theory: Theory | None = None
    """Likewise."""

    @property
    def num_kept(self) -> int | None:
        """How many clients were kept; None: unknown."""
        return None if self.kept is None else len({*self.kept})

    @property
    def num_kept_byzantine(self) -> int | None:
        """How many Byzantine clients were kept; None: unknown."""
        return None if self.kept is None else len({*self.kept} & {*self.byzantine})

    def line(self) -> dict[str, Any]:
        """Return what its line in metrics.jsonl holds: without what is at its default."""
        found = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.default is MISSING or value != field.default:
                found[field.name] = value
        return found
