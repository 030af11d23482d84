"""Where the attackers' rows are in a batch of gradients."""

from collections.abc import Sequence

from torch import Tensor

from outvote.axes import Rows
from outvote.ops.process import fresh


class Positions:
    """Which rows ``[runs, clients]`` of a batch are the attackers'.

    Rows are copied one by one: a copy of a long row is as fast as memory is, an index is not.
    """

    def __init__(self, is_byzantine: Tensor) -> None:
        """Read the mask, once: to read it waits for all work before."""
        self.clients: list[list[int]] = [
            [client for client, is_attacker in enumerate(mask) if is_attacker]
            for mask in is_byzantine.tolist()
        ]
        self.counts = tuple(map(len, self.clients))

    def take(self, gradients: Rows) -> Rows:
        """Return copies of the attackers' rows, [runs, attackers, dim]; 0 where a run has fewer."""
        num_attackers, dim = max(self.counts), gradients.shape[-1]
        shape = (len(self.counts), num_attackers, dim)
        own = fresh(shape, gradients.dtype, gradients.device)
        for run, clients in enumerate(self.clients):
            own[run, len(clients) :] = 0
            for attacker, client in enumerate(clients):
                own[run, attacker] = gradients[run, client]
        return own

    def put(self, rows: Rows, into: Rows, runs: Sequence[int] | None = None) -> None:
        """Write rows [runs, attackers or 1, dim] over the attackers' rows of `into`.

        With `runs`, these runs of `into` are meant; otherwise all of them, in order.
        """
        is_same = rows.shape[1] == 1
        for number, clients in enumerate(self.clients):
            run = number if runs is None else runs[number]
            if clients and clients[-1] - clients[0] == len(clients) - 1:
                sent = rows[number] if is_same else rows[number, : len(clients)]
                into[run, clients[0] : clients[-1] + 1] = sent
                continue
            for attacker, client in enumerate(clients):
                into[run, client] = rows[number, 0 if is_same else attacker]
