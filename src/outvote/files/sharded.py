"""Aggregation over many processes: each holds some coordinates of all clients."""

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any, final

import torch

from outvote.errors import warn_notes
from outvote.files.aggregate_files import PathLike, aggregate_clients
from outvote.files.processes import Processes
from outvote.files.sources import PartSource, open_source
from outvote.files.streaming import StreamingAggregator
from outvote.flat import receive
from outvote.rules.rule import Rule
from outvote.rules.rule_spec import make_rule
from outvote.rules.sample_counts import COUNT_CAP
from outvote.rules.verdict import Verdict
from outvote.seeding import Seed


@final
class ShardedRule:
    """A rule over gradients whose coordinates are shared by processes of torch.distributed.

    Every process makes one, and makes the same calls with its own coordinates of all clients: the
    first process has the first ones, and so on. What goes over the network are sums over the
    coordinates: n norms, n x n inner products, and with gas n or n x n numbers per group; a rule
    inside gas that needs values (bulyan) has the values of the groups sent. Kept, rejected, scores
    and weights are those of one process with all coordinates, and the split is the same.

    A process that ends, or does not answer for `timeout` seconds, is a `ProcessLost` in all others.
    `group` is a group of torch.distributed (gloo, or nccl); None: all processes. Values on a GPU
    are worked on in the memory of the CPU, some at a time.

    ```python
    torch.distributed.init_process_group("gloo")  # torchrun has set the address and the ranks
    rule = ShardedRule("gas(multi-krum)", timeout=60)
    verdict = rule.inspect(own_columns, num_byzantine=2)  # [clients, own coordinates]
    verdict.update  # the own coordinates of the update
    ```
    """

    def __init__(self, rule: Rule | str, *, group: Any = None, timeout: float = 60.0) -> None:
        """Join the other processes, which do the same at the same time."""
        self.processes = Processes(group, timeout=timeout)
        with self.processes.together():
            self.rule = make_rule(rule) if isinstance(rule, str) else rule

    def inspect(  # noqa: PLR0913  (all that a round may have, by name)
        self,
        shard: Any,
        *,
        num_byzantine: int | None = None,
        byzantine_fraction: float | None = None,
        when_too_many: str = "raise",
        seed: Seed = None,
        clients: Sequence[Hashable] | None = None,
        sample_counts: Sequence[float] | None = None,
        count_cap: float = COUNT_CAP,
        layer_sizes: Sequence[int] | None = None,
        max_memory: int | str = "2GB",
    ) -> Verdict:
        """Aggregate the shards; the verdict has this process's coordinates of the update.

        `shard` is an array or tensor ``[clients, own coordinates]``. The seed is that of the first
        process. `layer_sizes` are those of all coordinates.
        """
        with self.processes.together():
            received = receive(shard, "shard")
        part, dim = self._part(tuple(received.rows.shape))
        with self.processes.together():
            aggregator = StreamingAggregator(
                self.rule,
                [PartSource(open_source(row), part.start, dim) for row in received.rows],
                num_byzantine=num_byzantine,
                byzantine_fraction=byzantine_fraction,
                when_too_many=when_too_many,
                seed=seed,
                clients=clients,
                sample_counts=sample_counts,
                count_cap=count_cap,
                layer_sizes=layer_sizes,
                max_memory=max_memory,
            )
        aggregator.share(self.processes, part)
        verdict = aggregator.verdict()
        update = torch.zeros(part.stop - part.start, dtype=torch.float64)
        for piece, vector in aggregator.update():
            update[piece.start - part.start : piece.stop - part.start] = vector
        restored = received.restore(update.to(received.rows.device))
        return replace(verdict, update=restored, notes=received.notes + verdict.notes)

    def __call__(self, shard: Any, **info: Any) -> Any:
        """Aggregate the shards; return this process's coordinates of the update.

        Takes what `inspect` takes. The notes of the verdict become one warning.
        """
        verdict = self.inspect(shard, **info)
        warn_notes(verdict.notes, stacklevel=3)
        return verdict.update

    def aggregate_files(self, updates: PathLike | Sequence[PathLike], **options: Any) -> Verdict:
        """Aggregate files as `outvote.aggregate_files` does, each process some of the coordinates.

        Takes what that takes, but for the rule. All processes must see the files; the first one
        writes `output`, in full or not at all. The verdict has no update.
        """
        found = aggregate_clients(
            updates, rule=self.rule, with_update=False, processes=self.processes, **options
        )
        return found.verdict

    def _part(self, shape: tuple[int, ...]) -> tuple[slice, int]:
        """Return the coordinates of this process among all, and how many there are."""
        shapes = self.processes.objects(shape)
        for rank, each in enumerate(shapes):
            if each[0] != shapes[0][0]:
                raise ValueError(
                    "a shard must be [clients, own coordinates], with the same clients in all "
                    f"processes, got {each} in process {rank} and {shapes[0]} in process 0."
                )
        start = sum(each[1] for each in shapes[: self.processes.rank])
        return slice(start, start + shape[1]), sum(each[1] for each in shapes)
