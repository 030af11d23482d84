"""The record of one round of one run."""

from dataclasses import dataclass

from outvote.metrics.certificate import Diagnostics
from outvote.metrics.theory import Theory


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One round: who took part, who was kept, and the metrics."""

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
    scores: tuple[float, ...]
    deviation: float
    """How far the update is from the mean of the honest gradients."""
    honest_norm: float
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
    def num_kept_byzantine(self) -> int | None:
        """How many Byzantine clients were kept; None: unknown."""
        return None if self.kept is None else len(set(self.kept) & set(self.byzantine))
