"""The verdict on one round: the update, and who was kept."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outvote.errors import plural
from outvote.markup import html_table

MOST_ROWS = 200
"""Of the clients that a notebook shows."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Verdict:
    """What a rule decided in a round, and why.

    `scores`: the rule's own, else the distance to the update; the larger the more suspicious,
    infinite for rejected clients. `weights`: each client's share in the update (coordinate-wise
    rules: the share of coordinates where its value entered), None if the rule does not know them.
    `kept`, `dropped` and `rejected` name clients by row, or by the ids given as ``clients=``: kept
    have a positive weight, rejected sent something that is not finite.
    """

    update: Any
    """What the rule returned, of the kind, dtype and device of the gradients."""
    scores: NDArray[np.float64]
    """How suspicious each client is, ``[clients]``."""
    weights: NDArray[np.float64] | None
    """Each client's share in the update, ``[clients]``; None: not known."""
    clients: tuple[Hashable, ...]
    """The id of each row."""
    rejected: list[Any]
    """The clients who sent something that is not finite."""
    num_byzantine: int
    """How many Byzantine clients were assumed: what was asked for, lowered where that was allowed.
    """
    base_num_byzantine: int
    """The number that the rule inside gas assumed, at most its own limit; else `num_byzantine`."""
    num_groups: int | None = None
    """How many groups of coordinates gas made; None: the rule makes none."""
    seed: int = 0
    """Gives the same verdict again, as ``seed=``."""
    state: Any = None
    """For ``state=`` of the next round, if the rule has any."""
    notes: tuple[str, ...] = field(default=())
    """What a caller may not expect, such as a number that was lowered."""

    @property
    def kept(self) -> list[Any] | None:
        """The clients whose gradients are part of the update; None if that is not known."""
        if self.weights is None:
            return None
        return [c for c, weight in zip(self.clients, self.weights, strict=True) if weight > 0]

    @property
    def dropped(self) -> list[Any] | None:
        """The clients who sent something finite that the rule left out; None if not known."""
        if self.weights is None:
            return None
        out = set(self.rejected)
        pairs = zip(self.clients, self.weights, strict=True)
        return [client for client, weight in pairs if not weight > 0 and client not in out]

    def to_dict(self, *, with_update: bool = False) -> dict[str, Any]:
        """Return the verdict as lists, numbers and texts, which JSON can hold; without the state.

        Clients have their ids if these are numbers or texts, else the text of them. None: not
        finite, such as the score of a rejected client, or not known.

        Args:
            with_update: Whether to have the update as well, as lists; it may be large.
        """
        result = {
            "clients": [_id(client) for client in self.clients],
            "scores": _numbers(self.scores),
            "weights": None if self.weights is None else _numbers(self.weights),
            "kept": None if self.kept is None else [_id(client) for client in self.kept],
            "dropped": None if self.dropped is None else [_id(each) for each in self.dropped],
            "rejected": [_id(client) for client in self.rejected],
            "num_byzantine": int(self.num_byzantine),
            "base_num_byzantine": int(self.base_num_byzantine),
            "num_groups": None if self.num_groups is None else int(self.num_groups),
            "seed": int(self.seed),
            "notes": list(self.notes),
        }
        return result | ({"update": _lists(self.update)} if with_update else {})

    def _repr_html_(self) -> str:
        """Return a table of the clients: outcome, score and weight."""
        rejected, weights = set(self.rejected), self.weights
        rows = []
        for row, client in enumerate(self.clients[:MOST_ROWS]):
            weight = None if weights is None else float(weights[row])
            if client in rejected:
                outcome = "rejected"
            elif weight is None:
                outcome = "–"
            else:
                outcome = "kept" if weight > 0 else "dropped"
            rows.append([str(client), outcome, _shown(float(self.scores[row])), _shown(weight)])
        num_left = len(self.clients) - len(rows)
        more = [f"{num_left} more clients; to_dict() has all."] if num_left else []
        return html_table(
            ["client", "verdict", "score", "weight"],
            rows,
            num_text=2,
            title=f"{plural(len(self.clients), 'client')}, num_byzantine={self.num_byzantine}.",
            note=" ".join([*more, *(f"{note}." for note in self.notes)]),
        )


def _id(client: Any) -> Any:
    plain = client.item() if isinstance(client, np.generic) else client
    return plain if isinstance(plain, str | int | bool) else str(plain)


def _numbers(values: NDArray[np.float64]) -> list[float | None]:
    return [value if isfinite(value) else None for value in values.tolist()]


def _lists(update: Any) -> Any:
    """Return an array, or a dict or list of them, as lists."""
    if isinstance(update, Mapping):
        return {str(name): _lists(value) for name, value in update.items()}
    if isinstance(update, list | tuple):
        return [_lists(value) for value in update]
    return update.tolist() if hasattr(update, "tolist") else update


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
