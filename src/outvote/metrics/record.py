"""What is recorded of one round of one run."""

from dataclasses import dataclass

from outvote.metrics.diagnostics import Diagnostics


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One round: who took part, who was believed, and what came out."""

    round: int
    num_samples: int
    """How many pictures the clients were trained on."""
    loss: float | None
    """Mean training loss of the honest clients of the round; those that diverged do not count,
    unless all did. None: nobody had enough pictures to train on."""
    accuracy: float | None
    """Share of the test pictures recognised after the round, if it was evaluated."""
    clients: tuple[int, ...]
    byzantine: tuple[int, ...]
    """Those of the clients that lie."""
    num_byzantine_assumed: int
    """How many liars the server was told of."""
    num_byzantine_used: int
    """How many of them the rule could reckon with."""
    kept: tuple[int, ...]
    rejected: tuple[int, ...]
    """Clients that sent NaN or infinity."""
    scores: tuple[float, ...]
    deviation: float
    """How far the update is from the mean of the honest gradients."""
    honest_norm: float
    """The norm of that mean."""
    byzantine_weight: float | None = None
    """The liars' share of the weights that the rule gave; None: it gave none."""
    diagnostics: Diagnostics | None = None
    """Only of runs that ask for them."""

    @property
    def num_kept_byzantine(self) -> int:
        """How many liars were believed."""
        return len(set(self.kept) & set(self.byzantine))
