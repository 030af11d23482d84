"""The replies of a round as one matrix of updates; what cannot be used is named and left out."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, final

import numpy as np
import torch
from flwr.app import RecordDict
from numpy.typing import NDArray

from outvote.flower.npy import Malformed
from outvote.flower.reply import Reply, read_reply
from outvote.flower.sent_model import SentModel
from outvote.receive import finite_rows
from outvote.threads import mapped

NOT_FINITE = "it holds NaN, infinity or a number near it"


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Received:
    """What is left of the replies."""

    replies: Mapping[int, Reply]
    """Of whom can be judged, by node, in order."""
    rows: torch.Tensor
    """Their updates, ``[nodes, dim]``: what was sent, minus the model."""
    statistics: tuple[NDArray[Any], ...]
    """What the networks counted by themselves, ``[nodes, values]`` each, as it was sent."""
    norms: tuple[float, ...]
    """Of the updates."""
    malformed: Mapping[int, str]
    """Who sent something that cannot be used, and why."""

    @property
    def nodes(self) -> list[int]:
        """Whom the rows are from."""
        return list(self.replies)


def receive(
    sent: SentModel, contents: Mapping[int, RecordDict], counts_key: str, *, use_counts: bool
) -> Received:
    """Check what nodes sent, and turn it into updates."""
    replies: dict[int, Reply] = {}
    malformed: dict[int, str] = {}
    for node in sorted(contents):
        try:
            replies[node] = read_reply(sent, contents[node], counts_key, use_counts=use_counts)
        except Malformed as fault:
            malformed[node] = str(fault)
    rows = _fill(sent, list(replies.values()))
    received = Received(
        replies=replies,
        rows=rows,
        statistics=tuple(
            np.stack(parts)
            for parts in zip(*(reply.statistics for reply in replies.values()), strict=True)
        ),
        norms=tuple(torch.linalg.vector_norm(rows, dim=-1).tolist()),
        malformed=malformed,
    )
    return _without_not_finite(received)


def _fill(sent: SentModel, replies: list[Reply]) -> torch.Tensor:
    rows = np.empty((len(replies), len(sent.vector)), sent.vector.dtype)

    def fill(row: int) -> None:
        start = 0
        with np.errstate(all="ignore"):
            for values in replies[row].weights:
                part = slice(start, start + len(values))
                np.subtract(values, sent.vector[part], out=rows[row, part])
                start += len(values)

    mapped(fill, range(len(replies)))
    return torch.from_numpy(rows)


def _without_not_finite(received: Received) -> Received:
    """Leave out whoever sent NaN or infinity, and measure what is too long for float32."""
    rows, norms = received.rows, list(received.norms)
    are_fine = [
        is_fine and all(bool(np.isfinite(part[row]).all()) for part in received.statistics)
        for row, is_fine in enumerate(finite_rows(rows, norms))
    ]
    for row, (is_fine, norm) in enumerate(zip(are_fine, norms, strict=True)):
        if is_fine and not isfinite(norm):
            norms[row] = float(torch.linalg.vector_norm(rows[row], dtype=torch.float64))
    if all(are_fine):
        return replace(received, norms=tuple(norms))
    pairs = list(zip(received.nodes, are_fine, strict=True))
    lost = {node: NOT_FINITE for node, is_fine in pairs if not is_fine}
    return Received(
        replies={node: received.replies[node] for node, is_fine in pairs if is_fine},
        rows=rows[torch.tensor(are_fine)],
        statistics=tuple(part[are_fine] for part in received.statistics),
        norms=tuple(norm for norm, is_fine in zip(norms, are_fine, strict=True) if is_fine),
        malformed={**received.malformed, **lost},
    )
